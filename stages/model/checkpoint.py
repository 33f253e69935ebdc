"""The base checkpoint: recorded once by the base stage, loaded and compared with its record by every later one."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from stages.core import layout
from stages.core.errors import BaseError
from stages.core.progress import say
from stages.files import fingerprint
from stages.files.base_record import ABSENT, APPLIED, OFF, BaseRecord
from stages.files.fingerprint import Digests
from stages.model import sharding, source, templates

logging.disable_progress_bar()  # a bar per loaded file would stand in the log of every stage

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


_LOAD_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    ImportError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SafetensorError,
    StrictDataclassError,
)
"""What transformers raises for a folder whose files are broken or say what cannot be."""


class Found(NamedTuple):
    """The base as recorded, its tokenizer loaded and its weights not yet."""

    folder: Path
    base: BaseRecord
    tokenizer: PreTrainedTokenizerBase


def record(
    folder: Path,
    *,
    lies_in: str | None,
    model: str,
    revision: str | None,
    commit: str | None,
    gguf_file: str | None,
    precision: str,
    chat_template: str,
    trust_remote_code: bool,
) -> BaseRecord:
    """What base.json says of the checkpoint in `folder`; reads headers and small files, loads no weights. Raises BaseError.

    `lies_in` is where later stages will find it; None for the hub's cache.
    """
    files = fingerprint.weight_files(folder)
    config = _load(AutoConfig, folder, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise BaseError(f"base.model: {model} is an encoder-decoder ({config.model_type}); a decoder-only causal model is expected")
    tokenizer = _load(AutoTokenizer, folder, trust_remote_code)
    template = templates.text(tokenizer)
    if weights := getattr(config, "transformers_weights", None):
        raise BaseError(f"base.model: {model} names its own weight file ({weights}) in config.json; call it {fingerprint.WEIGHTS} instead")
    if chat_template == "auto" and template is not None:
        templates.require_one(tokenizer, model)
    ends = end_tokens(folder, config, tokenizer)
    if not ends:
        raise BaseError(
            f"base.model: {model} names no end token in its tokenizer, configuration or generation configuration, "
            "so no completion could end"
        )
    text = config.get_text_config(decoder=True)
    if text.num_hidden_layers < 1:
        raise BaseError(f"base.model: {model} has {text.num_hidden_layers} decoder layers by its config.json; at least one is expected")
    if max(ends) >= text.vocab_size:
        raise BaseError(
            f"base.model: {model} ends with token {max(ends)}, and its embedding has {text.vocab_size} rows; "
            "mend eos_token_id, or resize the embedding"
        )
    digests = fingerprint.digest_checkpoint(folder, template, code=trust_remote_code)
    return BaseRecord(
        model=model,
        revision=revision,
        commit=commit,
        gguf_file=gguf_file,
        folder=lies_in,
        trust_remote_code=trust_remote_code,
        precision=precision,
        chat_template=OFF if chat_template == "off" else ABSENT if template is None else APPLIED,
        model_type=config.model_type,
        layers=text.num_hidden_layers,
        hidden_size=hidden_width(config),
        vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None),
        parameters=sum(_stored_numbers(file) for file in files),
        begin_token=begin_token(tokenizer),
        end_tokens=ends,
        weights_sha256=digests.weights,
        config_sha256=digests.config,
        tokenizer_sha256=digests.tokenizer,
        template_sha256=digests.template,
        fingerprint=digests.fingerprint(ends),
    )


def find(base: BaseRecord) -> Found:
    """Finds the checkpoint and loads its tokenizer; raises BaseError where it is not the one recorded. No weights are loaded."""
    if base.precision not in DTYPES:
        raise BaseError(f"{layout.BASE_RECORD}: precision {base.precision!r} is not what the base stage writes; run `dvc repro -f base`")
    if base.folder is None:
        folder = source.resolve(base.model, base.commit, base.gguf_file).folder
    else:
        folder = layout.BASE_CHECKPOINT if base.folder == layout.BASE_CHECKPOINT.as_posix() else layout.outside(base.folder)
    if not folder.is_dir():
        raise BaseError(
            f"base.model: {folder}, where base.json found the checkpoint, is not there; bring it back or run `dvc repro -f base`"
        )
    tokenizer = _load(AutoTokenizer, folder, base.trust_remote_code)
    ends = end_tokens(folder, _load(AutoConfig, folder, base.trust_remote_code), tokenizer)
    _require_unchanged(folder, fingerprint.digest_checkpoint(folder, templates.text(tokenizer), code=base.trust_remote_code), ends, base)
    return Found(folder, base, tokenizer)


def load_weights(found: Found, device: torch.device, shard: bool = False) -> PreTrainedModel:
    """The frozen base in the recorded precision, in evaluation mode for good, so that no dropout is ever alive.

    With `shard` its layers are spread over the processes of the stage, which have met before. Raises BaseError where it cannot
    be loaded whole.
    """
    folder, base, _ = found
    model, told = _load(
        AutoModelForCausalLM, folder, base.trust_remote_code, dtype=DTYPES[base.precision], use_safetensors=True, output_loading_info=True
    )
    if told["missing_keys"]:  # transformers has filled them with random numbers
        lacking = sorted(told["missing_keys"])
        raise BaseError(
            f"base.model: {folder} lacks {len(lacking)} of the weights of {type(model).__name__} ({', '.join(lacking[:3])}); "
            "a whole causal language model is expected"
        )
    if unused := sorted(told["unexpected_keys"]):
        say(
            f"base.model: {type(model).__name__} does not use {len(unused)} of the stored weights ({', '.join(unused[:3])}); "
            "where they are layers, config.json names fewer than there are"
        )
    frozen = cast(PreTrainedModel, model.eval().requires_grad_(False))
    if not shard:
        return cast(PreTrainedModel, frozen.to(device))
    sharding.spread(frozen, device)
    return frozen


def hidden_width(config: PreTrainedConfig) -> int:
    """Width of the hidden state after the final norm; some OPT models project it to another one than their layers have."""
    text = config.get_text_config(decoder=True)
    return int(getattr(text, "word_embed_proj_dim", text.hidden_size))


def convert_gguf(folder: Path, gguf_file: str, target: Path) -> None:
    """Writes the model and tokenizer of a GGUF file as a bfloat16 safetensors checkpoint; raises BaseError."""
    loaded = _load(AutoModelForCausalLM, folder, False, gguf_file=gguf_file)
    tokenizer = _load(AutoTokenizer, folder, False, gguf_file=gguf_file)
    config = type(loaded.config).from_dict({k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    plain = type(loaded)(config)  # the loaded one keeps its quantization entry and would be saved with it
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    save(plain.to(torch.bfloat16), tokenizer, target)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Writes a checkpoint folder; raises BaseError where the disk does not take it."""
    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except SafetensorError as error:  # safetensors' own writing raises this, and no OSError, when the disk is full
        raise BaseError(f"{target}: the checkpoint could not be written ({error}); free some space and run it again") from error


