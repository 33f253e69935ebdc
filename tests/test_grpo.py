"""The grpo stage: its files, its report, what it says, prompts that do not fit, and bases of several kinds."""

import csv
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from stages import base as base_stage
from stages.core import layout
from stages.core.errors import ArtifactError, DataError, SettingsError, TrainingError
from stages.core.settings.base import CheckpointBase
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, records
from stages.files.records import Pair, Prompt
from stages.learning import comparison, rounds
from stages.model.sampling import Completion
from tests import tiny
from tests.stage_settings import run, written

pytestmark = pytest.mark.slow

REPORT = (
    "reward prompts trained_prompts skipped_long refused_groups group iterations steps planned_steps beta trainable_tensors "
    "trainable_parameters first_loss final_loss mean_reward mean_kl policy_loss max_new_tokens temperature top_p seed rank alpha "
    "targets layers learning_rate accumulation chat_template precision history log_probabilities"
).split()
ROWS = {"shortest_tokens", "median_tokens", "longest_tokens", "special_strings", "labels_in_texts", "rewritten_texts", "unknown_tokens"}
STARTED = {"init_adapter", "prompts_sha256", "reward_parts", "unrated_groups"}
VARIANT = {"updates", "importance_sampling_level", "aggregation", "scale_rewards", "mask_truncated"}
BESIDE = {*ROWS, *STARTED, *VARIANT, "warning", "empty_completions"}
"""What else the report says."""
HISTORY = (
    "iteration groups completions mean_reward reward_spread mean_kl policy_loss mean_completion_tokens flat_groups truncated entropy "
    "grad_norm learning_rate"
).split()
CURVE = "step iteration loss mean_reward reward_spread mean_kl mean_completion_tokens truncated entropy grad_norm learning_rate".split()


def report() -> dict[str, Any]:
    return json.loads(layout.report("grpo").read_text())


def curve() -> list[dict[str, str]]:
    with layout.curve("grpo").open() as stream:
        return list(csv.DictReader(stream))


def prompts(*texts: str) -> None:
    """Puts these in the place of the prompts to train on."""
    records.write_prompts(layout.TRAIN_PROMPTS, [Prompt(text) for text in texts])


def test_its_outputs_are_the_artifact_its_report_and_the_curve(trained_project: Path):
    for name in ("artifacts/grpo/policy.safetensors", "reports/grpo.json", "reports/plots/grpo.csv"):
        assert (trained_project / name).exists()
    sidecar = json.loads(layout.POLICY.with_suffix(".json").read_text())
    assert (sidecar["kind"], sidecar["report"]) == ("adapter", report())
    assert sidecar["base_fingerprint"] == base_record.read_base().fingerprint
    assert len(artifacts.read(layout.POLICY, artifacts.ADAPTER).tensors) == 16


def test_the_report_has_the_documented_keys_and_scalars_except_its_lists(trained_project: Path):
    found = report()
    assert set(found) == {*REPORT, *BESIDE}
    scalars = str | int | float | None
    assert {key for key, value in found.items() if not isinstance(value, scalars)} == {"reward_parts", "targets", "layers", "history"}
    assert found["reward"] == "reward:artifacts/reward/reward.safetensors"
    assert found["log_probabilities"] == "tempered, before top-p"
    assert (found["trainable_tensors"], found["trainable_parameters"]) == (16, 7168)
    assert (found["prompts"], found["trained_prompts"], found["steps"], found["planned_steps"]) == (3, 3, 3, 3)
    assert abs(found["first_loss"]) < 1e-6
    assert found["warning"] is None


def test_the_curve_and_the_history_have_the_documented_columns_and_agree_with_the_report(trained_project: Path):
    rows, found = curve(), report()
    assert list(rows[0]) == CURVE
    assert [list(entry) for entry in found["history"]] == [HISTORY]
    assert (rows[0]["mean_kl"], float(rows[0]["loss"])) == ("0.0", found["first_loss"])
    assert float(rows[-1]["loss"]) == found["final_loss"]
    (entry,) = found["history"]
    assert (entry["groups"], entry["completions"]) == (3, 6)
    assert (entry["mean_reward"], entry["mean_kl"], entry["policy_loss"]) == (found["mean_reward"], found["mean_kl"], found["policy_loss"])
    # accumulation 1: a step is one group, so the iteration's means are those of its rows
    for key in ("mean_reward", "reward_spread", "mean_kl", "mean_completion_tokens", "truncated", "entropy", "grad_norm"):
        assert math.isclose(entry[key], sum(float(row[key]) for row in rows) / 3), key


