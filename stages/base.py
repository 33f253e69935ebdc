"""Stage base: build, convert or find the frozen base checkpoint, and record what it is.

reads    the source that `base` names: the toy's own grammar, a folder, an installed package, or a hub id
writes   artifacts/base/base.json, and artifacts/base/checkpoint/ where one is built or converted
refuses  a source that is not there, pickle weights, an encoder-decoder, a model without an end token
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from stages.core import layout, runner
from stages.core.progress import bar, say
from stages.core.runner import Document
from stages.core.settings.base import CheckpointBase, ToyBase
from stages.core.settings.runtime import Runtime
from stages.files import outputs
from stages.files.base_record import BaseRecord
from stages.model import checkpoint, device, source, toy

BUILDING = layout.BASE / ".building"
"""Where a checkpoint is written until it is whole."""
REPLACED = layout.BASE / ".replaced"
"""Where the one before it lies until the new one is in place."""


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    base: ToyBase | CheckpointBase
    runtime: Runtime


def main(params: Params) -> Document:
    """Makes the checkpoint beside the old one, and puts it in its place when it is whole."""
    device.set_threads(params.runtime)
    shutil.rmtree(BUILDING, ignore_errors=True)
    try:
        record = _toy(params.base) if isinstance(params.base, ToyBase) else _existing(params.base)
        _replace_checkpoint(record)
    finally:
        shutil.rmtree(BUILDING, ignore_errors=True)
    return Document(layout.BASE_RECORD, record.as_json())


def _replace_checkpoint(record: BaseRecord) -> None:
    """Puts the new checkpoint, if one was made, and its record in the old ones' place; the old ones come back where that fails."""
    shutil.rmtree(REPLACED, ignore_errors=True)
    if layout.BASE_CHECKPOINT.is_dir():
        layout.BASE_CHECKPOINT.replace(REPLACED)
    try:
        if BUILDING.is_dir():
            BUILDING.replace(layout.BASE_CHECKPOINT)
        outputs.write_json(layout.BASE_RECORD, record.as_json())
    except OSError:
        shutil.rmtree(layout.BASE_CHECKPOINT, ignore_errors=True)
        if REPLACED.is_dir():
            REPLACED.replace(layout.BASE_CHECKPOINT)
        raise
    shutil.rmtree(REPLACED, ignore_errors=True)


def _toy(settings: ToyBase) -> BaseRecord:
    model, tokenizer = toy.build(settings.seed)
    with bar(settings.fit_steps, "base") as advance:

        def tell(step: int, loss: float) -> None:
            advance()
            if step % 50 == 0 or step == settings.fit_steps:
                say(f"fit step {step}/{settings.fit_steps} loss {loss:.4f}")

        toy.fit(model, settings.seed, settings.fit_steps, tell)
    checkpoint.save(model, tokenizer, BUILDING)
    return _recorded(BUILDING, "toy", settings)


def _existing(settings: CheckpointBase) -> BaseRecord:
    found = source.resolve(settings.model, settings.revision, settings.gguf_file)
    if settings.gguf_file is None:
        return _recorded(found.folder, settings.model, settings, found)
    say(f"converting {settings.gguf_file} to bfloat16 safetensors")
    checkpoint.convert_gguf(found.folder, settings.gguf_file, BUILDING)
    return _recorded(BUILDING, settings.model, settings, found)


def _recorded(folder: Path, model: str, settings: ToyBase | CheckpointBase, found: source.Source | None = None) -> BaseRecord:
    """The record of the checkpoint in `folder`; one that was just made will lie in artifacts/base/checkpoint."""
    written = settings if isinstance(settings, CheckpointBase) else None
    if folder == BUILDING:
        lies_in = layout.BASE_CHECKPOINT.as_posix()
    elif found is None or found.on_hub:
        lies_in = None
    else:  # as written where it is relative, so that the record is the same wherever the stage runs
        lies_in = folder.as_posix() if model.startswith(source.PACKAGE) else Path(model).as_posix()
    return checkpoint.record(
        folder,
        lies_in=lies_in,
        model=model,
        revision=written.revision if written else None,
        commit=found.commit if found else None,
        gguf_file=written.gguf_file if written else None,
        precision=settings.precision,
        chat_template=settings.chat_template,
        trust_remote_code=written.trust_remote_code if written else False,
    )


if __name__ == "__main__":
    runner.run("base", Params, main)
