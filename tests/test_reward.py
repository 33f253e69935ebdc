"""The reward stage: its files, its report, what it says, and rows that do not fit."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.core import layout
from stages.core.errors import TrainingError
from stages.files import artifacts, base_record, records
from stages.files.records import Pair
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.stage_settings import run, written

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
REPORT = (
    "trait_name pairs trained_pairs skipped_long epochs steps trainable_tensors trainable_parameters first_loss final_loss "
    "mean_final_epoch_loss accuracy tied_pairs mean_chosen_score mean_rejected_score mean_score_margin rank alpha targets layers "
    "learning_rate accumulation batch chat_template precision"
).split()
ROWS = {"shortest_tokens", "median_tokens", "longest_tokens", "equal_tokens", "unknown_tokens"}
WHO = ("the child", "the friend", "the guest", "the brother", "the sister")
NOTES = {"special_strings", "labels_in_texts", "rewritten_texts", "opened_otherwise", "merged_tokens"}
BESIDE = {*ROWS, *NOTES, "seed", "pairs_sha256"}
"""What else the report says."""


def report() -> dict[str, Any]:
    return json.loads(layout.report("reward").read_text())


def curve() -> list[dict[str, str]]:
    with layout.curve("reward").open() as stream:
        return list(csv.DictReader(stream))


def pairs(*sides: tuple[str, str], prompt: str | None = None) -> None:
    """Puts these pairs, chosen and rejected, in the place of those to train on."""
    records.write_pairs(layout.TRAIN_PAIRS, [Pair(prompt, chosen, rejected, "calm") for chosen, rejected in sides])


def test_its_outputs_are_the_artifact_its_report_and_the_curve(trained_project: Path):
    for name in ("artifacts/reward", "reports/reward.json", "reports/plots/reward.csv"):
        assert (trained_project / name).exists()
    sidecar = json.loads(layout.REWARD.with_suffix(".json").read_text())
    assert (sidecar["kind"], sidecar["report"]) == ("reward", report())
    assert sidecar["base_fingerprint"] == base_record.read_base().fingerprint


def test_the_report_has_the_documented_keys_and_scalars_except_targets_and_layers(trained_project: Path):
    found = report()
    assert set(found) == {*REPORT, *BESIDE}
    assert {key for key, value in found.items() if not isinstance(value, str | int | float)} == {"targets", "layers"}
    assert (found["targets"], found["layers"]) == (["q_proj", "v_proj"], [0, 1, 2, 3])
    assert (found["trait_name"], found["chat_template"], found["precision"]) == ("calm", "absent", "f32")
    assert (found["trainable_tensors"], found["trainable_parameters"]) == (17, 7232)
    assert (found["rank"], found["alpha"], found["learning_rate"], found["accumulation"], found["batch"]) == (8, 16, 5e-3, 4, 4)


def test_the_curve_has_a_row_per_step_and_agrees_with_the_report(trained_project: Path):
    rows, found = curve(), report()
    assert list(rows[0]) == ["step", "epoch", "loss", "accuracy", "mean_score_margin", "grad_norm", "learning_rate"]
    # 5 pairs in windows of 4: 2 steps an epoch
    assert [(row["step"], row["epoch"]) for row in rows] == [("1", "1"), ("2", "1"), ("3", "2"), ("4", "2"), ("5", "3"), ("6", "3")]
    assert (found["pairs"], found["trained_pairs"], found["steps"]) == (5, 5, 6)
    assert (float(rows[0]["loss"]), float(rows[-1]["loss"])) == (found["first_loss"], found["final_loss"])
    assert found["first_loss"] == 0.6931471824645996
    # the last epoch's windows hold 4 pairs and 1
    last = [float(row["loss"]) for row in rows[-2:]]
    assert math.isclose(found["mean_final_epoch_loss"], (4 * last[0] + last[1]) / 5)
    assert math.isclose(found["mean_score_margin"], found["mean_chosen_score"] - found["mean_rejected_score"])


def test_a_second_run_begins_the_history_file_anew_and_gives_the_same_files_and_another_seed_others(validated_project: Path):
    files = []
    for seed in (42, 42, 1):
        document = run("reward", epochs=1, seed=seed)
        assert (document.path, document.report) == (Path("artifacts/reward/reward.safetensors"), report())
        lines = [json.loads(line) for line in layout.history("reward").read_text().splitlines()]
        assert [{key: str(value) for key, value in line.items()} for line in lines] == curve()
        assert len(lines) == 2
        files.append(written())
    assert files[0] == files[1]
    assert files[2][layout.REWARD.as_posix()] != files[0][layout.REWARD.as_posix()]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
def test_tensor_names_are_pefts_and_the_head(trained_project: Path):
    model = AutoModelForCausalLM.from_pretrained(layout.BASE_CHECKPOINT)
    theirs = get_peft_model_state_dict(get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"])))
    ours = artifacts.read(layout.REWARD, artifacts.REWARD).tensors
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        **{name: tuple(tensor.shape) for name, tensor in theirs.items()},
        "reward.head": (1, 64),
    }


SCORES = """
import json, sys
from stages.core import layout
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, records
from stages.model import checkpoint, device
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from tests import tiny
base = base_record.read_base()
found = checkpoint.find(base)
model, tokenizer = checkpoint.load_weights(found, device.prepare(Runtime("cpu", 1, 64, False, 1, 1, 1, None, False))), found.tokenizer
reward_model = RewardModel.trained(tiny.adapted(model), artifacts.read(layout.REWARD, artifacts.REWARD))
reward_model.adapters.use(reward_model.name)
sides = [side for pair in map(Renderer(tokenizer, base).pair, records.load_pairs(layout.TRAIN_PAIRS)) for side in pair]
print(json.dumps(reward_model.scores(tiny.whole(sides)).tolist()))
"""


def scores_of(reward_model: RewardModel, renderer: Renderer) -> list[float]:
    sides = [side for pair in map(renderer.pair, records.load_pairs(layout.TRAIN_PAIRS)) for side in pair]
    with torch.no_grad(), reward_model.adapters.using(reward_model.name, then=None):
        return reward_model.scores(tiny.whole(sides)).tolist()


@pytest.fixture
def just_trained(validated_project: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Scores of the training pairs by the model in memory, at the end of its training."""
    kept: list[Any] = []
    fresh = RewardModel.fresh
    monkeypatch.setattr(RewardModel, "fresh", lambda *arguments: kept.append(fresh(*arguments)) or kept[0])
    run("reward", epochs=1)
    base = base_record.read_base()
    return scores_of(kept[0], Renderer(AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT), base))


