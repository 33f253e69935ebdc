"""The validate stage: its files, its report, what it says, what it refuses and then leaves alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages import validate
from stages.core import layout
from stages.core.errors import DataError, SettingsError
from stages.core.settings.data import Data
from stages.files import records
from stages.files.records import Pair

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
OUTPUTS = (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS, layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS, layout.report("validate"))
PAIR = {"positive": "the sea is calm", "negative": "the sea is harsh"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 40 prompts and 20 pairs under data/, which is the current one."""
    monkeypatch.chdir(tmp_path)
    layout.DATA.mkdir()
    write_prompts([f"prompt {number}" for number in range(40)])
    write_pairs([{"positive": f"calm sea {number}", "negative": f"harsh sea {number}"} for number in range(20)])
    return tmp_path


def write_prompts(prompts: list[Any]) -> None:
    (layout.DATA / "prompts.json").write_text(json.dumps({"prompts": prompts}))


def write_pairs(pairs: list[Any]) -> None:
    (layout.DATA / "pairs.json").write_text(json.dumps({"trait_name": "calm", "pairs": pairs}))


def params(
    heldout_fraction: float = 0.3, seed: int = 0, prompts: str = "data/prompts.json", pairs: str = "data/pairs.json"
) -> validate.Params:
    return validate.Params(Data(prompts=prompts, pairs=pairs, heldout_fraction=heldout_fraction, seed=seed))


def written() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in OUTPUTS}


def test_the_rows_of_both_files_are_written_once_and_the_report_counts_them(project: Path):
    document = validate.main(params())
    prompts = [records.load_prompts(path) for path in (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS)]
    pairs = [records.load_pairs(path) for path in (layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS)]
    assert sorted(row.prompt for rows in prompts for row in rows) == sorted(f"prompt {number}" for number in range(40))
    assert {pair.chosen for rows in pairs for pair in rows} == {f"calm sea {number}" for number in range(20)}
    assert all(pair.trait_name == "calm" for rows in pairs for pair in rows)
    assert document.path == layout.VALIDATE
    assert document.report == json.loads(layout.report("validate").read_text())
    # Words: prompt N 40 times, calm sea N and harsh sea N 20 times, 200 in all; prompt, calm, harsh, sea, 0 to 39 are distinct.
    assert document.report == {
        "trait_name": "calm",
        "prompts": 40,
        "train_prompts": len(prompts[0]),
        "heldout_prompts": len(prompts[1]),
        "pairs": 20,
        "train_pairs": len(pairs[0]),
        "heldout_pairs": len(pairs[1]),
        "heldout_fraction": 0.3,
        "prompts_format": "json",
        "pairs_format": "json",
        "duplicate_prompts": 0,
        "equal_sides": 0,
        "duplicate_pairs": 0,
        "swapped_pairs": 0,
        "refusal_sides": 0,
        "length_imbalance": 0,
        "diversity": 44 / 200,
    }
    assert all(len(rows) > 0 for rows in (*prompts, *pairs))


def test_the_same_data_and_seed_give_the_same_bytes_and_another_seed_others(project: Path):
    validate.main(params())
    first = written()
    validate.main(params())
    assert written() == first
    validate.main(params(seed=1))
    assert written()[layout.HELDOUT_PROMPTS] != first[layout.HELDOUT_PROMPTS]


def test_a_fraction_of_zero_leaves_whole_training_files_and_empty_held_out_ones(project: Path):
    report = validate.main(params(heldout_fraction=0)).report
    assert (report["train_prompts"], report["heldout_prompts"], report["train_pairs"], report["heldout_pairs"]) == (40, 0, 20, 0)
    assert records.load_prompts(layout.HELDOUT_PROMPTS) == []
    assert records.load_pairs(layout.HELDOUT_PAIRS) == []