def test_a_second_run_begins_the_history_file_anew_and_gives_the_same_files_and_another_seed_others(validated_project: Path):
    files = []
    for seed in (42, 42, 1):
        document = run("grpo", reward="length", max_new_tokens=3, seed=seed)
        assert (document.path, document.report) == (Path("artifacts/grpo/policy.safetensors"), report())
        lines = [json.loads(line) for line in layout.history("grpo").read_text().splitlines()]
        assert [{key: str(value) for key, value in line.items()} for line in lines] == curve()
        assert len(lines) == 3
        files.append(written())
    assert files[0] == files[1]
    assert files[2][layout.POLICY.as_posix()] != files[0][layout.POLICY.as_posix()]


def test_under_length_no_reward_model_is_needed_and_the_first_loss_is_exactly_zero(validated_project: Path):
    assert not layout.REWARD.exists()
    found = run("grpo", reward="length", group=3).report
    assert (found["reward"], found["first_loss"]) == ("length", 0.0)


def test_a_reward_model_under_data_rewards_is_the_same_reward_under_another_name(trained_project: Path):
    own = layout.REWARD
    kept = layout.REWARD_ARTIFACTS / "mine.safetensors"
    kept.parent.mkdir()
    for source, target in ((own, kept), (own.with_suffix(".json"), kept.with_suffix(".json"))):
        target.write_bytes(source.read_bytes())
    before = report()
    found = run("grpo", reward=kept.as_posix()).report
    (part,) = found["reward_parts"]
    assert part == {"source": kept.as_posix(), "weight": 1.0, "name": None, "arguments": None}
    assert found == {**before, "reward": "reward:data/rewards/mine.safetensors", "reward_parts": [part]}


def kept_policy() -> Path:
    """The policy that there is, put where one to start from lies."""
    path = layout.INIT_ADAPTERS / "mine.safetensors"
    path.parent.mkdir(parents=True)
    for suffix in (".safetensors", ".json"):
        path.with_suffix(suffix).write_bytes(layout.POLICY.with_suffix(suffix).read_bytes())
    return path


def test_training_goes_on_from_a_policy_and_evaluate_compares_with_the_frozen_base(trained_project: Path):
    start = kept_policy()
    own = run("evaluate").report
    assert "start_mean_kl" not in own
    found = run("grpo", init_adapter=start.as_posix()).report
    assert found["init_adapter"] == {"path": "data/adapters/mine.safetensors", "sha256": hashlib.sha256(start.read_bytes()).hexdigest()}
    assert curve()[0]["mean_kl"] == "0.0"
    compared = run("evaluate").report
    assert compared["base_mean_reward"] == own["base_mean_reward"]
    assert 0 < compared["start_mean_kl"] != compared["mean_kl"]
    # a start that was exchanged since is refused
    start.write_bytes(start.read_bytes() + b" ")
    with pytest.raises(ArtifactError, match=r"it started from another data/adapters/mine\.safetensors than is there now"):
        run("evaluate")
    start.unlink()
    with pytest.raises(ArtifactError, match=r"it started from data/adapters/mine\.safetensors, which is not there"):
        run("evaluate")


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"rank": 4, "alpha": 3.0},
            ["grpo.rank: 4, and grpo.init_adapter, which training starts from, has 8; set", "grpo.alpha: 3.0"],
        ),
        ({"targets": ["k_proj"], "layers": [0]}, ["grpo.targets: ['k_proj']", "grpo.layers: [0]"]),
    ],
)
def test_a_start_of_another_shape_is_refused(trained_project: Path, changes: dict[str, Any], lines: list[str]):
    start = kept_policy()
    before = written()
    with pytest.raises(SettingsError) as refused:
        run("grpo", init_adapter=start.as_posix(), **changes)
    assert all(found.startswith(line) for found, line in zip(refused.value.problems, lines, strict=True))
    assert written() == before


def test_a_reward_model_is_no_start(trained_project: Path):
    start = layout.INIT_ADAPTERS / "mine.safetensors"
    start.parent.mkdir(parents=True)
    for suffix in (".safetensors", ".json"):
        start.with_suffix(suffix).write_bytes(layout.REWARD.with_suffix(suffix).read_bytes())
    with pytest.raises(ArtifactError, match="adapter artifact is a reward model, not a generation adapter"):
        run("grpo", init_adapter=start.as_posix())


