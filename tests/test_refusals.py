"""What the stages refuse: class, line, exit code and stream, nothing on stdout, and earlier outputs as they were."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import torch
import yaml

from stages import base as base_stage
from stages.core import layout, runner
from stages.core.errors import ArtifactError, BaseError, DataError, LeashError, SettingsError, TrainingError
from stages.core.settings.grpo import Grpo
from stages.core.settings.reward import Reward
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, outputs
from stages.model import checkpoint
from tests.stage_settings import STAGES, run, section, values, written

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
GRPO = "group-relative policy optimization requires "
RM = "reward modeling requires "
Capture = pytest.CaptureFixture[str]


def write_params(stage: str, changes: dict[str, Any], without: str | None = None) -> None:
    """params.yaml with changes to the section of a stage, whatever they are."""
    tree = values(**{section(stage): changes})
    tree[section(stage)].pop(without, None)
    layout.PARAMS.write_text(yaml.safe_dump(tree))


class Refused(NamedTuple):
    """What a stage that was run as `python -m` runs it made of its settings and files."""

    error: LeashError | None
    """What its main raised; None where it was not reached."""
    code: int
    said: list[str]
    """Lines on stderr."""


def refused(stage: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a stage that must refuse: nothing may be on stdout, and every output as it was."""
    before = written()
    monkeypatch.setattr(sys, "argv", [stage])
    monkeypatch.delenv("DVC_STAGE", raising=False)
    module = STAGES[stage]
    raised: list[LeashError] = []

    def main(params: Any) -> runner.Document:
        try:
            return module.main(params)
        except LeashError as error:
            raised.append(error)
            raise

    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        runner.run(stage, module.Params, main)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert written() == before
    assert isinstance(ended.value.code, int)
    return Refused(raised[0] if raised else None, ended.value.code, err.splitlines())


# What settings alone decide: one line each, before anything is read.


@pytest.mark.parametrize(
    ("stage", "key"),
    [(stage, field.name) for stage, cls in (("reward", Reward), ("grpo", Grpo)) for field in dataclasses.fields(cls)],
)
def test_every_setting_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, stage: str, key: str):
    monkeypatch.chdir(tmp_path)
    write_params(stage, {}, without=key)
    _, code, (line,) = refused(stage, capfd, monkeypatch)
    assert (code, line) == (
        2,
        f"{stage}.{key} is missing: set it in conf/{stage}/ or with python -m stages.compose {stage}.{key}=...",
    )


