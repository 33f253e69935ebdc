"""The adapter that a policy starts from: opened, and refused, before weights are loaded; it must be of the shape that is trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.core import layout
from stages.core.errors import ArtifactError, SettingsError
from stages.files import artifacts, outputs
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.model.adapters import Plan

RECORD = "init_adapter"
"""The key of a policy's report that says what it started from."""


def open_start(init_adapter: str | None, rank: int, alpha: float, base: BaseRecord) -> Artifact | None:
    """Reads the adapter that is named; None where training starts fresh. Raises SettingsError or ArtifactError."""
    if init_adapter is None:
        return None
    path = Path(init_adapter)
    if not path.is_file():
        raise SettingsError(f"grpo.init_adapter: {path} does not exist; put it there, or set null")
    found = artifacts.read(path, artifacts.ADAPTER)
    artifacts.require_base(path, found, base)
    _require_same(found, {"rank": rank, "alpha": alpha})
    return found


def require_fits(start: Artifact, plan: Plan) -> None:
    """Raises SettingsError where the settings, resolved against the model, ask for an adapter of other modules."""
    _require_same(start, {"targets": plan.targets, "layers": plan.layers})


def record(init_adapter: str | None) -> dict[str, str] | None:
    """What a policy's report says of its start: path and digest."""
    return None if init_adapter is None else {"path": init_adapter, "sha256": outputs.file_digest(Path(init_adapter))}


def files(init_adapter: str | None) -> list[Path]:
    """Those of the artifact."""
    return [] if init_adapter is None else [Path(init_adapter), artifacts.sidecar_path(Path(init_adapter))]


def reopen(report: Mapping[str, Any], base: BaseRecord) -> Artifact | None:
    """The adapter that a policy started from, by its report; raises ArtifactError where it is not there or is another one now."""
    said = report.get(RECORD)
    if said is None:
        return None
    again = "or run `dvc repro -f grpo`"
    path = Path(said["path"]) if isinstance(said, dict) and isinstance(said.get("path"), str) else None
    if path is None or layout.INIT_ADAPTERS not in path.parents or ".." in path.parts:
        raise ArtifactError(f"{layout.POLICY}: its report does not say what adapter it started from; run `dvc repro -f grpo`")
    if not path.is_file():
        raise ArtifactError(f"{layout.POLICY}: it started from {path}, which is not there; bring it back, {again}")
    if outputs.file_digest(path) != said.get("sha256"):
        raise ArtifactError(f"{layout.POLICY}: it started from another {path} than is there now; bring that one back, {again}")
    found = artifacts.read(path, artifacts.ADAPTER)
    artifacts.require_base(path, found, base)
    return found


def _require_same(start: Artifact, asked: Mapping[str, Any]) -> None:
    wrong = [
        f"grpo.{key}: {value}, and grpo.init_adapter, which training starts from, has {getattr(start, key)}; set grpo.{key} to that"
        for key, value in asked.items()
        if value != getattr(start, key)
    ]
    if wrong:
        raise SettingsError(wrong)
