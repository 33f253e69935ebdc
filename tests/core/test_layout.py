from pathlib import Path

import pytest

from stages.core import layout


def test_a_path_outside_is_as_written_where_the_run_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert layout.outside("../models/tiny") == Path("../models/tiny")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))  # what plain `dvc repro` sets
    assert layout.outside("../models/tiny") == Path("../models/tiny")


def test_in_a_checkout_elsewhere_a_relative_path_counts_from_the_workspace_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = tmp_path / "workspace/job"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "workspace"))
    assert layout.outside("../models/tiny") == tmp_path / "workspace/../models/tiny"
    assert layout.outside("/models/tiny") == Path("/models/tiny")