@pytest.mark.parametrize(
    ("stage", "key", "value", "phrase"),
    [
        ("grpo", "group", 1, GRPO + "a group of at least two completions, because the group is the baseline"),
        ("grpo", "temperature", 0, GRPO + "a temperature above zero"),
        ("grpo", "beta", -0.1, GRPO + "a finite beta of zero or more"),
        ("grpo", "beta", float("inf"), GRPO + "a finite beta of zero or more"),
        ("grpo", "iterations", 0, GRPO + "at least one iteration"),
        ("grpo", "accumulation", 0, GRPO + "an accumulation of at least one prompt"),
        ("grpo", "learning_rate", 0, GRPO + "a finite learning rate above zero"),
        ("grpo", "max_new_tokens", 0, "max_new_tokens must be greater than zero"),
        ("grpo", "max_sequence", 0, "max_sequence must be at least one token"),
        ("grpo", "seed", 2**63, f"a seed is a whole number from 0 to {2**63 - 1}"),
        ("reward", "epochs", 0, RM + "at least one epoch"),
        ("reward", "accumulation", 0, RM + "an accumulation of at least one pair"),
        ("reward", "learning_rate", float("nan"), RM + "a finite learning rate above zero"),
        ("reward", "max_sequence", 1, "max_sequence must be at least two tokens"),
        ("evaluate", "samples", 0, "samples must be at least one per prompt"),
        ("base", "fit_steps", -1, "fit_steps must be zero or more"),
        ("validate", "heldout_fraction", 1, "heldout_fraction must be zero or more and below one"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_the_stage_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, stage: str, key: str, value: Any, phrase: str
):
    monkeypatch.chdir(tmp_path)
    write_params(stage, {key: value})
    _, code, (line,) = refused(stage, capfd, monkeypatch)
    assert code == 2
    assert line.startswith(f"{section(stage)}.{key}: {phrase} (found ")


# What takes a file's content, a model or a run.


def nothing() -> None:
    """Changes no file."""


def remove(path: Path) -> Callable[[], None]:
    return path.unlink


def rewrite(path: Path, kind: str, **changes: Any) -> Callable[[], None]:
    """Writes an artifact anew with other fields."""
    return lambda: artifacts.write(path, dataclasses.replace(artifacts.read(path, kind), **changes))


def resigned(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[], None]:
    """Changes tensors and sidecar of an artifact, shapes and digests made anew, so that only the change itself can be seen."""

    def apply() -> None:
        tensors = safetensors.numpy.load(path.read_bytes())
        sidecar = json.loads(path.with_suffix(".json").read_text())
        change(tensors, sidecar)
        path.write_bytes(safetensors.numpy.save(tensors))
        sidecar["shapes"] = {name: list(tensor.shape) for name, tensor in tensors.items()}
        sidecar["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        sidecar["digest"] = outputs.digest(sidecar)
        path.with_suffix(".json").write_text(json.dumps(sidecar))

    return apply


def copy(source: Path, target: Path) -> Callable[[], None]:
    """Puts an artifact where another is expected."""

    def apply() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".safetensors", ".json"):
            shutil.copy(source.with_suffix(suffix), target.with_suffix(suffix))

    return apply


def give_head(tensors: dict[str, Any], _sidecar: dict[str, Any]) -> None:
    tensors["reward.head"] = np.zeros((1, 64), np.float32)


def take_head(tensors: dict[str, Any], _sidecar: dict[str, Any]) -> None:
    del tensors["reward.head"]


def narrow(tensors: dict[str, Any], sidecar: dict[str, Any]) -> None:
    sidecar["hidden_size"] = 32
    if "reward.head" in tensors:
        tensors["reward.head"] = tensors["reward.head"][:, :32].copy()


def shorten(tensors: dict[str, Any], _sidecar: dict[str, Any]) -> None:
    for name in tensors:
        if name.endswith("lora_A.weight"):
            tensors[name] = tensors[name][:, :32].copy()


def forget_reward(_tensors: dict[str, Any], sidecar: dict[str, Any]) -> None:
    del sidecar["report"]["reward_parts"]


def rename(tensors: dict[str, Any], sidecar: dict[str, Any]) -> None:
    sidecar["layers"] = sidecar["report"]["layers"] = [0, 1, 2, 4]
    for name in [name for name in tensors if ".layers.3." in name]:
        tensors[name.replace(".layers.3.", ".layers.4.")] = tensors.pop(name)


def halve(path: Path) -> Callable[[], None]:
    return lambda: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None


def tamper(path: Path, offset: int = -1) -> Callable[[], None]:
    """Flips one bit of a file."""

    def apply() -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(bytes(content))

    return apply


def edit_json(path: Path, **changes: Any) -> Callable[[], None]:
    return lambda: path.write_text(json.dumps({**json.loads(path.read_text()), **changes})) and None


def edit_artifact(path: Path, **changes: Any) -> Callable[[], None]:
    """Edits a sidecar by hand, without a new digest."""
    return edit_json(path.with_suffix(".json"), **changes)


def data_prompts(content: Any) -> Callable[[], None]:
    return lambda: Path("data/examples/prompts.json").write_text(json.dumps(content)) and None


def data_pairs(content: Any) -> Callable[[], None]:
    return lambda: Path("data/examples/pairs.json").write_text(json.dumps(content)) and None


MINE = layout.REWARD_ARTIFACTS / "mine.safetensors"
OWN = layout.REWARD.as_posix()
CHANGED = "base.model: artifacts/base/checkpoint has changed since it was recorded"
CASES: list[tuple[str, Callable[[], None], dict[str, Any], type[LeashError], str, str]] = [
    # reward sources and kinds
    ("grpo", nothing, {"reward": "nope"}, SettingsError, "grpo.reward: ", 'reward source "nope" is neither the keyword length nor a file'),
    ("grpo", copy(layout.POLICY, MINE), {"reward": str(MINE)}, ArtifactError, f"{MINE}: ", "is a generation adapter, not a reward model"),
    ("evaluate", copy(layout.POLICY, layout.REWARD), {}, ArtifactError, f"{OWN}: ", "is a generation adapter, not a reward model"),
    ("export", copy(layout.POLICY, layout.REWARD), {}, ArtifactError, f"{OWN}: ", "is a generation adapter, not a reward model"),
    (
        "evaluate",
        copy(layout.REWARD, layout.POLICY),
        {},
        ArtifactError,
        f"{layout.POLICY}: ",
        "is a reward model, not a generation adapter",
    ),
    ("export", copy(layout.REWARD, layout.POLICY), {}, ArtifactError, f"{layout.POLICY}: ", "is a reward model, not a generation adapter"),
    # heads
    ("grpo", resigned(layout.REWARD, take_head), {}, ArtifactError, f"{OWN}: ", "reward artifact is missing tensor reward.head"),
    ("evaluate", resigned(layout.REWARD, take_head), {}, ArtifactError, f"{OWN}: ", "reward artifact is missing tensor reward.head"),
    (
        "evaluate",
        resigned(layout.POLICY, give_head),
        {},
        ArtifactError,
        f"{layout.POLICY}: ",
        "adapter artifact carries a reward.head tensor but declares kind adapter",
    ),
    # another base
    (
        "grpo",
        rewrite(layout.REWARD, artifacts.REWARD, base_fingerprint="0" * 64),
        {},
        ArtifactError,
        f"{OWN}: ",
        "adapter was trained for model toy (000000000000), current model is toy (",
    ),
    (
        "evaluate",
        rewrite(layout.POLICY, artifacts.ADAPTER, base_fingerprint="0" * 64, model="./elsewhere"),
        {},
        ArtifactError,
        f"{layout.POLICY}: ",
        "adapter was trained for model ./elsewhere (000000000000), current model is toy (",
    ),
    ("grpo", resigned(layout.REWARD, narrow), {}, ArtifactError, f"{OWN}: ", "adapter width 32 does not match model width 64"),
    (
        "evaluate",
        resigned(layout.POLICY, narrow),
        {},
        ArtifactError,
        f"{layout.POLICY}: ",
        "adapter width 32 does not match model width 64",
    ),
    ("evaluate", resigned(layout.POLICY, shorten), {}, TrainingError, "adapter policy: ", "has shape [8, 32], the model needs [8, 64]"),
    ("evaluate", resigned(layout.POLICY, rename), {}, TrainingError, "adapter policy: ", "no linear module model.layers.4."),
    ("evaluate", resigned(layout.POLICY, forget_reward), {}, ArtifactError, f"{layout.POLICY}: its report does not say what reward", ""),
    # damage
    ("evaluate", halve(layout.POLICY), {}, ArtifactError, f"{layout.POLICY}: ", "not a safetensors file"),
    (
        "export",
        tamper(layout.POLICY),
        {},
        ArtifactError,
        f"{layout.POLICY}: ",
        "its weights are not the ones that policy.json was written for",
    ),
    ("export", edit_artifact(layout.POLICY, alpha=32.0), {}, ArtifactError, "artifacts/grpo/policy.json: ", "do not match their digest"),
    # what is missing, and what to run
    ("reward", remove(layout.BASE_RECORD), {}, BaseError, "artifacts/base/base.json: ", "run `dvc repro base`"),
    ("grpo", remove(layout.BASE_RECORD), {}, BaseError, "artifacts/base/base.json: ", "run `dvc repro base`"),
    ("evaluate", remove(layout.BASE_RECORD), {}, BaseError, "artifacts/base/base.json: ", "run `dvc repro base`"),
    ("export", remove(layout.BASE_RECORD), {}, BaseError, "artifacts/base/base.json: ", "run `dvc repro base`"),
    ("reward", remove(layout.TRAIN_PAIRS), {}, DataError, f"{layout.TRAIN_PAIRS}: ", "run dvc repro validate"),
    ("grpo", remove(layout.TRAIN_PROMPTS), {}, DataError, f"{layout.TRAIN_PROMPTS}: ", "run dvc repro validate"),
    ("evaluate", remove(layout.HELDOUT_PROMPTS), {}, DataError, f"{layout.HELDOUT_PROMPTS}: ", "run dvc repro validate"),
    ("evaluate", remove(layout.HELDOUT_PAIRS), {}, DataError, f"{layout.HELDOUT_PAIRS}: ", "run dvc repro validate"),
    (
        "grpo",
        remove(layout.REWARD),
        {},
        ArtifactError,
        f"{OWN}: ",
        "run `dvc repro`, or bring it back with `dvc checkout artifacts/reward`",
    ),
    ("evaluate", remove(layout.REWARD.with_suffix(".json")), {}, ArtifactError, "artifacts/reward/reward.json: ", "run `dvc repro`"),
    ("evaluate", remove(layout.POLICY), {}, ArtifactError, f"{layout.POLICY}: ", "bring it back with `dvc checkout artifacts/grpo`"),
    ("export", remove(layout.POLICY), {}, ArtifactError, f"{layout.POLICY}: ", "bring it back with `dvc checkout artifacts/grpo`"),
    # a base that is not the one recorded
    ("reward", tamper(layout.BASE_CHECKPOINT / "model.safetensors"), {}, BaseError, CHANGED, "(weights)"),
    ("grpo", tamper(layout.BASE_CHECKPOINT / "model.safetensors"), {"reward": "length"}, BaseError, CHANGED, "(weights)"),
    ("evaluate", tamper(layout.BASE_CHECKPOINT / "model.safetensors"), {}, BaseError, CHANGED, "(weights)"),
    ("reward", edit_json(layout.BASE_CHECKPOINT / "config.json", rms_norm_eps=0.5), {}, BaseError, CHANGED, "(config)"),
    ("reward", edit_json(layout.BASE_CHECKPOINT / "tokenizer_config.json", unk_token="the"), {}, BaseError, CHANGED, "(tokenizer)"),
    (
        "reward",
        lambda: shutil.rmtree(layout.BASE_CHECKPOINT),
        {},
        BaseError,
        "base.model: artifacts/base/checkpoint",
        "run `dvc repro -f base`",
    ),
    # rows that are all too long
    (
        "reward",
        nothing,
        {"max_sequence": 2},
        TrainingError,
        "reward.max_sequence: every pair is longer than the sequence limit, so there",
        "",
    ),
    (
        "grpo",
        nothing,
        {"max_sequence": 1},
        TrainingError,
        "grpo.max_sequence: every prompt is longer than the sequence limit, so there",
        "",
    ),
    ("evaluate", nothing, {"max_sequence": 1}, TrainingError, "evaluate.max_sequence: every prompt is longer than the sequence limit", ""),
    # the positions, 512 in the toy
    (
        "grpo",
        nothing,
        {"max_new_tokens": 506},
        TrainingError,
        "grpo.max_new_tokens: the longest prompt of 7 tokens and 506 new ones make 513",
        "",
    ),
    ("evaluate", nothing, {"max_new_tokens": 512}, TrainingError, "evaluate.max_new_tokens: ", "beyond the model's 512 positions"),
    # warm-up, targets and layers
    (
        "reward",
        nothing,
        {"warmup_steps": 6},
        TrainingError,
        "reward.warmup_steps: 6 warm-up steps are not below the 6 steps of this run",
        "",
    ),
    ("grpo", nothing, {"warmup_steps": 3}, TrainingError, "grpo.warmup_steps: 3 warm-up steps are not below the 3 steps of this run", ""),
    (
        "reward",
        nothing,
        {"targets": ["q_proj", "nope", "lm_head"]},
        TrainingError,
        "reward.targets: the model has no linear module nope, lm_head in its layers; it has mlp.down_proj, ",
        "self_attn.q_proj",
    ),
    ("grpo", nothing, {"targets": "c_attn"}, TrainingError, "grpo.targets: the model has no linear module c_attn", "self_attn.v_proj"),
    ("reward", nothing, {"layers": [0, 4]}, TrainingError, "reward.layers: layer 4 is not there; the model has 4 layers, 0 to 3", ""),
    ("grpo", nothing, {"layers": "8..16"}, TrainingError, "grpo.layers: layer 15 is not there; the model has 4 layers, 0 to 3", ""),
    # the user's own files
    ("validate", data_prompts({"prompts": []}), {}, DataError, "data/examples/prompts.json:1:13: ", "prompt set contains no prompts"),
    (
        "validate",
        data_pairs({"trait_name": "calm", "pairs": []}),
        {},
        DataError,
        "data/examples/pairs.json:1:33: ",
        "pair set calm contains no pairs",
    ),
    (
        "validate",
        data_pairs({"trait_name": "calm", "pairs": [{"positive": "a", "negative": ""}]}),
        {},
        DataError,
        "data/examples/pairs.json:1:",
        "pair set calm contains an empty positive or negative prompt",
    ),
]


@pytest.mark.parametrize(
    ("stage", "change", "settings", "error", "start", "phrase"),
    CASES,
    ids=[f"{number}-{case[0]}-{case[3].__name__}" for number, case in enumerate(CASES)],
)
def test_a_refusal_is_one_line_of_its_class_with_its_exit_code_and_leaves_earlier_outputs(
    trained_project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
    stage: str,
    change: Callable[[], None],
    settings: dict[str, Any],
    error: type[LeashError],
    start: str,
    phrase: str,
):
    for path in (layout.SAMPLES, layout.report("evaluate"), layout.EXPORT / "policy" / "adapter_config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"earlier")
    change()
    write_params(stage, settings)
    found, code, said = refused(stage, capfd, monkeypatch)
    assert type(found) is error
    (line,) = found.lines()
    assert line.startswith(start)
    assert phrase in line
    assert code == (2 if error is SettingsError else 1)
    assert said[-1] == line


@pytest.mark.parametrize(
    ("stage", "change", "settings"),
    [
        ("grpo", nothing, {"reward": "nope"}),
        ("grpo", copy(layout.POLICY, MINE), {"reward": str(MINE)}),
        ("grpo", resigned(layout.REWARD, take_head), {}),
        ("grpo", rewrite(layout.REWARD, artifacts.REWARD, base_fingerprint="0" * 64), {}),
        ("evaluate", rewrite(layout.POLICY, artifacts.ADAPTER, base_fingerprint="0" * 64), {}),
        ("evaluate", copy(layout.POLICY, layout.REWARD), {}),
    ],
)
def test_artifacts_are_refused_before_any_weights_are_loaded(
    trained_project: Path, monkeypatch: pytest.MonkeyPatch, stage: str, change: Callable[[], None], settings: dict[str, Any]
):
    change()
    monkeypatch.setattr(checkpoint, "find", lambda *_: pytest.fail("the checkpoint was opened"))
    with pytest.raises(LeashError):
        run(stage, **settings)


@pytest.mark.parametrize(
    ("stage", "blocked", "changes"),
    [
        ("validate", layout.report("validate"), {"seed": 5}),
        ("validate", layout.HELDOUT_PAIRS, {"seed": 5}),
        ("reward", layout.report("reward"), {"seed": 5, "epochs": 1}),
        ("reward", layout.curve("reward"), {"seed": 5, "epochs": 1}),
        ("grpo", layout.report("grpo"), {"seed": 5}),
        ("grpo", layout.POLICY, {"seed": 5}),
        ("evaluate", layout.report("evaluate"), {"seed": 5}),
        ("export", layout.EXPORT / "policy" / "adapter_model.safetensors", {}),
    ],
)
def test_where_one_output_of_a_stage_cannot_be_written_none_is_replaced(
    trained_project: Path, stage: str, blocked: Path, changes: dict[str, Any]
):
    for done in ("evaluate", "export"):
        run(done)
    if stage == "export":
        run("grpo", rank=4)  # or it would write the same bytes
    blocked.unlink()
    before = written()
    blocked.mkdir()
    with pytest.raises(IsADirectoryError, match=str(blocked)):
        run(stage, **changes)
    blocked.rmdir()
    assert written() == before


def test_a_policy_whose_reward_is_gone_is_refused_by_evaluate_with_its_name(trained_project: Path):
    copy(layout.REWARD, MINE)()
    run("grpo", reward=str(MINE), max_new_tokens=2)
    MINE.unlink()
    with pytest.raises(LeashError, match="data/rewards/mine"):
        run("evaluate")


def test_a_reward_artifact_of_the_same_base_elsewhere_still_fits(trained_project: Path):
    shutil.copytree(layout.BASE_CHECKPOINT, "moved")
    source = {
        "model": "./moved",
        "revision": None,
        "gguf_file": None,
        "precision": "f32",
        "chat_template": "auto",
        "trust_remote_code": False,
    }
    base_stage.main(base_stage.Params(base_stage.CheckpointBase(**source), Runtime("cpu", 1, 64, False, 1, 1, 1, None, False)))
    assert json.loads(layout.BASE_RECORD.read_text())["folder"] == "moved"
    assert run("grpo", max_new_tokens=2).report["reward"] == f"reward:{OWN}"


def test_the_same_shapes_with_other_weights_are_another_base(trained_project: Path):
    run("base", seed=2)
    with pytest.raises(ArtifactError, match="adapter was trained for model toy"):
        run("grpo")


@pytest.mark.parametrize("stage", ["reward", "grpo", "evaluate"])
def test_a_device_that_is_not_there_is_refused_in_one_line(
    trained_project: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, stage: str
):
    device = f"cuda:{torch.cuda.device_count()}"  # one beyond the last
    tree = values()
    tree["runtime"]["device"] = device
    layout.PARAMS.write_text(yaml.safe_dump(tree))
    _, code, said = refused(stage, capfd, monkeypatch)
    assert code == 1
    assert said[-1].startswith(f"runtime.device: '{device}' cannot be used here (")
    assert sum(line.startswith("runtime.device") for line in said) == 1


@pytest.mark.parametrize("stage", ["base", "validate", "reward", "grpo", "evaluate", "export"])
def test_a_stage_prints_its_path_and_the_report_that_it_wrote_and_nothing_else(
    trained_project: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, stage: str
):
    write_params(stage, {"max_new_tokens": 2} if stage == "grpo" else {})
    monkeypatch.setattr(sys, "argv", [stage])
    with pytest.raises(SystemExit) as ended:
        runner.run(stage, STAGES[stage].Params, STAGES[stage].main)
    assert ended.value.code == 0
    out, _ = capfd.readouterr()
    document = json.loads(out)
    assert out == json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    assert list(document) == ["path", "report"]
    assert (document["path"], document["report"]) == {
        "base": ("artifacts/base/base.json", read(layout.BASE_RECORD)),
        "validate": ("artifacts/validate", read(layout.report("validate"))),
        "reward": ("artifacts/reward/reward.safetensors", read(layout.report("reward"))),
        "grpo": ("artifacts/grpo/policy.safetensors", read(layout.report("grpo"))),
        "evaluate": ("artifacts/evaluate/samples.jsonl", read(layout.report("evaluate"))),
        "export": ("artifacts/export", read(layout.EXPORT / "export.json")),
    }[stage]


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


# The same in processes of their own.


def process(stage: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "DVC_STAGE"}
    command = [sys.executable, "-m", f"stages.{stage}"]
    return subprocess.run(command, env={**environment, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "change", "settings", "code", "start"),
    [
        ("grpo", nothing, {"group": 1}, 2, f"grpo.group: {GRPO}a group of at least two completions, because the group is the baseline"),
        ("grpo", nothing, {"reward": "nope"}, 2, 'grpo.reward: reward source "nope" is neither the keyword length nor a file that exists'),
        ("grpo", resigned(layout.REWARD, take_head), {}, 1, f"{OWN}: reward artifact is missing tensor reward.head"),
        (
            "reward",
            nothing,
            {"max_sequence": 2},
            1,
            "reward.max_sequence: every pair is longer than the sequence limit, so there is nothing",
        ),
        ("evaluate", remove(layout.POLICY), {}, 1, f"{layout.POLICY}: no such artifact; run `dvc repro`"),
    ],
)
def test_a_stage_in_its_own_process_refuses_on_stderr_alone(
    trained_project: Path, stage: str, change: Callable[[], None], settings: dict[str, Any], code: int, start: str
):
    change()
    write_params(stage, settings)
    before = written()
    done = process(stage)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith(start)
    assert "Traceback" not in done.stderr
    assert written() == before


@pytest.mark.slow
def test_a_stage_in_its_own_process_prints_its_document_alone_and_writes_what_it_writes_in_this_one(trained_project: Path):
    write_params("grpo", {})
    before = written()
    done = process("grpo", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"path": layout.POLICY.as_posix(), "report": read(layout.report("grpo"))}
    assert written() == before
