"""What two adapters add to the base's weights, module by module: the update scale * B @ A, and the factors themselves.

The whole matrices are never formed. With the factors of both sides stacked and taken to triangles, B's columns = Q R and A's
rows = (P S)^T, every update is Q (R_i S_i^T) P^T with orthonormal Q and P, so norms and products are those of matrices of
at most r_a + r_b rows and columns. Unlike a difference of squared norms, that loses nothing where the two are nearly equal.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.files import artifacts
from stages.files.artifacts import FACTOR, Artifact

Floats = NDArray[np.float64]

WHOLE = "all modules"


class Kept(NamedTuple):
    """An artifact of a version, and the digest of its weights."""

    artifact: Artifact
    weights_sha256: str

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by: alpha / rank."""
        return self.artifact.alpha / self.artifact.rank


@dataclass(frozen=True)
class Distance:
    """Frobenius norms of two arrays and how they lie to each other; null where a side is not there, or its norm is zero or overflows."""

    name: str
    norm_a: float | None
    norm_b: float | None
    relative_change: float | None
    """Norm of B minus A, over A's; 0 where both are zero."""
    cosine: float | None


@dataclass(frozen=True)
class ArtifactChange:
    """Two versions' artifact of one kind."""

    name: str
    identical: bool
    """Whether weights and scale are the same."""
    same_base: bool
    weights_sha256_a: str
    weights_sha256_b: str
    scale_a: float
    scale_b: float
    whole: Distance
    """All modules' updates as one vector."""
    updates: list[Distance]
    """By module."""
    tensors: list[Distance]
    """By tensor, as the file has them; relative change and cosine are null where the shapes differ."""


class Products(NamedTuple):
    """Squared norms of two updates, of their difference, and their inner product."""

    a: float
    b: float
    difference: float
    inner: float


def read(path: Path, kind: str) -> Kept:
    """An artifact and the digest of its weights; raises ArtifactError."""
    artifact = artifacts.read(path, kind)
    return Kept(artifact, json.loads(artifacts.sidecar_path(path).read_bytes())["weights_sha256"])


def same(a: Kept, b: Kept) -> bool:
    """Whether the two compute the same: the same weights at the same scale on the same base."""
    return (a.weights_sha256, a.scale, a.artifact.base_fingerprint) == (b.weights_sha256, b.scale, b.artifact.base_fingerprint)


def compare(name: str, a: Kept, b: Kept) -> ArtifactChange:
    """How the two lie to each other, as a whole, by module and by tensor."""
    modules = _in_order(_modules(a.artifact), _modules(b.artifact))
    with np.errstate(over="ignore", invalid="ignore"):  # an alpha may be anything that is finite
        products = {module: _products(a, b, module) for module in modules}
    total = Products(*(float(np.sum(column)) for column in zip(*products.values(), strict=True)))
    present = {module: (module in _modules(a.artifact), module in _modules(b.artifact)) for module in modules}
    tensors = _in_order(a.artifact.tensors, b.artifact.tensors)
    return ArtifactChange(
        name=name,
        identical=a.weights_sha256 == b.weights_sha256 and a.scale == b.scale,
        same_base=a.artifact.base_fingerprint == b.artifact.base_fingerprint,
        weights_sha256_a=a.weights_sha256,
        weights_sha256_b=b.weights_sha256,
        scale_a=a.scale,
        scale_b=b.scale,
        whole=_distance(WHOLE, total, (True, True)),
        updates=[_distance(module, products[module], present[module]) for module in modules],
        tensors=[_tensor_distance(tensor, a.artifact.tensors.get(tensor), b.artifact.tensors.get(tensor)) for tensor in tensors],
    )


def _products(a: Kept, b: Kept, module: str) -> Products:
    """Of the update of one module; that of a side without it is zero."""
    (up_a, down_a), (up_b, down_b) = (_factors(one, module) for one in (a, b))
    if up_a is None or up_b is None:
        only_a, only_b = (0.0 if up is None else _squared(*_triangles(up, down)) for up, down in ((up_a, down_a), (up_b, down_b)))
        return Products(only_a, only_b, only_a + only_b, 0.0)
    if up_a.shape[0] != up_b.shape[0] or down_a.shape[1] != down_b.shape[1]:
        return Products(_squared(*_triangles(up_a, down_a)), _squared(*_triangles(up_b, down_b)), math.nan, math.nan)
    rank = up_a.shape[1]
    up, down = _triangles(np.hstack([up_a, up_b]), np.vstack([down_a, down_b]))
    one, other = up[:, :rank] @ down[:, :rank].T, up[:, rank:] @ down[:, rank:].T
    if up_a.shape == up_b.shape and np.array_equal(up_a, up_b) and np.array_equal(down_a, down_b):
        other = one  # equal factors have equal updates to the last bit
    return Products(*(float((left * right).sum()) for left, right in ((one, one), (other, other), (other - one,) * 2, (one, other))))


def _triangles(up: Floats, down: Floats) -> tuple[Floats, Floats]:
    """The triangles R [k, r] and S [k', r] of B [out, r] and of A [r, in]: ||B A|| is ||R S^T||."""
    return np.linalg.qr(up).R, np.linalg.qr(down.T).R


def _squared(up: Floats, down: Floats) -> float:
    return float(((up @ down.T) ** 2).sum())


def _factors(kept: Kept, module: str) -> Any:
    """scale * B [out, r] and A [r, in] in float64; None twice where the artifact has no such module."""
    tensors = kept.artifact.tensors
    up, down = (tensors.get(f"base_model.model.{module}.lora_{side}.weight") for side in "BA")
    return (None, None) if up is None or down is None else (kept.scale * up.astype(np.float64), down.astype(np.float64))


def _distance(name: str, products: Products, present: tuple[bool, bool]) -> Distance:
    norm_a, norm_b = math.sqrt(products.a), math.sqrt(products.b)
    both = all(present) and all(map(math.isfinite, products))
    return Distance(
        name,
        norm_a if present[0] and math.isfinite(norm_a) else None,
        norm_b if present[1] and math.isfinite(norm_b) else None,
        (math.sqrt(products.difference) / norm_a if norm_a else None if products.difference else 0.0) if both else None,
        max(-1.0, min(1.0, products.inner / (norm_a * norm_b))) if both and norm_a and norm_b else None,
    )


def _tensor_distance(name: str, a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> Distance:
    one, other = (None if tensor is None else tensor.astype(np.float64).ravel() for tensor in (a, b))
    square_a, square_b = (0.0 if tensor is None else float(tensor @ tensor) for tensor in (one, other))
    if one is None or other is None or a is None or b is None or a.shape != b.shape:
        return _distance(name, Products(square_a, square_b, math.nan, math.nan), (one is not None, other is not None))
    gap = other - one
    return _distance(name, Products(square_a, square_b, float(gap @ gap), float(one @ other)), (True, True))


def _modules(artifact: Artifact) -> list[str]:
    return list(dict.fromkeys(factor["module"] for factor in map(FACTOR.fullmatch, artifact.tensors) if factor))


def _in_order(a: Iterable[str], b: Iterable[str]) -> list[str]:
    """The names of both, layers by their number."""
    return sorted({*a, *b}, key=lambda name: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")])
