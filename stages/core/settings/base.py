"""Section `base`: which frozen model everything is trained on."""

from dataclasses import dataclass
from typing import ClassVar

from stages.core.settings import schema
from stages.core.settings.schema import at_least, not_empty, one_of, setting

PRECISIONS = ("f32", "f16", "bf16")
CHAT_TEMPLATES = ("auto", "off")


@dataclass(frozen=True)
class ToyBase:
    """`base=toy`: a small Llama built from its seed and fitted on sentences of a grammar of its own."""

    OPTION: ClassVar[str] = "base=toy"

    seed: int = setting(schema.seed)
    """Seed of the random weights and of the fitting sentences."""
    fit_steps: int = setting(at_least(0, "fit_steps must be zero or more"))
    """Optimizer steps of the fit; 0 leaves the random weights."""
    precision: str = setting(one_of(*PRECISIONS))
    """Precision that the weights are loaded in; what is stored, and the fingerprint, do not change with it."""
    chat_template: str = setting(one_of(*CHAT_TEMPLATES))
    """`auto` applies the checkpoint's own template where it has one; `off` is raw text."""


@dataclass(frozen=True)
class CheckpointBase:
    """`base=smollm2`, `base=hub`: a causal language model that transformers loads."""

    OPTION: ClassVar[str] = "base=hub"

    model: str = setting(not_empty("a folder, package:<name> or a hub id is expected"))
    """A folder (an existing one, or anything that starts with . or /), `package:<name>`, or a hub id."""
    revision: str | None = setting()
    """Branch, tag or commit of a hub id; null elsewhere."""
    gguf_file: str | None = setting(not_empty("the name of a GGUF file, or null, is expected"))
    """Name of a GGUF file in it, converted once to bfloat16 safetensors; null for safetensors."""
    precision: str = setting(one_of(*PRECISIONS))
    """Precision that the weights are loaded in."""
    chat_template: str = setting(one_of(*CHAT_TEMPLATES))
    """`auto` applies the checkpoint's own template where it has one; `off` is raw text."""
    trust_remote_code: bool = setting()
    """Whether code that comes with the checkpoint may run."""
