"""artifacts/base/base.json: what the base stage found, and every later stage reads instead of the `base` section."""

import dataclasses
import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core import layout
from stages.core.errors import BaseError
from stages.core.settings.schema import typed
from stages.files.fingerprint import Digests

APPLIED, ABSENT, OFF = "applied", "absent", "off"
"""What becomes of the checkpoint's chat template."""


@dataclass(frozen=True)
class BaseRecord:
    """The frozen base: where it lies, how it is loaded, what it is."""

    model: str
    """The source as written in the settings; `toy` for the one that is built."""
    revision: str | None
    """Revision as written; of a hub id only."""
    commit: str | None
    """Commit that a hub id and revision resolved to."""
    gguf_file: str | None
    """GGUF file that was converted."""
    folder: str | None
    """Folder of the safetensors checkpoint; null where it lies in the hub's cache."""
    trust_remote_code: bool
    """Whether code that comes with the checkpoint may run."""
    precision: str
    """f32, f16 or bf16: what the weights are loaded in."""
    chat_template: str
    """applied, absent (the checkpoint has none) or off."""
    model_type: str
    """The architecture, by transformers' name."""
    layers: int
    """Decoder layers."""
    hidden_size: int
    """Width of the hidden state."""
    vocabulary: int
    """Rows of the embedding."""
    positions: int | None
    """Positions that the model was built for; null where its configuration names no limit."""
    parameters: int
    """Stored numbers in the weights."""
    begin_token: int | None
    """The token that the tokenizer itself puts before raw text."""
    end_tokens: list[int]
    """Tokens that end a completion; the first is the tokenizer's own and is the one appended to raw text."""
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None
    fingerprint: str
    """One digest over the four and the end tokens; every artifact carries it."""

    def as_json(self) -> dict[str, Any]:
        """The record as the object of base.json."""
        return dataclasses.asdict(self)


def read_base(path: Path = layout.BASE_RECORD) -> BaseRecord:
    """Reads base.json; raises BaseError where it is missing or not one."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BaseError(f"{path}: no base is recorded; run `dvc repro base`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BaseError(f"{path}: not readable as JSON ({error}); run `dvc repro -f base`") from error
    names = {field.name for field in dataclasses.fields(BaseRecord)}
    if not isinstance(value, dict) or set(value) != names:
        raise BaseError(f"{path}: not a base record of this version; run `dvc repro -f base`")
    wrong = [name for name, hint in typing.get_type_hints(BaseRecord).items() if not _is(value[name], hint)]
    wrong += [] if value["end_tokens"] else ["end_tokens"]
    if wrong:
        raise BaseError(f"{path}: {wrong[0]} is not what the base stage writes; run `dvc repro -f base`")
    record = BaseRecord(**value)
    digests = Digests(record.weights_sha256, record.config_sha256, record.tokenizer_sha256, record.template_sha256)
    if record.fingerprint != digests.fingerprint(record.end_tokens):
        raise BaseError(f"{path}: its fingerprint is not that of its digests: it was changed after it was written; run `dvc repro -f base`")
    return record


def _is(value: object, hint: Any) -> bool:
    try:
        typed(hint, value)
    except TypeError:
        return False
    return True