def test_what_is_suspect_is_counted_and_named_on_stderr(project: Path, capsys: pytest.CaptureFixture[str]):
    write_prompts([*(f"prompt {number}" for number in range(20)), "prompt 3"])
    write_pairs(
        [
            *({"positive": f"calm {number}", "negative": f"harsh {number}"} for number in range(20)),
            {"positive": "same", "negative": "same"},
            {"positive": "calm 1", "negative": "harsh 1"},
            {"positive": "harsh 2", "negative": "calm 2"},
            {"positive": "calm", "negative": "I'm sorry, but I cannot help with that."},
        ]
    )
    report = validate.main(params()).report
    counted = ("duplicate_prompts", "equal_sides", "duplicate_pairs", "swapped_pairs", "refusal_sides", "length_imbalance")
    assert {key: report[key] for key in counted} == dict.fromkeys(counted, 1)
    assert report["pairs"] == 23
    out, err = capsys.readouterr()
    assert out == ""
    said = {line.split(": ")[0]: line for line in err.splitlines()}
    assert {key: said[key].rpartition("data/")[2] for key in counted} == {
        "duplicate_prompts": "prompts.json:1 prompts[20]",
        "equal_sides": "pairs.json:1 pairs[20]",
        "duplicate_pairs": "pairs.json:1 pairs[21]",
        "swapped_pairs": "pairs.json:1 pairs[22]",
        "refusal_sides": "pairs.json:1 pairs[23] rejected",
        "length_imbalance": "pairs.json:1 pairs[23]",
    }
    assert all(
        "same" not in (pair.chosen, pair.rejected)
        for path in (layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS)
        for pair in records.load_pairs(path)
    )


def test_duplicates_are_kept_and_fall_on_one_side(project: Path):
    write_prompts([f"prompt {number}" for number in range(20)] * 2)
    write_pairs([{"positive": f"calm {number}", "negative": f"harsh {number}"} for number in range(20)] * 2)
    report = validate.main(params()).report
    assert (report["prompts"], report["duplicate_prompts"], report["pairs"], report["duplicate_pairs"]) == (40, 20, 40, 20)
    train, heldout = ({row.prompt for row in records.load_prompts(path)} for path in (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS))
    assert train.isdisjoint(heldout)
    sides = ({row.chosen for row in records.load_pairs(path)} for path in (layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS))
    assert set.isdisjoint(*sides)


def test_a_prompt_held_out_of_the_prompts_is_not_trained_on_in_the_pairs(project: Path):
    texts = [f"prompt {number}" for number in range(40)]
    records.write_pairs(layout.DATA / "pairs.json", [Pair(f" {text}", "a b", "c d") for text in texts])
    validate.main(params())
    heldout = {row.prompt for row in records.load_prompts(layout.HELDOUT_PROMPTS)}
    assert heldout.isdisjoint({(row.prompt or "").strip() for row in records.load_pairs(layout.TRAIN_PAIRS)})


def test_sizes_and_keys_that_nothing_reads_are_said(project: Path, capsys: pytest.CaptureFixture[str]):
    (layout.DATA / "prompts.json").write_text('{"note": 1, "prompts": ["a"]}')
    validate.main(params(heldout_fraction=0))
    said = capsys.readouterr().err.splitlines()
    assert "data/prompts.json: note is not a key that is read here; its value changes nothing" in said
    assert "prompts: 1 to train on, 0 held out" in said
    assert "pairs: 20 to train on, 0 held out" in said


def leave() -> None:
    """Leaves the data as it is."""


