"""The evaluate stage: its report against what samples.jsonl holds, nulls where nothing is held out, and what it leaves alone."""

import csv
import dataclasses
import hashlib
import html
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.core import layout
from stages.core.errors import ArtifactError, TrainingError
from stages.files import artifacts, records
from stages.files.records import Pair, Prompt
from tests.stage_settings import run, written

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAIRS = "accuracy accuracy_low accuracy_high tied_pairs mean_score_margin mean_score_margin_low mean_score_margin_high".split()
GAIN = "base_mean_reward policy_mean_reward reward_gain reward_gain_low reward_gain_high win_rate win_rate_low win_rate_high".split()
PROMPTS = [
    *GAIN,
    *"mean_kl mean_kl_low mean_kl_high".split(),
    *(f"{side}_{key}" for side in ("base", "policy") for key in ("mean_completion_tokens", "truncated", "empty")),
]
COUNTS = ["heldout_pairs", "evaluated_pairs", "heldout_prompts", "evaluated_prompts", "samples"]
SETTINGS = {"temperature", "top_p", "max_new_tokens", "max_sequence", "seed", "bootstrap", "kl_temperature"}
BESIDE = {"reward_length_correlation", "skipped_long_pairs", "equal_tokens_pairs", "skipped_long_prompts", "training_reward", *SETTINGS}
"""What else the report says."""


def report() -> dict[str, Any]:
    return json.loads(layout.report("evaluate").read_text())


def samples() -> list[dict[str, Any]]:
    return [json.loads(line) for line in layout.SAMPLES.read_text("utf-8").splitlines()]


def test_the_report_has_the_documented_keys_and_only_scalars(trained_project: Path):
    document = run("evaluate")
    assert document.path == Path("artifacts/evaluate/samples.jsonl")
    assert document.report == report()
    assert set(report()) == {*COUNTS, *PAIRS, *PROMPTS, *BESIDE}
    scalars = {key for key, value in report().items() if isinstance(value, str | int | float)}
    assert set(report()) - scalars <= {"reward_length_correlation"}  # null where all completions are of one length
    assert [report()[key] for key in COUNTS] == [3, 3, 3, 3, 2]
    assert report()["training_reward"] == "reward:artifacts/reward/reward.safetensors"


def test_the_report_says_what_the_samples_say(trained_project: Path):
    found = run("evaluate", samples=3).report
    rows = samples()
    assert list(rows[0]) == "prompt draw base policy base_reward policy_reward".split()
    heldout = [row.prompt for row in records.load_prompts(layout.HELDOUT_PROMPTS)]
    assert [(row["prompt"], row["draw"]) for row in rows] == [(prompt, draw) for prompt in heldout for draw in range(3)]
    base, policy = (np.array([row[f"{side}_reward"] for row in rows]) for side in ("base", "policy"))
    assert found["base_mean_reward"] == pytest.approx(base.mean())
    assert found["policy_mean_reward"] == pytest.approx(policy.mean())
    assert found["reward_gain"] == pytest.approx((policy - base).mean())
    assert found["win_rate"] == pytest.approx(
        np.mean([1.0 if p > b else 0.5 if p == b else 0.0 for p, b in zip(policy, base, strict=True)])
    )
    # the interval is over prompts: it lies within the prompts' own mean differences
    gains = (policy - base).reshape(3, 3).mean(1)
    assert gains.min() <= found["reward_gain_low"] <= found["reward_gain"] <= found["reward_gain_high"] <= gains.max()
    assert found["mean_kl"] > 0


