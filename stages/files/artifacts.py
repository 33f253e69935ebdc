"""Adapter and reward artifacts: `<name>.safetensors` with PEFT's own tensor names, and `<name>.json` that says what they are.

Checked in both directions, before they reach disk and when they are read; never pickle.
"""

import dataclasses
import errno
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from stages.core.errors import ArtifactError
from stages.core.settings.schema import LARGEST, MOST
from stages.files import outputs
from stages.files.base_record import BaseRecord

SCHEMA_VERSION = 1
PRODUCT = "leash"
ADAPTER = "adapter"
REWARD = "reward"
KINDS = {ADAPTER: "a generation adapter", REWARD: "a reward model"}
HEAD = "reward.head"
FACTOR = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<side>[AB])\.weight")

Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Artifact:
    """A trained adapter: its tensors and the fields of its sidecar."""

    kind: str
    model: str
    model_revision: str | None
    base_fingerprint: str
    rank: int
    alpha: float
    targets: list[str]
    layers: list[int]
    hidden_size: int
    report: Mapping[str, Any]
    tensors: Tensors = dataclasses.field(repr=False)

    def shapes(self) -> dict[str, list[int]]:
        """The shape of every tensor, as the sidecar has it."""
        return {name: list(self.tensors[name].shape) for name in sorted(self.tensors)}

    def problems(self) -> list[str]:
        """What makes it no artifact of its kind; empty where nothing does."""
        found = []
        names = [name for name in self.tensors if name != HEAD]
        if self.kind == REWARD and HEAD not in self.tensors:
            found.append(f"reward artifact is missing tensor {HEAD}")
        if self.kind == ADAPTER and HEAD in self.tensors:
            found.append(f"adapter artifact carries a {HEAD} tensor but declares kind {ADAPTER}")
        sides: dict[str, set[str]] = {}
        of_another_rank = []
        for name in names:
            factor = FACTOR.fullmatch(name)
            if factor is None:
                found.append(f"tensor {name} is no LoRA factor (expected base_model.model.<module>.lora_A.weight or lora_B)")
                continue
            sides.setdefault(factor["module"], set()).add(factor["side"])
            shape = self.tensors[name].shape
            axis = 0 if factor["side"] == "A" else 1
            if len(shape) != 2 or shape[axis] != self.rank:
                of_another_rank.append(f"tensor {name} has shape {list(shape)}, which is not of rank {self.rank}")
        found += _first_and_count(of_another_rank)
        if not sides:
            found.append("it holds no LoRA factors")
        for module, present in sides.items():
            found += [f"tensor base_model.model.{module}.lora_{side}.weight is missing" for side in sorted({"A", "B"} - present)]
        if HEAD in self.tensors and self.tensors[HEAD].shape != (1, self.hidden_size):
            found.append(f"tensor {HEAD} has shape {list(self.tensors[HEAD].shape)}, expected [1, {self.hidden_size}]")
        for name, tensor in self.tensors.items():
            if tensor.dtype != np.float32:
                found.append(f"tensor {name} is {tensor.dtype}, expected float32")
            elif not np.isfinite(tensor).all():
                found.append(f"tensor {name} holds numbers that are not finite")
        return found or self._contradictions()

    def _contradictions(self) -> list[str]:
        """Where its fields, its tensors and its report say different things."""
        foreign = [name for name in self.tensors if name != HEAD and not self._adapts(name)]
        return [
            *_first_and_count(
                [f"tensor {name} is of none of its targets ({', '.join(self.targets)}) in its layers {self.layers}" for name in foreign]
            ),
            *(
                f"field {name} is {getattr(self, name)!r:.60}, and {self.report[name]!r:.60} in its report"
                for name in ("rank", "alpha", "targets", "layers")
                if name in self.report and self.report[name] != getattr(self, name)
            ),
        ]

    def _adapts(self, name: str) -> bool:
        """Whether a factor is of one of the targets, in one of the layers; the number of its layer is the first in its name."""
        factor = FACTOR.fullmatch(name)
        assert factor is not None
        module = factor["module"]
        number = next((int(part) for part in module.split(".") if part.isdecimal()), None)
        return number in self.layers and any(module.endswith(f".{target}") for target in self.targets)


def _first_and_count(problems: Sequence[str]) -> list[str]:
    """What is wrong with many tensors in one way, as one problem."""
    return [f"{problems[0]} (and {len(problems) - 1} more)"] if len(problems) > 1 else list(problems)