def test_a_prompt_at_the_limit_is_kept_and_a_longer_one_skipped_whole(validated_project: Path, capsys: pytest.CaptureFixture[str]):
    # tokens with the begin token: 5, 6, 7
    prompts("the guest cries .", "the guest cries . .", "the guest cries . . .")
    found = run("grpo", reward="length", max_sequence=6, max_new_tokens=4, empty_completions="score").report
    assert (found["prompts"], found["trained_prompts"], found["skipped_long"], found["planned_steps"]) == (3, 2, 1, 2)
    said = capsys.readouterr().err
    assert "skipped 1 prompts longer than max_sequence 6, of up to 7 tokens: prompt 2\n" in said
    assert "prompt 2 sampling" not in said


def test_lengths_and_the_first_rendering_are_shown_in_text_and_ids(validated_project: Path, capsys: pytest.CaptureFixture[str]):
    prompts("the guest cries.", "the sister drops the cup.")
    run("grpo", reward="length", max_new_tokens=2, empty_completions="score")
    said = capsys.readouterr().err.splitlines()
    ids = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)("the guest cries.").input_ids
    start = said.index("2 prompts of 5 to 7 tokens, median 7")
    assert said[start : start + 2] == [
        "2 prompts of 5 to 7 tokens, median 7",
        f"first prompt '<s> the guest cries.' = {ids}",
    ]
    assert "steps are appended to .state/grpo/history.jsonl" in said[start + 2 :]


def test_words_that_the_tokenizer_does_not_know_are_counted_in_the_report_and_named(
    validated_project: Path, capsys: pytest.CaptureFixture[str]
):
    prompts("the otter cries .", "the otter and the quokka")
    found = run("grpo", reward="length", max_new_tokens=2, empty_completions="score").report
    assert found["unknown_tokens"] == 4
    assert "4 of 9 tokens (44.4%) are unknown to the tokenizer: otter (2), and (1), quokka (1)\n" in capsys.readouterr().err


def test_a_run_in_which_no_completion_ends_and_all_rewards_are_equal_says_so_in_the_report(
    validated_project: Path, capsys: pytest.CaptureFixture[str]
):
    # One token that must not be the end: every completion has length 1.
    found = run("grpo", reward="length", max_new_tokens=1).report
    (entry,) = found["history"]
    assert (entry["truncated"], entry["flat_groups"], entry["mean_reward"], entry["reward_spread"]) == (1.0, 1.0, 1.0, 0.0)
    assert found["warning"].startswith("no completion ended; the reward is constant")
    assert f"iteration 1/1 warning: {found['warning']}\n" in capsys.readouterr().err


def test_beta_seed_and_warm_up_of_zero_are_kept_as_zeros(validated_project: Path):
    found = run("grpo", reward="length", beta=0, seed=0, warmup_steps=0, max_new_tokens=3).report
    assert (found["beta"], found["seed"]) == (0, 0)
    assert float(curve()[0]["learning_rate"]) == 5e-3


def test_a_seed_at_the_upper_bound_trains_and_is_measured_with(trained_project: Path):
    assert run("grpo", seed=2**63 - 1, max_new_tokens=2, empty_completions="score").report["seed"] == 2**63 - 1
    assert run("evaluate", seed=2**63 - 1, max_new_tokens=2).report["heldout_prompts"] == 3


def test_a_refused_run_leaves_every_earlier_output_as_it_was(trained_project: Path):
    before = written()
    with pytest.raises(TrainingError):
        run("grpo", max_sequence=1)
    assert written() == before


def test_prompts_that_validate_did_not_leave_empty_are_refused(trained_project: Path):
    layout.TRAIN_PROMPTS.write_bytes(b"")
    with pytest.raises(DataError, match=rf"^{layout.TRAIN_PROMPTS}: it has 0 rows, and validate writes 1 or more: run dvc repro validate$"):
        run("grpo")
    layout.TRAIN_PROMPTS.unlink()
    with pytest.raises(DataError, match=rf"^{layout.TRAIN_PROMPTS}: validate's output is not there: run dvc repro validate$"):
        run("grpo")


# Bases of other kinds.

BEGINNING_CHAT = (
    "{{ '<s> ' }}{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' <turn> over ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
)
"""A template that writes the begin token itself."""


