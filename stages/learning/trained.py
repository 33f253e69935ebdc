"""What both training stages say of what they trained: the artifact, and the fields of a report that describe the adapter."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.model.adapters import Plan

Tensors = Mapping[str, NDArray[np.float32]]


def artifact(kind: str, base: BaseRecord, plan: Plan, report: Mapping[str, Any], tensors: Tensors) -> Artifact:
    """The artifact of a finished training."""
    return Artifact(
        kind=kind,
        model=base.model,
        model_revision=base.revision,
        base_fingerprint=base.fingerprint,
        rank=plan.rank,
        alpha=plan.alpha,
        targets=plan.targets,
        layers=plan.layers,
        hidden_size=base.hidden_size,
        report=report,
        tensors=tensors,
    )


def size_fields(tensors: Tensors) -> dict[str, int]:
    """How many tensors and numbers were trained."""
    return {"trainable_tensors": len(tensors), "trainable_parameters": sum(tensor.size for tensor in tensors.values())}


def adapter_fields(plan: Plan) -> dict[str, Any]:
    """The adapter's shape, targets and layers as resolved."""
    return {"rank": plan.rank, "alpha": plan.alpha, "targets": plan.targets, "layers": plan.layers}
