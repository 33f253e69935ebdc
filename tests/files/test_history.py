"""The file in which a running stage can be watched."""

import json
from pathlib import Path

import pytest

from stages.files.history import HistoryFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_path_is_told_and_it_is_there_before_the_first_step(capsys: pytest.CaptureFixture[str]):
    history = HistoryFile("grpo")
    assert history.path == Path(".state/grpo/history.jsonl")
    assert history.path.read_bytes() == b""
    assert capsys.readouterr().err == "steps are appended to .state/grpo/history.jsonl\n"


def test_each_step_is_a_line_that_is_on_disk_when_append_returns():
    history = HistoryFile("reward")
    for step in range(1, 4):
        history.append({"step": step, "loss": 0.1 * step})
        lines = history.path.read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, step + 1))
    assert json.loads(lines[-1]) == {"step": 3, "loss": 0.1 * 3}


def test_a_new_run_begins_it_anew_and_leaves_the_other_stages_alone():
    HistoryFile("reward").append({"step": 1})
    HistoryFile("grpo").append({"step": 2})
    assert HistoryFile("reward").path.read_bytes() == b""
    assert Path(".state/grpo/history.jsonl").read_text() == '{"step": 2}\n'