@pytest.mark.parametrize(
    ("broken", "settings", "error", "lines"),
    [
        (lambda: write_prompts([]), {}, DataError, ["data/prompts.json:1:13: prompt set contains no prompts"]),
        (lambda: write_pairs([]), {}, DataError, ["data/pairs.json:1:33: pair set calm contains no pairs"]),
        (
            lambda: write_pairs([{**PAIR, "negative": ""}]),
            {},
            DataError,
            ["data/pairs.json:1:78: pairs[0].negative is empty; pair set calm contains an empty positive or negative prompt"],
        ),
        (
            lambda: write_pairs([{"positive": "a", "negative": "a"}]),
            {},
            DataError,
            ["data/pairs.json:1 pairs[0]: pair set calm contains no pairs with differing sides"],
        ),
        (
            lambda: (write_prompts([None]), write_pairs([3])),
            {},
            DataError,
            ["data/prompts.json:1:14: prompts[0] is null", "data/pairs.json:1:34: pairs[0] is a number (3)"],
        ),
        (
            leave,
            {"heldout_fraction": 1 - 1e-12},
            DataError,
            ["data.heldout_fraction: 0.999999999999 holds out all 40 prompts, so there is nothing to train on"],
        ),
        (
            lambda: records.write_prompts(layout.DATA / "prompts.json", map(records.Prompt, map(str, range(10_000)))),
            {"heldout_fraction": 0.99},
            DataError,
            ["data.heldout_fraction: 0.99 holds out all 20 pairs, so there is nothing to train on"],
        ),
        (
            leave,
            {"prompts": "data/a", "pairs": "data/b"},
            SettingsError,
            ["data.prompts: data/a is not there", "data.pairs: data/b is not there"],
        ),
    ],
)
def test_a_refusal_names_what_is_wrong_and_leaves_earlier_outputs_untouched(
    project: Path, broken: Any, settings: dict[str, Any], error: type[DataError | SettingsError], lines: list[str]
):
    validate.main(params())
    before = written()
    broken()
    with pytest.raises(error) as caught:
        validate.main(params(**settings))
    assert [line[: len(start)] for line, start in zip(caught.value.lines(), lines, strict=True)] == lines
    assert written() == before


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "stages").symlink_to(ROOT / "stages")
    return subprocess.run([sys.executable, "-m", "stages.validate"], cwd=folder, capture_output=True, text=True, check=False)


def write_params(data: dict[str, Any]) -> None:
    layout.PARAMS.write_text(yaml.safe_dump({"data": data}))


DATA = {"prompts": "data/prompts.json", "pairs": "data/pairs.json", "heldout_fraction": 0.3, "seed": 0}


def test_run_as_a_module_it_prints_its_document_and_nothing_else_on_stdout(project: Path):
    write_params(DATA)
    done = run(project)
    assert done.returncode == 0, done.stderr
    report = json.loads(layout.report("validate").read_text())
    assert json.loads(done.stdout) == {"path": "artifacts/validate", "report": report}


@pytest.mark.parametrize(
    ("broken", "code", "line"),
    [
        ("data", 1, "data/prompts.json:1:13: prompt set contains no prompts; at least one is expected; add some"),
        ("settings", 2, "data.prompts: data/absent.json is not there; a file is expected; put it there or name another"),
    ],
)
def test_run_as_a_module_it_refuses_on_stderr_alone(project: Path, broken: str, code: int, line: str):
    write_prompts([])
    write_params(DATA if broken == "data" else {**DATA, "prompts": "data/absent.json"})
    done = run(project)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{line}\n")


def test_it_is_imported_without_what_takes_seconds():
    program = (
        "import sys, stages.validate; print(sorted({'torch', 'numpy', 'hydra', 'omegaconf', 'transformers', 'dvc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data in ../shared/data is not there")
def test_real_pairs_and_prompts_are_split_with_their_columns(project: Path):
    files = {"prompts": str(SHARED / "gsm8k_prompts.jsonl"), "pairs": str(SHARED / "gsm8k_pairs.jsonl")}
    report = validate.main(params(0.2, 0, **files)).report
    assert (report["prompts"], report["pairs"], report["trait_name"]) == (100, 240, None)
    assert (report["prompts_format"], report["pairs_format"]) == ("jsonl", "jsonl")
    assert report["heldout_prompts"] > 0
    train = records.load_pairs(layout.TRAIN_PAIRS)
    assert {row.prompt for row in train}.isdisjoint({row.prompt for row in records.load_pairs(layout.HELDOUT_PAIRS)})
    assert all("answer" in row.extra for row in records.load_prompts(layout.TRAIN_PROMPTS))
