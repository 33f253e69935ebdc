"""Two hundred damaged artifacts, from fixed seeds: each is refused in one line per problem, or is what was written."""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from stages.core.errors import LeashError
from stages.files import artifacts, base_record, outputs
from stages.files.artifacts import ADAPTER, REWARD, Artifact
from stages.learning import reward_source
from stages.model import checkpoint
from stages.model.adapters import Adapters
from tests import tiny

MUTATIONS = 200
FILES = {REWARD: Path("artifacts/reward/reward"), ADAPTER: Path("artifacts/grpo/policy")}
TRICKS: tuple[Any, ...] = (
    "../../../etc/passwd",
    "/etc/passwd",
    "artifacts/../../x",
    "\x1b[2J\nline",
    10**400,
    -1,
    2**63,
    1e308,
    0,
    None,
    True,
    "",
    [],
    {},
    [[[[[]]]]],
    {"__class__": "os.system"},
)
"""What a field may be made to hold: ways out of a folder, numbers too large, terminal codes, other types."""


WAYS = ("flip", "cut", "insert", "zeros", "swap", "other", "field", "signed field", "nested", "drop", "tensor", "signed tensor")


def damage(kind: str, number: int) -> str:
    """Damages the artifact in the current folder in one way, chosen by the number; gives what was done."""
    chance = random.Random(number)
    weights, sidecar = FILES[kind].with_suffix(".safetensors"), FILES[kind].with_suffix(".json")
    file = chance.choice([weights, sidecar])
    content = bytearray(file.read_bytes())
    way = chance.choice(WAYS)
    if way == "flip":
        for _ in range(chance.choice([1, 1, 8])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif way == "cut":
        del content[chance.randrange(len(content)) :]
    elif way == "insert":
        place = chance.randrange(len(content))
        content[place:place] = chance.randbytes(chance.choice([1, 7, 4096]))
    elif way == "zeros":
        place = chance.randrange(len(content))
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif way == "swap":
        content = bytearray((weights if file == sidecar else sidecar).read_bytes())
    elif way == "other":
        other = FILES[ADAPTER if kind == REWARD else REWARD]
        content = bytearray(other.with_suffix(file.suffix).read_bytes())
    elif way in ("field", "signed field", "nested", "drop"):
        file = sidecar
        fields = json.loads(sidecar.read_bytes())
        key = chance.choice([name for name in fields if name != "digest"])
        if way == "drop":
            del fields[key]
        elif way == "nested":
            fields[key] = json.loads("[" * 400 + "]" * 400)
        else:
            fields[key] = chance.choice(TRICKS)
        if way != "field":
            fields["digest"] = outputs.digest(fields)
        content = bytearray(json.dumps(fields).encode())
    else:
        file = weights
        tensors = dict(safetensors.numpy.load(weights.read_bytes()))
        name = chance.choice(sorted(tensors))
        change = chance.choice(["drop", "rename", "half", "double", "transpose", "add", "move"])
        if change in ("drop", "rename"):
            tensor = tensors.pop(name)
            if change == "rename":
                tensors[name.replace("layers.1", "layers.9") if "layers.1" in name else f"{name}.x"] = tensor
        elif change == "half":
            tensors[name] = tensors[name].astype(np.float16)
        elif change == "double":
            tensors[name] = tensors[name].astype(np.float64)
        elif change == "transpose":
            tensors[name] = np.ascontiguousarray(tensors[name].T) if tensors[name].shape[0] != tensors[name].shape[1] else tensors[name] + 1
        elif change == "add":
            tensors["more.weight"] = tensors[name]
        else:
            tensors[name] = tensors[name] + np.float32(1e-3)
        content = bytearray(safetensors.numpy.save(tensors))
        if way == "signed tensor" and change != "move":  # other numbers that someone vouches for are another artifact
            fields = json.loads(sidecar.read_bytes())
            fields["weights_sha256"] = hashlib.sha256(content).hexdigest()
            fields["digest"] = outputs.digest(fields)
            sidecar.write_text(json.dumps(fields))
        way = f"{way}: {change}"
    file.write_bytes(content)
    return f"{file.name}: {way}"


def opened(kind: str, folded: Any) -> Artifact:
    """The artifact as evaluate opens it, its factors put into the base."""
    base = base_record.read_base()
    path = FILES[kind].with_suffix(".safetensors")
    artifact = artifacts.read(path, kind)
    artifacts.require_base(path, artifact, base)
    if kind == ADAPTER:
        reward_source.reopen(artifact.report.get("reward_parts"), base)
    Adapters(tiny.forward(folded)).add_trained("read", artifact.rank, artifact.alpha, artifact.tensors)
    return artifact


def same(one: Artifact, other: Artifact) -> bool:
    fields = ("kind", "rank", "alpha", "base_fingerprint", "hidden_size")
    return all(getattr(one, name) == getattr(other, name) for name in fields) and all(
        one.tensors[name].tobytes() == tensor.tobytes() for name, tensor in other.tensors.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REWARD, ADAPTER])
def test_a_damaged_artifact_is_refused_or_what_was_written(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.chdir(trained)
    written = artifacts.read(FILES[kind].with_suffix(".safetensors"), kind)
    found = checkpoint.find(base_record.read_base())
    refused, silent, wrong = 0, 0, []
    for number in range(MUTATIONS // 2):
        folder = tmp_path / str(number)
        shutil.copytree(trained, folder)
        monkeypatch.chdir(folder)
        what = damage(kind, number)
        try:
            artifact = opened(kind, checkpoint.load_weights(found, torch.device("cpu")))
        except LeashError as error:
            refused += 1
            if not error.lines() or any("\n" in line or "\x1b" in line for line in error.lines()):
                wrong.append(f"{number} {what}: {error.lines()}")
        else:
            silent += 1
            if not same(artifact, written):
                wrong.append(f"{number} {what}: taken for sound")
        shutil.rmtree(folder)
    assert wrong == []
    assert refused > 85
    assert refused + silent == MUTATIONS // 2
