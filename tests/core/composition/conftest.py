import shutil
from pathlib import Path

import pytest

CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with conf/ and small data files, the current one while the test runs."""
    shutil.copytree(CONF, tmp_path / "conf")
    for name in ("prompts.json", "pairs.json", "examples/prompts.json", "examples/pairs.json", "rewards/own.safetensors"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path