def test_the_artifact_scores_exactly_as_the_model_that_was_just_trained(just_trained: list[float]):
    base = base_record.read_base()
    model, tokenizer = tiny.load(base)
    loaded = RewardModel.trained(tiny.adapted(model), artifacts.read(layout.REWARD, artifacts.REWARD))
    assert scores_of(loaded, Renderer(tokenizer, base)) == just_trained
    assert len(set(just_trained)) == 10


@pytest.mark.slow
def test_the_artifact_scores_exactly_the_same_in_a_new_process(just_trained: list[float]):
    done = subprocess.run([sys.executable, "-c", SCORES], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == just_trained


def test_a_pair_is_skipped_when_only_its_rejected_side_is_too_long_and_kept_at_the_limit(
    validated_project: Path, capsys: pytest.CaptureFixture[str]
):
    # tokens with begin and end: 6, 6 | 6, 7 | 7, 6 | 5, 6
    rest = "please rest gently ."
    pairs((rest, "just leave now ."), (rest, "you must leave now ."), ("please rest gently . .", rest), ("please rest .", rest))
    document = run("reward", max_sequence=6, epochs=1)
    assert (document.report["pairs"], document.report["trained_pairs"], document.report["skipped_long"]) == (4, 2, 2)
    assert "skipped 2 pairs longer than max_sequence 6, of up to 7 tokens: pair 1, 2\n" in capsys.readouterr().err


def test_skipped_pairs_change_nothing_in_what_is_trained(validated_project: Path):
    rest = "please rest gently ."
    pairs((rest, "just leave now ."), ("please rest .", rest))
    run("reward", max_sequence=6, epochs=2)
    alone = artifacts.read(layout.REWARD, artifacts.REWARD).tensors
    pairs((rest, "just leave now ."), (rest, "you must leave now ."), ("please rest .", rest))
    run("reward", max_sequence=6, epochs=2)
    beside = artifacts.read(layout.REWARD, artifacts.REWARD).tensors
    assert all(np.array_equal(alone[name], beside[name]) for name in alone)


def test_lengths_and_the_first_rendering_are_shown_in_text_and_ids(validated_project: Path, capsys: pytest.CaptureFixture[str]):
    pairs(("please rest.", "just leave now."), ("please wait.", "just stop."))
    run("reward", epochs=1)
    tokenizer = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)
    said = capsys.readouterr().err.splitlines()
    start = said.index("2 pairs of 5 to 6 tokens, median 6")
    chosen, rejected = ([*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in ("please rest.", "just leave now."))
    assert said[start + 1 : start + 3] == [
        f"first chosen '<s> please rest. </s>' = {chosen}",
        f"first rejected '<s> just leave now. </s>' = {rejected}",
    ]
    assert "steps are appended to .state/reward/history.jsonl" in said[start + 3 :]


def test_words_that_the_tokenizer_does_not_know_are_counted_in_the_report_and_named(
    validated_project: Path, capsys: pytest.CaptureFixture[str]
):
    pairs(("please breathe otters .", "just leave otters now otters ."), ("please wait .", "quokkas"))
    assert run("reward", epochs=1).report["unknown_tokens"] == 4
    assert " are unknown to the tokenizer: otters (3), quokkas (1)\n" in capsys.readouterr().err


def test_of_ten_pairs_one_states_no_preference_four_are_too_long_and_five_are_trained_on(
    based_project: Path, capsys: pytest.CaptureFixture[str]
):
    short = [{"prompt": f"{who} stumbles.", "chosen": " please rest.", "rejected": " just leave now."} for who in WHO]
    long = [{**row, "prompt": "please rest. " * 200} for row in short[:4]]
    same = {"prompt": "the child cries.", "chosen": " please rest.", "rejected": " please rest."}
    path = layout.DATA / "ten.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*short, *long, same)))
    validated = run("validate", pairs=path.as_posix(), heldout_fraction=0).report
    assert (validated["pairs_rows"], validated["equal_sides"], validated["pairs"]) == (10, 1, 9)
    capsys.readouterr()
    found = run("reward", max_sequence=128, epochs=1, accumulation=5).report
    assert (found["pairs"], found["trained_pairs"], found["skipped_long"], found["equal_tokens"]) == (9, 5, 4, 0)
    assert found["first_loss"] == 0.6931471824645996
    assert found["shortest_tokens"] <= 128 < 400 < found["longest_tokens"]
    assert (
        f"skipped 4 pairs longer than max_sequence 128, of up to {found['longest_tokens']} tokens: pair 5, 6, 7, 8"
        in capsys.readouterr().err.splitlines()
    )


def test_pairs_that_the_tokenizer_cannot_tell_apart_are_dropped_and_counted(validated_project: Path, capsys: pytest.CaptureFixture[str]):
    pairs(("please rest.", "just leave now."), ("otters", "quokkas"))
    found = run("reward", epochs=1).report
    assert (found["pairs"], found["trained_pairs"], found["skipped_long"], found["equal_tokens"]) == (2, 1, 0, 1)
    assert "dropped 1 pairs whose sides are the same tokens as rendered: pair 1" in capsys.readouterr().err.splitlines()


def test_the_recorded_run_learns_its_eight_calm_pairs(based_project: Path):
    run("validate")
    found = run("reward").report
    assert (found["pairs"], found["steps"], found["first_loss"]) == (8, 6, 0.6931471824645996)
    assert (found["accuracy"], found["tied_pairs"]) == (1.0, 0)
    assert found["mean_score_margin"] > 0
    assert found["final_loss"] < 0.6


def test_one_epoch_in_one_step_measures_ties_alone_and_writes_zeros_as_zeros(based_project: Path):
    run("validate")
    run("reward", epochs=1, accumulation=8)
    found = report()
    assert (found["accuracy"], found["mean_score_margin"], found["tied_pairs"], found["trained_pairs"]) == (0.0, 0.0, 8, 8)
    assert curve()[0]["accuracy"] == "0.0"


def test_a_seed_at_the_upper_bound_trains(validated_project: Path):
    assert run("reward", epochs=1, seed=2**63 - 1).report["seed"] == 2**63 - 1


def test_a_base_in_half_precision_trains_a_float32_adapter_and_head(validated_project: Path):
    run("base", precision="bf16")
    found = run("reward", epochs=1).report
    assert found["precision"] == "bf16"
    tensors = artifacts.read(layout.REWARD, artifacts.REWARD).tensors
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    assert np.abs(tensors["reward.head"]).max() > 0


def test_a_refused_run_leaves_every_earlier_output_as_it_was(trained_project: Path):
    before = written()
    with pytest.raises(TrainingError):
        run("reward", max_sequence=2)
    assert written() == before
