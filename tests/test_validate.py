"""The validate stage: its files, its report, what it says, what it refuses and then leaves alone."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages import validate
from stages.core import layout
from stages.core.errors import DataError, SettingsError
from stages.core.settings.data import Data
from stages.core.settings.schema import build_one_of
from stages.files import records, transcript
from stages.files.records import Message, Pair

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
OUTPUTS = (layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS, layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS, layout.report("validate"))
COUNTS = (
    *("duplicate_prompts", "damaged_prompts", "stringified_prompts", "leaked_prompts", "near_duplicate_prompts", "near_leaked_prompts"),
    *("equal_sides", "duplicate_pairs", "swapped_pairs", "refusal_sides", "length_imbalance", "damaged_pairs", "stringified_pairs"),
    *("leaked_pairs", "near_duplicate_pairs", "near_leaked_pairs"),
)
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


SETTINGS: dict[str, Any] = {
    "prompts": "data/prompts.json",
    "pairs": "data/pairs.json",
    "format": "auto",
    "columns": {"prompt": None, "chosen": None, "rejected": None},
    "heldout_fraction": 0.3,
    "seed": 0,
    "near_duplicates": 0,
}


def params(**changes: Any) -> validate.Params:
    built = build_one_of((Data,), "data", {**SETTINGS, **changes})
    assert built.problems == []
    return validate.Params(built.value)


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
        "prompts_rows": 40,
        "prompts": 40,
        "train_prompts": len(prompts[0]),
        "heldout_prompts": len(prompts[1]),
        "prompts_format": "json",
        "prompts_texts": "strings",
        "near_looked_at_prompts": 0,
        "pairs_rows": 20,
        "pairs": 20,
        "train_pairs": len(pairs[0]),
        "heldout_pairs": len(pairs[1]),
        "pairs_format": "json",
        "pairs_texts": "strings",
        "near_looked_at_pairs": 0,
        "implicit_prompts": 0,
        "heldout_fraction": 0.3,
        **{key: None if key.startswith("near_") else 0 for key in COUNTS},
        "pairs_without_prompt": 20,
        "diversity": 44 / 200,
        "first_rows": {"pairs_without_prompt": [f"data/pairs.json:1 pairs[{index}]" for index in range(3)]},
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


def test_run_as_a_module_it_prints_its_document_and_nothing_else_on_stdout(project: Path):
    write_params(SETTINGS)
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
    write_params(SETTINGS if broken == "data" else {**SETTINGS, "prompts": "data/absent.json"})
    done = run(project)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{line}\n")


def test_it_is_imported_without_what_takes_seconds():
    program = (
        "import sys, stages.validate; print(sorted({'torch', 'numpy', 'hydra', 'omegaconf', 'transformers', 'dvc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_near_ones_are_looked_for_among_the_first_rows_and_said(project: Path, capsys: pytest.CaptureFixture[str]):
    one, other = "the child drops the red cup and the guest is calm", "a friend hides the phone and nothing is fine any more"
    write_prompts([one, f"{one}!", other, f"{other}?", "a third one"])
    report = validate.main(params(heldout_fraction=0, near_duplicates=3)).report
    assert {key: report[key] for key in ("near_looked_at_prompts", "near_looked_at_pairs")} == {
        "near_looked_at_prompts": 3,
        "near_looked_at_pairs": 3,
    }
    assert (report["near_duplicate_prompts"], report["near_leaked_prompts"]) == (1, 0)
    assert report["first_rows"]["near_duplicate_prompts"] == ["data/prompts.json:1 prompts[1] like data/prompts.json:1 prompts[0]"]
    said = capsys.readouterr().err.splitlines()
    assert (
        "near_duplicate_prompts: 1 (nearly repeat an earlier row, kept): data/prompts.json:1 prompts[1] like data/prompts.json:1 prompts[0]"
        in said
    )
    assert validate.main(params(heldout_fraction=0, near_duplicates=100)).report["near_duplicate_prompts"] == 2


def test_every_row_of_the_files_is_in_an_output_or_counted_as_dropped(project: Path):
    pairs = [{"positive": f"calm {number % 7}", "negative": f"calm {number % 5}"} for number in range(40)]
    write_pairs(pairs)
    report = validate.main(params()).report
    assert report["equal_sides"] == sum(pair["positive"] == pair["negative"] for pair in pairs) > 0
    assert report["pairs_rows"] == 40 == report["train_pairs"] + report["heldout_pairs"] + report["equal_sides"]
    assert report["prompts_rows"] == 40 == report["train_prompts"] + report["heldout_prompts"]
    lines = [path.read_text().count("\n") for path in (layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS)]
    assert lines == [report["train_pairs"], report["heldout_pairs"]]


def test_the_report_names_the_first_rows_of_each_finding(project: Path):
    write_prompts([*(f"prompt {number}" for number in range(20)), *["prompt 3"] * 5])
    report = validate.main(params()).report
    assert report["duplicate_prompts"] == 5
    assert report["first_rows"]["duplicate_prompts"] == [f"data/prompts.json:1 prompts[{index}]" for index in (20, 21, 22)]


def test_files_of_other_formats_shapes_and_names_give_the_same_rows(project: Path):
    validate.main(params())
    first = {path: content for path, content in written().items() if path != layout.report("validate")}
    lines = [json.dumps({"question": f"prompt {number}"}) for number in range(40)]
    (layout.DATA / "questions.jsonl").write_text("\n".join(lines))
    table = "".join(f"calm sea {number},harsh sea {number},calm\n" for number in range(20))
    (layout.DATA / "pairs.csv").write_text(f"good,rejected,trait_name\n{table}")
    columns = {"prompt": "question", "chosen": "good", "rejected": None}
    report = validate.main(params(prompts="data/questions.jsonl", pairs="data/pairs.csv", columns=columns)).report
    assert (report["prompts_format"], report["pairs_format"]) == ("jsonl", "csv")
    assert {path: content for path, content in written().items() if path != layout.report("validate")} == first


def test_a_column_that_neither_file_has_is_refused(project: Path):
    with pytest.raises(DataError) as caught:
        validate.main(params(columns={"prompt": "question", "chosen": None, "rejected": "bad"}))
    assert caught.value.lines() == [
        "data.columns.prompt: neither file has a column question; a file's own name is expected; correct it, or set it to null",
        "data.columns.rejected: neither file has a column bad; a file's own name is expected; correct it, or set it to null",
    ]


def test_a_file_in_which_every_row_is_messages_written_as_a_string_is_refused_and_one_such_row_is_not(project: Path):
    messages = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    write_pairs([{"positive": messages, "negative": "c"}, {"positive": "d", "negative": messages}])
    with pytest.raises(DataError, match=r"^data/pairs.json:1 pairs\[0\]: every row holds a list of messages written as one string, "):
        validate.main(params(heldout_fraction=0))
    write_pairs([{"positive": messages, "negative": "c"}, {"positive": "d", "negative": "e"}])
    assert validate.main(params(heldout_fraction=0)).report["stringified_pairs"] == 1


def test_how_a_file_was_read_is_told_and_nothing_that_was_not_found(project: Path, capsys: pytest.CaptureFixture[str]):
    validate.main(params(near_duplicates=100))
    said = capsys.readouterr().err.splitlines()
    assert "data/prompts.json: read as json, its texts as strings" in said
    assert not any("near duplicates were looked for" in line or line.startswith(("duplicate_prompts", "equal_sides")) for line in said)


def test_the_format_and_the_share_that_are_set_are_those_used(project: Path):
    with pytest.raises(DataError, match=r"^data/prompts\.json:1:1: prompt is missing"):
        validate.main(params(format="jsonl"))
    assert validate.main(params(heldout_fraction=0.25)).report["heldout_fraction"] == 0.25


def test_prompts_that_are_all_written_as_strings_are_refused_and_a_dropped_pair_saves_no_set(project: Path):
    messages = json.dumps([{"role": "user", "content": "a"}])
    write_pairs([{"positive": messages, "negative": "c"}, {"positive": "d", "negative": "d"}])
    with pytest.raises(DataError, match="every row holds a list of messages"):
        validate.main(params(heldout_fraction=0))
    write_pairs([PAIR])
    write_prompts([messages])
    with pytest.raises(DataError, match=r"^data/prompts\.json:1 prompts\[0\]: every row holds a list of messages"):
        validate.main(params(heldout_fraction=0))


def test_a_folder_in_the_place_of_a_file_is_refused(project: Path):
    with pytest.raises(DataError, match=r"^data: cannot be read \(it is not a regular file\)"):
        validate.main(params(prompts="data"))


def test_outputs_appear_together_or_not_at_all(project: Path, monkeypatch: pytest.MonkeyPatch):
    validate.main(params())
    before = written()

    def full(path: Path, value: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(validate.outputs, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        validate.main(params(seed=1))
    assert written() == before


def test_every_key_of_the_report_stands_in_the_readme(project: Path):
    readme = (ROOT / "README.md").read_text()
    for key in validate.main(params()).report:
        general = key.replace("prompts", "<name>").replace("pairs", "<name>")
        assert f"`{key}`" in readme or f"`{general}`" in readme, key


def test_a_split_that_holds_out_nothing_by_chance_is_told(project: Path, capsys: pytest.CaptureFixture[str]):
    write_prompts(["one"])
    assert validate.main(params(heldout_fraction=1e-9)).report["heldout_prompts"] == 0
    said = "prompts: of so few rows the hash holds out none at 1e-09, so evaluate will have nulls; see data.seed"
    assert said in capsys.readouterr().err.splitlines()
    validate.main(params(heldout_fraction=0))
    assert "nulls" not in capsys.readouterr().err


def test_of_many_problems_twenty_are_told_and_the_rest_counted_on_stderr(project: Path):
    write_prompts([None] * 15)
    write_pairs([3] * 15)
    write_params(SETTINGS)
    done = run(project)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines), lines[-1]) == (1, "", 21, "... and 10 more problems")
    assert lines[0].startswith("data/prompts.json:1:14: prompts[0] is null; ")
    assert lines[15].startswith("data/pairs.json:1:34: pairs[0] is a number (3); ")


def test_it_starts_in_under_a_second_and_shows_a_bar_on_a_terminal(project: Path):
    write_params(SETTINGS)
    (project / "stages").symlink_to(ROOT / "stages")
    start = time.monotonic()
    told = terminal(project)
    # An import of torch alone would take longer, on any machine that is used here.
    assert time.monotonic() - start < 1.5
    assert all(f"{name}: " in told for name in ("reading prompts", "reading pairs", "inspecting", "writing")), told


@pytest.mark.slow
def test_ten_times_the_rows_cost_about_ten_times_the_time_and_their_memory(project: Path):
    """A million short pairs are to take 1.5 GB at most; the README says what they take, and how long."""
    (project / "stages").symlink_to(ROOT / "stages")
    write_params({**SETTINGS, "pairs": "data/many.jsonl", "near_duplicates": 1000})
    seconds, peak = [], []
    for rows in (20_000, 200_000):
        with (layout.DATA / "many.jsonl").open("w") as stream:
            for row in range(rows):
                stream.write(
                    json.dumps({"prompt": f"what is {row}", "chosen": f"it is {row * 7919 % rows}", "rejected": f"no {row}"}) + "\n"
                )
        # In between, a small process: what this one holds would count for its child.
        program = (
            "import subprocess, resource, sys; subprocess.run([sys.executable, '-m', 'stages.validate'], check=True, capture_output=True)"
        )
        program += "; used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime, used.ru_maxrss / 1024)"
        done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
        for numbers, number in zip((seconds, peak), done.stdout.split(), strict=True):
            numbers.append(float(number))
    # Processor time, which other processes can double; were it to grow with the square, it would be a hundred times.
    assert seconds[1] < 25 * seconds[0], seconds
    assert peak[1] < 1500 * 200_000 / 1_000_000, peak


def terminal(project: Path) -> str:
    """What the stage writes to a terminal."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))  # a bar is as wide as its terminal
    with subprocess.Popen([sys.executable, "-m", "stages.validate"], cwd=project, stdout=subprocess.DEVNULL, stderr=its) as process:
        os.close(its)
        told = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                told += part
    os.close(ours)
    assert process.returncode == 0
    return told.decode()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data in ../shared/data is not there")
