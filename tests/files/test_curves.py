"""Curves as they are read back, and what is refused of them."""

from pathlib import Path

import pytest

from stages.core import layout
from stages.core.errors import ArtifactError
from stages.files import curves, outputs


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    layout.curve("grpo").parent.mkdir(parents=True)


def test_they_are_read_as_they_were_written():
    rows = [{"step": 1, "loss": 0.1, "part_a": None}, {"step": 2, "loss": 1e-7, "part_a": 2.5}]
    outputs.write_csv(layout.curve("grpo"), ("step", "loss", "part_a"), rows)
    assert curves.read("grpo", 2) == rows


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("step,loss\n1,0.5\n", r"it has 1 steps, and the artifact was trained for 2; run `dvc repro -f grpo`"),
        ("", "it has 0 steps"),
        ("loss\n1\n2\n", "it has 2 steps"),
        ("step,loss\n1,x\n2,1\n", "not a table as the stage writes it"),
        ("step,loss\n1,1,3\n2,1\n", "not a table as the stage writes it"),
        ("\ud800", "not a table as the stage writes it"),
    ],
)
def test_what_is_not_the_trainings_is_refused(text: str, phrase: str):
    layout.curve("grpo").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ArtifactError, match=rf"^reports/plots/grpo\.csv: {phrase}"):
        curves.read("grpo", 2)


def test_what_is_not_there_is_told():
    with pytest.raises(ArtifactError, match=r"^reports/plots/grpo\.csv: it is not there; run `dvc repro -f grpo`"):
        curves.read("grpo", 2)
