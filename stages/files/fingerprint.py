"""Digests of a checkpoint folder: what makes two bases the same one, wherever they lie and whatever they are called."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from stages.core.errors import BaseError

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
VOLATILE = frozenset(
    {
        "_name_or_path",
        "chat_template",
        "dtype",
        "is_local",
        "local_files_only",
        "name_or_path",
        "torch_dtype",
        "transformers_version",
    }
)
"""Keys of JSON files that tell where a checkpoint came from or how it was loaded, or have a digest of their own; they change no number."""


class Digests(NamedTuple):
    """sha256 of the stored weights, the model's configuration, the tokenizer and the chat template, in hex."""

    weights: str
    config: str
    tokenizer: str
    template: str | None

    def fingerprint(self, end_tokens: list[int]) -> str:
        """One digest over all four and the tokens that end a completion."""
        return _text_digest(json.dumps([*self, end_tokens]))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers loads of a folder, in a fixed order; raises BaseError where it has none.

    Like transformers, it takes an index only where there is no single file.
    """
    if (folder / ADAPTER_CONFIG).is_file():  # transformers would add the adapter, or load the base that it names instead
        raise BaseError(
            f"base.model: {folder} holds a PEFT adapter ({ADAPTER_CONFIG}); name its base, or a checkpoint that it was merged into"
        )
    index = folder / WEIGHTS_INDEX
    files = [folder / WEIGHTS]
    if index.is_file() and not files[0].is_file():
        files = [folder / name for name in _indexed(index)]
    lacking = [file.name for file in files if not file.is_file()]
    if lacking:
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        reason = f"it has only pickle weights ({pickled[0]}), which are never loaded" if pickled else f"{lacking[0]} is not there"
        raise BaseError(
            f"base.model: {folder} is no safetensors checkpoint: {reason}; "
            "load it in transformers where you trust it and save it with save_pretrained, or name a base.gguf_file"
        )
    return files


def digest_checkpoint(folder: Path, chat_template: str | None, *, code: bool) -> Digests:
    """Digests of the files of a checkpoint folder; `chat_template` is the tokenizer's own, as loaded.

    Where its code may run, `code`, the Python files count as part of the configuration. Raises BaseError for broken JSON.
    """
    weights = hashlib.sha256()
    for file in weight_files(folder):
        with file.open("rb") as stream:
            weights.update(hashlib.file_digest(stream, "sha256").digest())
    tokenizer = [(name, _file_digest(folder / name)) for name in TOKENIZER_FILES if (folder / name).is_file()]
    return Digests(
        weights=weights.hexdigest(),
        config=_config_digest(folder, code),
        tokenizer=_text_digest(json.dumps(tokenizer)),
        template=None if chat_template is None else _text_digest(chat_template),
    )


def _indexed(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        wrong = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseError(f"{index}: not an index of weights ({error}); fetch the checkpoint again") from error
    if wrong or not names:
        raise BaseError(f"{index}: it names no file of this folder{f': {wrong[0]!r}' if wrong else ''}; fetch the checkpoint again")
    return sorted(names)


def _config_digest(folder: Path, code: bool) -> str:
    config = _file_digest(folder / "config.json")
    files = [(file.relative_to(folder).as_posix(), _file_digest(file)) for file in sorted(folder.rglob("*.py"))] if code else []
    return _text_digest(json.dumps([config, files])) if files else config


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file_digest(path: Path) -> str:
    """sha256 of a file; of a JSON object's values without the volatile keys, so that layout does not count."""
    content = path.read_bytes()
    if path.suffix == ".json":
        try:
            value: Any = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BaseError(f"{path}: not JSON ({error}); fetch the checkpoint again") from error
        if isinstance(value, dict):
            stable = {key: item for key, item in value.items() if key not in VOLATILE}
            return _text_digest(json.dumps(stable, sort_keys=True))
    return hashlib.sha256(content).hexdigest()
