"""Which settings differ, with what a file that was edited by hand may hold."""

import json
from pathlib import Path

import pytest

from stages.core.composition import params_yaml
from stages.core.errors import SettingsError
from stages.versions import settings
from stages.versions.revision import Revision
from stages.versions.settings import Change
from stages.versions.snapshot import Snapshot
from tests.versions.projects import base


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    monkeypatch.chdir(tmp_path)
    return Snapshot(Revision("workspace", None), Path(), None)


def test_keys_that_differ_are_named_with_both_values_and_runtime_is_marked():
    a = {"grpo.beta": 0.04, "grpo.rank": 8, "runtime.threads": 1, "old.key": 1}
    b = {"grpo.beta": 0.1, "grpo.rank": 8, "runtime.threads": 2, "new.key": [1]}
    assert settings.changes(a, b) == [
        Change("grpo.beta", 0.04, 0.1, rounding_alone=False),
        Change("runtime.threads", 1, 2, rounding_alone=True),
        Change("new.key", None, [1], rounding_alone=False),
        Change("old.key", 1, None, rounding_alone=False),
    ]
    assert settings.changes(a, a) == []


def test_fields_of_the_base_that_differ_are_named():
    assert [one.key for one in settings.base_changes(base(), base(precision="bf16"))] == ["precision"]
    assert [one.key for one in settings.base_changes(base(), base(weights_sha256="v"))] == ["weights_sha256", "fingerprint"]


def test_settings_are_read_by_dotted_key(workspace: Snapshot):
    Path("params.yaml").write_bytes(params_yaml.render({"grpo": {"beta": 1e-6}, "export": {}}))
    assert settings.read(workspace) == {"grpo.beta": 1e-6, "export": {}}


def test_what_json_cannot_say_is_read_as_text(workspace: Snapshot):
    Path("params.yaml").write_text("a: {when: 2024-01-02, much: .inf, none: .nan}\n")
    found = settings.read(workspace)
    assert json.dumps(found, allow_nan=False) == '{"a.when": "2024-01-02", "a.much": "inf", "a.none": "nan"}'


@pytest.mark.parametrize("content", ["[1]", "a: [", "a: 1\na: 2\n"])
def test_a_file_that_holds_no_settings_is_refused(workspace: Snapshot, content: str):
    Path("params.yaml").write_text(content)
    with pytest.raises(SettingsError, match=r"^params\.yaml.*expected the settings that compose writes$"):
        settings.read(workspace)


def test_the_settings_of_outputs_are_read_from_the_lock(workspace: Snapshot):
    assert settings.of_outputs(workspace) == {}
    Path("dvc.lock").write_text(
        "stages:\n  compose: {cmd: x, params: {conf/overrides.yaml: {overrides: []}}}\n"
        "  grpo: {cmd: x, params: {params.yaml: {grpo: {beta: 0.04, targets: [q_proj]}}}}\n  base: {cmd: x}\n"
    )
    assert settings.of_outputs(workspace) == {"grpo": {"grpo.beta": 0.04, "grpo.targets": ["q_proj"]}}


@pytest.mark.parametrize("content", ["stages: 5", "[]", "stages: {grpo: 1}", ""])
def test_what_is_no_lock_is_said(workspace: Snapshot, content: str):
    Path("dvc.lock").write_text(content)
    with pytest.raises(SettingsError, match=r"^dvc\.lock: not a lock that DVC writes"):
        settings.of_outputs(workspace)