def test_real_pairs_and_prompts_are_split_with_their_columns(project: Path):
    files = {"prompts": str(SHARED / "gsm8k_prompts.jsonl"), "pairs": str(SHARED / "gsm8k_pairs.jsonl")}
    report = validate.main(params(heldout_fraction=0.2, **files)).report
    assert (report["prompts"], report["pairs"], report["trait_name"]) == (100, 240, None)
    assert (report["prompts_format"], report["pairs_format"]) == ("jsonl", "jsonl")
    assert report["heldout_prompts"] > 0
    train = records.load_pairs(layout.TRAIN_PAIRS)
    assert {row.prompt for row in train}.isdisjoint({row.prompt for row in records.load_pairs(layout.HELDOUT_PAIRS)})
    assert all("answer" in row.extra for row in records.load_prompts(layout.TRAIN_PROMPTS))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data in ../shared/data is not there")
def test_published_transcripts_give_pairs_with_prompts(project: Path):
    report = validate.main(params(heldout_fraction=0.2, pairs=str(SHARED / "hh_transcripts.jsonl"))).report
    assert (report["pairs_rows"], report["pairs"], report["pairs_texts"]) == (32, 32, "transcripts")
    assert (report["implicit_prompts"], report["pairs_without_prompt"]) == (32, 0)
    pairs = records.load_pairs(layout.TRAIN_PAIRS) + records.load_pairs(layout.HELDOUT_PAIRS)
    originals = [json.loads(line) for line in (SHARED / "hh_transcripts.jsonl").read_text().splitlines()]
    assert len(pairs) == 32
    for pair in pairs:
        assert isinstance(pair.prompt, tuple)
        assert pair.prompt[-1].role == "user"
        sides = [side if isinstance(side, tuple) else (Message("assistant", side),) for side in (pair.chosen, pair.rejected)]
        texts = [transcript.write((*pair.prompt, *side)).split() for side in sides]
        assert any(texts == [row[side].split() for side in ("chosen", "rejected")] for row in originals)
