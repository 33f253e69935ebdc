"""Tiny random models of many architectures, and tokenizers built in memory: what tests run instead of real checkpoints."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stages.core.settings.runtime import Runtime
from stages.files.base_record import BaseRecord
from stages.files.fingerprint import Digests
from stages.model import checkpoint, passes
from stages.model.adapters import Adapters
from stages.model.groups import Completed

UNKNOWN, BEGIN, END, TURN, PAD = "<unk>", "<s>", "</s>", "<turn>", "<pad>"
WORDS = (
    "user system assistant : over red green blue cup plate phone key toy child guest friend the a drops breaks is calm harsh fine".split()
)
IDS = {token: number for number, token in enumerate((UNKNOWN, BEGIN, END, TURN, PAD, *WORDS))}
VOCABULARY = 40
"""Rows of every model's embedding; more than the tokenizer has words, as in many real checkpoints."""

POSITIONS = 64
CHAT = (
    "{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' <turn> over ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
)
"""A template that writes something after the end of a turn."""

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": IDS[BEGIN],
    "eos_token_id": IDS[END],
    "pad_token_id": None,
}
_UNSET = object()
"""A size that an architecture does not take."""

_OWN: dict[str, dict[str, Any]] = {
    "falcon": {"head_dim": _UNSET},
    "gptj": {"rotary_dim": 4},
    "mistral": {"sliding_window": 6},
    "ministral": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma2": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo3": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mpt": {"n_heads": 4, "max_seq_len": POSITIONS, "expansion_ratio": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}
ARCHITECTURES = ("llama", "gpt2", "qwen3", "gemma", "gemma3_text", "gpt_neox", "opt", "bloom", "mistral")
"""Rotary, learned and ALiBi positions; one and several key-value heads; sliding windows; norms of all kinds."""

FURTHER = tuple(
    "cohere exaone4 falcon gemma2 glm4 gpt_bigcode gpt_oss gptj granite ministral mixtral mpt olmo2 olmo3 phi phi3 qwen2 qwen3_moe "
    "smollm3 stablelm starcoder2".split()
)
"""More of the same, experts among them: seconds of imports, so for slow tests."""

EVERY = [*ARCHITECTURES, *(pytest.param(kind, marks=pytest.mark.slow) for kind in FURTHER)]
"""All of them, as a test's parameters."""


def model(kind: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model in evaluation mode, no parameter at a trivial value; torch's own generator is left as it was."""
    settings = {**_SIZES, **_OWN.get(kind, {}), **overrides}
    config = AutoConfig.for_model(kind, **{key: value for key, value in settings.items() if value is not _UNSET})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in built.parameters():  # a norm's weight of 1 or a bias of 0 would hide that it is left out
                parameter += 0.1 * torch.randn_like(parameter)
    return built.eval().requires_grad_(False)


RUNTIME = Runtime(
    device="cpu",
    threads=1,
    logits_chunk=7,
    activation_checkpointing=False,
    checkpoint_every=1,
    processes=1,
    nodes=1,
    rendezvous=None,
    shard=False,
)


def forward(built: PreTrainedModel) -> passes.Passes:
    """The passes that a stage would give a model."""
    return passes.choose(built, RUNTIME)


def adapted(built: PreTrainedModel) -> Adapters:
    """Room for adapters in a model."""
    return Adapters(forward(built))


def whole(sequences: Iterable[list[int]]) -> list[Completed]:
    """Whole sequences as groups, each a prompt and one token."""
    return [Completed(row[:-1], [row[-1:]]) for row in sequences]


def tokenizer(
    *, begins: bool = False, pad: str | None = None, template: str | None = None, unknown: bool = True, **settings: Any
) -> PreTrainedTokenizerFast:
    """One token per word of WORDS; with `begins` it puts the begin token before every text."""
    words = Tokenizer(WordLevel(IDS, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if begins:
        words.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, IDS[BEGIN])])
    built = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN if unknown else None,
        pad_token=pad,
        extra_special_tokens=[TURN],
        **settings,
    )
    built.chat_template = template
    return built


def save(folder: Path, built: PreTrainedModel | None = None, words: PreTrainedTokenizerFast | None = None) -> Path:
    """A safetensors checkpoint of the two, by default a llama and a tokenizer without template; returns its folder."""
    (model() if built is None else built).save_pretrained(folder)
    (tokenizer() if words is None else words).save_pretrained(folder)
    return folder


def record(folder: Path, **overrides: Any) -> BaseRecord:
    """The record of a checkpoint that is used where it lies."""
    settings: dict[str, Any] = {
        "lies_in": folder.as_posix(),
        "model": folder.as_posix(),
        "revision": None,
        "commit": None,
        "gguf_file": None,
        "precision": "f32",
        "chat_template": "auto",
        "trust_remote_code": False,
    }
    return checkpoint.record(folder, **{**settings, **overrides})


class Loaded(NamedTuple):
    """A base and its tokenizer, as a stage has them."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(base: BaseRecord) -> Loaded:
    """Loads what the record is of, on the CPU, as a stage does."""
    found = checkpoint.find(base)
    return Loaded(checkpoint.load_weights(found, torch.device("cpu")), found.tokenizer)


def base(words: PreTrainedTokenizerFast, chat_template: str = "applied") -> BaseRecord:
    """What a record says of a llama with this tokenizer whose turns end with TURN as well, without files on disk."""
    return BaseRecord(
        model="tiny",
        revision=None,
        commit=None,
        gguf_file=None,
        folder="tiny",
        trust_remote_code=False,
        precision="f32",
        chat_template=chat_template,
        model_type="llama",
        layers=2,
        hidden_size=32,
        vocabulary=VOCABULARY,
        positions=POSITIONS,
        parameters=1,
        begin_token=checkpoint.begin_token(words),
        end_tokens=[IDS[END], IDS[TURN]],
        weights_sha256="w",
        config_sha256="c",
        tokenizer_sha256="t",
        template_sha256=None,
        fingerprint=Digests("w", "c", "t", None).fingerprint([IDS[END], IDS[TURN]]),
    )


def ids(text: str) -> list[int]:
    """The token ids of a text of known words."""
    return [IDS[word] for word in text.split()]