@pytest.fixture
def tiny_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the current folder a project on a tiny base, with prompts and pairs of its words on both sides."""
    monkeypatch.chdir(tmp_path)

    def make(kind: str = "llama", *, end_tokens: list[int] | None = None, template: str | None = None, **settings: Any) -> None:
        model = tiny.model(kind)
        if end_tokens is not None:
            model.generation_config.eos_token_id = end_tokens
        tiny.save(Path("checkpoint"), model, tiny.tokenizer(template=template, **settings))
        source = {"model": "./checkpoint", "revision": None, "gguf_file": None}
        settings = CheckpointBase(**source, precision="f32", chat_template="auto", trust_remote_code=False)
        base_stage.main(base_stage.Params(settings, Runtime("cpu", 1, 64, False, 1, 1, 1, None, False)))
        pair = Pair("the child drops", "the plate is calm", "the plate is harsh")
        for path in (layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS):
            records.write_pairs(path, [pair])
        for path in (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS):
            records.write_prompts(path, [Prompt("the child drops the cup"), Prompt("the friend breaks")])

    return make


def shown(said: str) -> list[tuple[str, list[int]]]:
    """What was rendered first, and its ids: (`first prompt`, [..])."""
    lines = [line for line in said.splitlines() if line.startswith("first ")]
    return [(" ".join(line.split()[:2]), json.loads(line.rpartition(" = ")[2])) for line in lines]


@pytest.mark.parametrize(
    ("begins", "template", "opening"),
    [
        (True, None, "<s> the child drops"),
        (True, BEGINNING_CHAT, "<s> user : the child drops"),
        (True, tiny.CHAT, "user : the child drops"),
    ],
    ids=["plain", "both", "tokenizer-alone"],
)
def test_the_begin_token_stands_once_in_pairs_prompts_and_evaluation_where_text_or_template_has_it(
    tiny_project: Callable[..., None], capsys: pytest.CaptureFixture[str], begins: bool, template: str | None, opening: str
):
    tiny_project(begins=begins, template=template, end_tokens=[tiny.IDS[tiny.END], tiny.IDS[tiny.TURN]])
    capsys.readouterr()
    rendered = []
    for stage in ("reward", "grpo", "evaluate"):
        run(stage, **({"epochs": 1} if stage == "reward" else {"max_new_tokens": 3}))
        rendered += shown(capsys.readouterr().err)
    assert [what for what, _ in rendered] == [
        *("first chosen", "first rejected"),  # reward
        "first prompt",  # grpo
        *("first prompt", "first chosen", "first rejected"),  # evaluate
    ]
    expected = tiny.ids(opening)
    for what, ids in rendered:
        assert ids[: len(expected)] == expected, what
        assert ids.count(tiny.IDS[tiny.BEGIN]) == expected.count(tiny.IDS[tiny.BEGIN]), what


def test_a_side_ends_with_the_end_of_turn_and_what_the_template_writes_after_it_is_cut(
    tiny_project: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    tiny_project(template=tiny.CHAT, end_tokens=[tiny.IDS[tiny.END], tiny.IDS[tiny.TURN]])
    run("reward", epochs=1)
    sides = dict(shown(capsys.readouterr().err))
    assert sides["first chosen"] == tiny.ids("user : the child drops <turn> over assistant : the plate is calm <turn>")
    assert sides["first rejected"] == tiny.ids("user : the child drops <turn> over assistant : the plate is harsh <turn>")


def spy(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Completion]:
    """Every completion that a module samples from now on."""
    seen: list[Completion] = []
    sample = module.sample

    def watched(*arguments: Any) -> Any:
        sampled = sample(*arguments)
        seen.extend(completion for group in sampled for completion in group)
        return sampled

    monkeypatch.setattr(module, "sample", watched)
    return seen


def test_any_of_several_end_tokens_ends_a_completion_in_training_and_evaluation(
    tiny_project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    ends = [tiny.IDS[tiny.END], *tiny.ids("red green blue cup plate")]
    tiny_project(end_tokens=ends)
    assert base_record.read_base().end_tokens == ends
    run("reward", epochs=1)
    for stage, module, more in (("grpo", rounds, {"group": 8, "empty_completions": "score"}), ("evaluate", comparison, {"samples": 8})):
        seen = spy(monkeypatch, module)
        found = run(stage, max_new_tokens=4, **more).report
        assert len({completion.ids[-1] for completion in seen if completion.ended}) > 1
        assert all(token not in ends for completion in seen for token in completion.content)
        assert all(len(completion.ids) == 4 for completion in seen if not completion.ended)
        truncated = sum(not completion.ended for completion in seen) / len(seen)
        mean = (found["base_truncated"] + found["policy_truncated"]) / 2 if stage == "evaluate" else found["history"][0]["truncated"]
        assert 0 < truncated < 1
        assert mean == pytest.approx(truncated)


def test_what_the_tokenizer_pads_with_changes_no_number(tiny_project: Callable[..., None], tmp_path: Path):
    trained = []
    for pad in (None, tiny.END):
        tiny_project(begins=True, pad=pad)
        run("reward", epochs=1)
        run("grpo", max_new_tokens=4, empty_completions="score")
        trained.append({path: {name: t.tobytes() for name, t in artifacts.read(path, kind).tensors.items()} for path, kind in ARTIFACTS})
    assert trained[0] == trained[1]


ARTIFACTS = ((layout.REWARD, artifacts.REWARD), (layout.POLICY, artifacts.ADAPTER))


def test_a_prompt_and_new_tokens_beyond_the_models_positions_are_refused_with_the_three_numbers(tiny_project: Callable[..., None]):
    tiny_project("gpt2")
    run("reward", epochs=1, targets=["c_attn"])
    prompts(" ".join(["the"] * 50))
    records.write_prompts(layout.HELDOUT_PROMPTS, [Prompt(" ".join(["the"] * 50))])
    run("grpo", targets=["c_attn"], max_new_tokens=14, empty_completions="score", max_sequence=50)  # 64 are just filled
    before = written()
    for stage, key in (("grpo", "grpo.max_new_tokens"), ("evaluate", "evaluate.max_new_tokens")):
        with pytest.raises(TrainingError) as caught:
            run(stage, max_new_tokens=32, **({"targets": ["c_attn"]} if stage == "grpo" else {}))
        (line,) = caught.value.lines()
        assert line.startswith(f"{key}: the longest prompt of 50 tokens and 32 new ones make 82, beyond the model's 64 positions")
    assert written() == before


def test_a_pair_beyond_the_models_positions_is_refused(tiny_project: Callable[..., None]):
    tiny_project("gpt2")
    records.write_pairs(layout.TRAIN_PAIRS, [Pair(None, " ".join(["the"] * 70), "a")])
    with pytest.raises(TrainingError) as caught:
        run("reward", epochs=1, targets=["c_attn"], max_sequence=512)
    # 70 words and the end token
    assert caught.value.lines()[0].startswith("reward.max_sequence: the longest side of 71 tokens make 71, beyond the model's 64 positions")


def test_a_base_that_only_ever_ends_is_refused_where_empty_completions_are_and_trains_where_they_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_project: Callable[..., None]
):
    built = tiny.model

    def ending(kind: str) -> Any:
        model = built(kind)
        model.lm_head.bias.data[tiny.IDS[tiny.END]] = 1e3
        return model

    monkeypatch.setattr(tiny, "model", ending)
    tiny_project("gptj")
    with pytest.raises(TrainingError) as caught:
        run("grpo", reward="length")
    (line,) = caught.value.lines()
    assert line.startswith("grpo.empty_completions: iteration 1/1: every group was refused: ")
    assert "a sampled completion was empty, so this group has nothing to score" in line
    assert not layout.POLICY.exists()
    found = run("grpo", reward="length", empty_completions="score").report
    assert (found["mean_reward"], found["history"][0]["mean_completion_tokens"], found["history"][0]["truncated"]) == (0.0, 0.0, 0.0)
    assert found["refused_groups"] == 0
    assert curve()[0]["mean_reward"] == "0.0"


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_on_a_base_in_half_precision_the_identities_hold_and_the_adapters_are_float32(validated_project: Path, precision: str):
    record = json.loads(layout.BASE_RECORD.read_text())
    layout.BASE_RECORD.write_text(json.dumps(record | {"precision": precision}))
    assert run("reward").report["first_loss"] == 0.6931471824645996
    found = run("grpo").report
    assert (found["precision"], abs(found["first_loss"]) < 1e-6) == (precision, True)
    assert curve()[0]["mean_kl"] == "0.0"
    # the scores of a group are apart by less than half precision can tell, and count all the same
    assert all(entry["reward_spread"] > 0 and math.isfinite(entry["policy_loss"]) for entry in found["history"])
    for path, kind in ((layout.REWARD, artifacts.REWARD), (layout.POLICY, artifacts.ADAPTER)):
        tensors = artifacts.read(path, kind).tensors
        assert {tensor.dtype.name for tensor in tensors.values()} == {"float32"}
        assert sum((tensor != 0).any() for name, tensor in tensors.items() if "lora_B" in name) == 8