def write(path: Path, artifact: Artifact) -> None:
    """Writes the two files, both or none, each under a temporary name and then renamed; raises ArtifactError where it is no artifact."""
    found = artifact.problems()
    if found:
        raise ArtifactError([f"{path}: not written: {problem}" for problem in found])
    weights = safetensors.numpy.save(dict(artifact.tensors), metadata={"format": "pt"})
    fields = {
        field.name: getattr(artifact, field.name) for field in dataclasses.fields(Artifact) if field.name not in ("tensors", "report")
    }
    sidecar: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "product": PRODUCT, **fields}
    sidecar["shapes"] = artifact.shapes()
    sidecar["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    sidecar["report"] = dict(artifact.report)
    sidecar["digest"] = outputs.digest(sidecar)
    with outputs.together():
        outputs.write_json(sidecar_path(path), sidecar)
        outputs.write_bytes(path, weights)


def read(path: Path, kind: str) -> Artifact:
    """Reads an artifact of the kind expected (`adapter` or `reward`); raises ArtifactError naming all that is wrong with it."""
    sidecar = _read_sidecar(sidecar_path(path))
    found_kind = sidecar.get("kind", ADAPTER)
    if found_kind != kind and found_kind in tuple(KINDS):
        raise ArtifactError(f"{path}: adapter artifact is {KINDS[found_kind]}, not {KINDS[kind]}")
    content = _read_bytes(path)
    try:
        tensors = dict(sorted(safetensors.numpy.load(content).items()))  # it comes in another order at each call
    except KeyError as error:  # a type that numpy has not
        raise ArtifactError(f"{path}: it holds {error.args[0]} tensors, expected float32") from error
    except (SafetensorError, ValueError, TypeError) as error:
        raise ArtifactError(f"{path}: not a safetensors file ({error}); {_back(path)}") from error
    artifact = _from_sidecar(sidecar_path(path), sidecar, tensors)
    found = artifact.problems() or _other_tensors(sidecar["shapes"], artifact.shapes())
    if not found and hashlib.sha256(content).hexdigest() != sidecar.get("weights_sha256"):
        found = [f"its weights are not the ones that {sidecar_path(path).name} was written for"]
    if found:
        raise ArtifactError([f"{path}: {problem}" for problem in found])
    return artifact


def require_base(path: Path, artifact: Artifact, base: BaseRecord) -> None:
    """Raises ArtifactError where the artifact was trained on another base, by fingerprint, whatever either is called."""
    found = []
    if artifact.base_fingerprint != base.fingerprint:
        found.append(
            f"adapter was trained for model {artifact.model} ({artifact.base_fingerprint[:12]}), "
            f"current model is {base.model} ({base.fingerprint[:12]}); train it on this base, or set base to the one it was trained for"
        )
    if artifact.hidden_size != base.hidden_size:
        found.append(f"adapter width {artifact.hidden_size} does not match model width {base.hidden_size}")
    if found:
        raise ArtifactError([f"{path}: {problem}" for problem in found])


def sidecar_path(path: Path) -> Path:
    """The .json beside a .safetensors."""
    return path.with_suffix(".json")


def _read_bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is no regular file")  # a pipe would be waited for
        return path.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such artifact; run `dvc repro`, or {_back(path)}") from None
    except OSError as error:
        raise ArtifactError(f"{path}: not readable ({error.strerror}); {_back(path)}") from error


def _back(path: Path) -> str:
    return f"bring it back with `dvc checkout {path.parent}`"


def _read_sidecar(path: Path) -> dict[str, Any]:
    content = _read_bytes(path)
    try:
        sidecar = json.loads(content, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: not a sidecar: {error}; {_back(path)}") from error
    if not isinstance(sidecar, dict):
        raise ArtifactError(f"{path}: not a sidecar: expected an object; {_back(path)}")
    if sidecar.get("product") != PRODUCT or sidecar.get("schema_version") != SCHEMA_VERSION:
        raise ArtifactError(f"{path}: not a sidecar of this product and version (expected {PRODUCT}, schema_version {SCHEMA_VERSION})")
    if sidecar.get("digest") != outputs.digest(sidecar):
        raise ArtifactError(f"{path}: its fields do not match their digest; the file was changed after it was written; {_back(path)}")
    return sidecar


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is beyond what a number can be")
    return number


def _other_tensors(declared: Mapping[str, list[int]], found: Mapping[str, list[int]]) -> list[str]:
    """How the tensors of the file differ from those that its sidecar was written for."""
    return [
        *(f"tensor {name} is missing" for name in declared if name not in found),
        *(f"tensor {name} is not one of its sidecar's" for name in found if name not in declared),
        *(
            f"tensor {name} has shape {found[name]}, and {declared[name]} in its sidecar"
            for name in declared
            if name in found and found[name] != declared[name]
        ),
    ]


def _from_sidecar(path: Path, sidecar: Mapping[str, Any], tensors: Tensors) -> Artifact:
    wrong = [name for name, is_one in FIELDS.items() if name not in sidecar or not is_one(sidecar[name])]
    if not _are_shapes(sidecar.get("shapes")):
        wrong.append("shapes")
    if sidecar.get("kind", ADAPTER) not in tuple(KINDS):  # it may be a list, which a mapping would not be asked for
        wrong.append("kind")
    if wrong:
        raise ArtifactError([f"{path}: field {name} is missing or of another type" for name in wrong])
    return Artifact(kind=sidecar.get("kind", ADAPTER), tensors=tensors, **{name: sidecar[name] for name in FIELDS})


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object, low: int = 1) -> bool:
    return type(value) is int and low <= value <= MOST


def _are_shapes(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(shape, list) and all(_is_count(size) for size in shape) for shape in value.values())


FIELDS: dict[str, Callable[[Any], bool]] = {
    "model": _is_text,
    "model_revision": lambda value: value is None or _is_text(value),
    "base_fingerprint": _is_text,
    "rank": _is_count,
    "alpha": lambda value: type(value) in (int, float) and 0 < value <= LARGEST,
    "targets": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "layers": lambda value: isinstance(value, list) and all(_is_count(number, 0) for number in value),
    "hidden_size": _is_count,
    "report": lambda value: isinstance(value, dict),
}
"""What each field of a sidecar must be; a boolean is no number."""
