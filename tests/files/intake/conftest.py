"""The fixture of the intake's tests."""

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A relative path, as settings have it, so that messages can be compared whole."""
    monkeypatch.chdir(tmp_path)
    return Path("rows")