def test_rewards_are_those_of_the_reward_model_in_plain_transformers(trained_project: Path):
    run("evaluate", samples=1, max_new_tokens=5)
    model = AutoModelForCausalLM.from_pretrained(layout.BASE_CHECKPOINT)
    tokenizer = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)
    trained = artifacts.read(layout.REWARD, artifacts.REWARD).tensors
    with torch.no_grad():  # the adapter merged into the weights by hand: W + alpha/rank * B A
        for name, module in model.named_modules():
            if name.endswith(("q_proj", "v_proj")):
                a, b = (torch.from_numpy(trained[f"base_model.model.{name}.lora_{side}.weight"]) for side in "AB")
                module.weight += 16 / 8 * b @ a
        for row in samples():
            for side in ("base", "policy"):
                ids = tokenizer(row["prompt"]).input_ids + tokenizer(row[side], add_special_tokens=False).input_ids
                if len(tokenizer(row[side], add_special_tokens=False).input_ids) < 5:  # not truncated: read at its end token
                    ids.append(tokenizer.eos_token_id)
                hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
                expected = float(hidden @ torch.from_numpy(trained["reward.head"][0]))
                assert row[f"{side}_reward"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_policy_that_is_its_base_ties_every_draw(trained_project: Path):
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    still = {name: tensor * (0 if "lora_B" in name else 1) for name, tensor in policy.tensors.items()}
    artifacts.write(layout.POLICY, dataclasses.replace(policy, tensors=still))
    found = run("evaluate").report
    assert all(row["base"] == row["policy"] and row["base_reward"] == row["policy_reward"] for row in samples())
    assert [found[key] for key in ("reward_gain", "win_rate", "mean_kl", "win_rate_low", "win_rate_high")] == [0.0, 0.5, 0.0, 0.5, 0.5]


def test_a_policy_trained_on_length_is_measured_by_length_too(trained_project: Path):
    run("grpo", reward="length", max_new_tokens=4)
    found = run("evaluate").report
    assert found["training_reward"] == "length"
    assert set(found) == {*COUNTS, *PAIRS, *PROMPTS, *BESIDE, *(f"training_{key}" for key in ("rated_prompts", *GAIN))}
    rows = samples()
    for side in ("base", "policy"):
        assert found[f"training_{side}_mean_reward"] == pytest.approx(np.mean([row[f"training_{side}_reward"] for row in rows]))
        assert found[f"training_{side}_mean_reward"] == pytest.approx(found[f"{side}_mean_completion_tokens"])
        # every token of the toy is a word or a stop
        words = [len(row[side].replace(".", " . ").split()) for row in rows]
        assert words == [row[f"training_{side}_reward"] for row in rows]
    assert found["training_reward_gain"] == pytest.approx(found["training_policy_mean_reward"] - found["training_base_mean_reward"])


def rewards_of_ones_own() -> None:
    """The shipped reward functions where the current folder is, and rows that have a column for them, but the second."""
    shutil.copytree(ROOT / layout.REWARDS, layout.REWARDS)
    for path in (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row | ({"answer": "3"} if number != 1 else {})) + "\n" for number, row in enumerate(rows)))


def test_a_policy_trained_on_several_rewards_is_measured_by_each_of_them(trained_project: Path):
    rewards_of_ones_own()
    parts = [
        {"source": "number_answer", "weight": 1.0},
        {"source": "overlength", "weight": 0.5, "arguments": {"cap": 4, "margin": 2}},
        {"source": layout.REWARD.as_posix(), "weight": 0.25, "name": "trait"},
    ]
    trained = run("grpo", reward=parts, max_new_tokens=4, updates=2).report
    assert trained["reward"] == (
        "1 * function:number_answer + 0.5 * function:overlength(cap=4, margin=2) + 0.25 * reward:artifacts/reward/reward.safetensors"
    )
    assert list(trained["history"][0]["parts"]) == ["number_answer", "overlength", "trait"]
    assert trained["history"][0]["parts"]["number_answer"]["abstained"] == pytest.approx(1 / trained["prompts"])
    with layout.curve("grpo").open() as stream:
        curve = list(csv.DictReader(stream))
    assert [row["part_number_answer"] for row in curve[:3]] == ["0.0", "0.0", ""]

    found = run("evaluate", max_new_tokens=4).report
    rows = samples()
    assert found["training_reward"] == trained["reward"]
    assert found["training_rated_prompts"] == found["heldout_prompts"]
    for name, rated in (("number_answer", found["heldout_prompts"] - 1), ("overlength", found["heldout_prompts"])):
        own = found["training_parts"][name]
        values = {side: [row[f"training_{side}_parts"][name] for row in rows] for side in ("base", "policy")}
        assert own["rated_prompts"] == rated
        for side, each in values.items():
            assert own[f"{side}_mean_reward"] == pytest.approx(np.mean([value for value in each if value is not None]))
    for row in rows:
        for side in ("base", "policy"):
            own = row[f"training_{side}_parts"]
            assert own["trait"] == row[f"{side}_reward"]
            total = (own["number_answer"] or 0) + 0.5 * own["overlength"] + 0.25 * own["trait"]
            assert row[f"training_{side}_reward"] == pytest.approx(total)


def test_a_reward_that_abstains_on_some_prompts_is_measured_on_the_others(trained_project: Path):
    rewards_of_ones_own()
    trained = run("grpo", reward="number_answer", max_new_tokens=4).report
    assert (trained["reward"], trained["refused_groups"], trained["unrated_groups"]) == ("function:number_answer", 1, 1)
    found = run("evaluate", max_new_tokens=4).report
    assert found["training_rated_prompts"] == found["heldout_prompts"] - 1
    assert "training_parts" not in found
    assert [row["training_policy_reward"] for row in samples()].count(None) == found["samples"]


def test_the_page_shows_every_draw_of_the_samples_and_where_they_come_from(trained_project: Path):
    found = run("evaluate").report
    page = layout.EVALUATION_PAGE.read_text("utf-8")
    shown = html.unescape(page)
    for row in samples():
        assert row["prompt"] in shown
        assert f">{row['base']}\n" in shown
        assert f">{row['policy']}\n" in shown
    assert page.count("<tr data-number=") == len(samples()) == found["evaluated_prompts"] * found["samples"]
    for path in (layout.HELDOUT_PROMPTS, layout.HELDOUT_PAIRS, layout.TRAIN_PROMPTS, layout.TRAIN_PAIRS, layout.POLICY, layout.REWARD):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in page
    assert json.loads(layout.BASE_RECORD.read_text())["fingerprint"] in page
    assert torch.__version__.partition("+")[0] in page
    assert str(trained_project) not in page