def end_tokens(folder: Path, config: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion, the tokenizer's own first: tokenizer, configuration, generation configuration."""
    named: list[Any] = [tokenizer.eos_token_id, config.get_text_config(decoder=True).eos_token_id]
    if (folder / "generation_config.json").is_file():
        named.append(_load(GenerationConfig, folder, False).eos_token_id)
    flat = [token for entry in named for token in (entry if isinstance(entry, list) else [entry]) if token is not None]
    return list(dict.fromkeys(flat))


def begin_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the tokenizer itself puts before raw text; None where it puts none, even if it knows one."""
    empty = tokenizer("").input_ids
    return tokenizer.bos_token_id if empty and empty[0] == tokenizer.bos_token_id else None


def _require_unchanged(folder: Path, found: Digests, ends: list[int], base: BaseRecord) -> None:
    recorded = Digests(base.weights_sha256, base.config_sha256, base.tokenizer_sha256, base.template_sha256)
    changed = [name for name, now, then in zip(Digests._fields, found, recorded, strict=True) if now != then]
    changed += ["end tokens"] if ends != base.end_tokens else []
    if changed:
        checkout = " (`dvc checkout artifacts/base`)" if folder == layout.BASE_CHECKPOINT else ""
        raise BaseError(
            f"base.model: {folder} has changed since it was recorded ({', '.join(changed)}); "
            f"bring the old one back{checkout}, or run `dvc repro -f base` to record the new one"
        )


def _stored_numbers(file: Path) -> int:
    try:
        with safe_open(file, framework="np") as tensors:
            names = tensors.keys()
            shapes = [tensors.get_slice(name).get_shape() for name in names]
    except SafetensorError as error:
        raise BaseError(f"{file}: not a safetensors file ({error}); fetch the checkpoint again") from error
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def _load(auto: Any, folder: Path, trust_remote_code: bool, **options: Any) -> Any:
    """transformers' own loading from a folder, offline, with what goes wrong in one line."""
    try:
        return auto.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True, **options)
    except _LOAD_ERRORS as error:
        reason = " ".join(str(error).split())
        code = "; set base.trust_remote_code=true where you trust the code that comes with it" if "trust_remote_code" in reason else ""
        raise BaseError(f"base.model: {folder} cannot be loaded by transformers ({type(error).__name__}: {reason[:300]}){code}") from error