def test_a_curve_of_another_training_is_refused(trained_project: Path):
    layout.curve("grpo").write_text("step,loss\n1,0.5\n")
    before = written()
    with pytest.raises(ArtifactError, match=r"^reports/plots/grpo\.csv: it has 1 steps, and the artifact was trained for 3"):
        run("evaluate")
    assert written() == before


def test_nothing_held_out_gives_nulls_and_a_line_that_says_so(trained_project: Path, capsys: pytest.CaptureFixture[str]):
    run("validate")
    capsys.readouterr()
    found = run("evaluate").report
    assert set(found) == {*COUNTS, *PAIRS, *PROMPTS, *BESIDE}
    assert [found[key] for key in COUNTS] == [0, 0, 0, 0, 2]
    assert all(found[key] is None for key in (*PAIRS, *PROMPTS))
    assert layout.SAMPLES.read_bytes() == b""
    assert capsys.readouterr().err.splitlines()[-4:-2] == [
        f"no {rows} are held out (data.heldout_fraction), so what would be measured on them is null" for rows in ("prompts", "pairs")
    ]


@pytest.mark.parametrize(("empty", "nulls", "numbers"), [("prompts", PROMPTS, PAIRS), ("pairs", PAIRS, PROMPTS)])
def test_where_one_of_the_two_is_held_out_only_the_others_figures_are_null(
    trained_project: Path, empty: str, nulls: list[str], numbers: list[str]
):
    (layout.VALIDATE / f"{empty}.heldout.jsonl").write_bytes(b"")
    found = run("evaluate").report
    assert all(found[key] is None for key in nulls)
    assert all(found[key] is not None for key in numbers)


def test_what_it_reads_is_left_byte_for_byte_and_the_seed_decides_what_it_writes(trained_project: Path):
    before = written()
    files = []
    for seed in (7, 7, 8):
        run("evaluate", seed=seed)
        files.append(written())
    assert {path: files[2][path] for path in before} == before
    written_anew = {"artifacts/evaluate/samples.jsonl", "artifacts/evaluate/report.html", "reports/evaluate.json"}
    assert set(files[0]) - set(before) == written_anew
    assert files[0] == files[1]
    assert files[2][layout.SAMPLES.as_posix()] != files[0][layout.SAMPLES.as_posix()]


def test_a_temperature_of_zero_gives_every_draw_the_same_greedy_text(trained_project: Path):
    run("evaluate", temperature=0, samples=3)
    rows = samples()
    for side in ("base", "policy"):
        assert len({(row["prompt"], row[side]) for row in rows}) == 3
    model = AutoModelForCausalLM.from_pretrained(layout.BASE_CHECKPOINT)
    tokenizer = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)
    for row in rows[::3]:
        inputs = tokenizer(row["prompt"], return_tensors="pt")
        theirs = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            do_sample=False,
            max_new_tokens=6,
            pad_token_id=tokenizer.eos_token_id,
        )
        assert row["base"] == tokenizer.decode(theirs[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)


def test_long_rows_are_skipped_whole_counted_and_named(trained_project: Path, capsys: pytest.CaptureFixture[str]):
    # tokens with begin (and end): prompts 5 and 7; sides 6, 14 and 6, 6
    records.write_prompts(layout.HELDOUT_PROMPTS, [Prompt("the sister drops the cup."), Prompt("the guest cries.")])
    records.write_pairs(
        layout.HELDOUT_PAIRS,
        [
            Pair(None, "please rest gently.", "just leave now. you are awful. it is awful."),
            Pair(None, "please rest gently.", "just stop now."),
        ],
    )
    found = run("evaluate", max_sequence=6).report
    for rows in ("prompts", "pairs"):
        assert [found[f"{key}_{rows}"] for key in ("heldout", "evaluated", "skipped_long")] == [2, 1, 1]
    assert found["reward_gain_low"] is None  # one prompt says nothing of the spread
    assert {row["prompt"] for row in samples()} == {"the guest cries."}
    said = capsys.readouterr().err
    assert "skipped 1 prompts longer than max_sequence 6, of up to 7 tokens: prompt 0\n" in said
    assert "skipped 1 pairs longer than max_sequence 6, of up to 14 tokens: pair 0\n" in said


def test_a_refused_run_leaves_every_earlier_output_as_it_was(trained_project: Path):
    run("evaluate")
    before = written()
    with pytest.raises(TrainingError, match="every prompt is longer than the sequence limit, so there is nothing to evaluate on"):
        run("evaluate", max_sequence=1)
    assert written() == before
