"""The toy base: a small Llama and its tokenizer, built from a seed and fitted on the language of toy_grammar."""

import math
from collections.abc import Callable
from random import Random

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stages.model import toy_grammar

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
IDS = {token: number for number, token in enumerate((BEGIN, END, UNKNOWN, *toy_grammar.VOCABULARY))}
"""The vocabulary: a token's number is its row of the embedding."""

POSITIONS = 512
BATCH = 16
LEARNING_RATE = 1e-2
WARMUP_STEPS = 20
MAX_GRAD_NORM = 1.0
IGNORED = -100
"""What torch's cross entropy takes for a target that does not count."""


def build(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model on the CPU in float32, with transformers' own random start, and its tokenizer; torch's own generator is left as it was."""
    config = LlamaConfig(
        vocab_size=len(IDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        initializer_range=0.02,
        bos_token_id=IDS[BEGIN],
        eos_token_id=IDS[END],
        # Tied, a random model would mostly repeat its last token; untied, its next token is near uniform and it stops by chance.
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs as well, which the fork does not restore
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer()


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word or run of punctuation, in lower case; `<s>` goes in front of a text and nothing behind it; no padding."""
    words = Tokenizer(WordLevel(IDS, unk_token=UNKNOWN))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, IDS[BEGIN])])
    words.decoder = decoders.WordPiece()  # its clean-up is what is wanted: a space between words, none before a full stop
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=POSITIONS,
    )


def fit(model: LlamaForCausalLM, seed: int, steps: int, on_step: Callable[[int, float], None]) -> float | None:
    """Fits the model in place on texts drawn from the seed; returns the last step's loss or, after no step, None.

    `on_step` gets each step's number, from one, and its loss, mean nats per token of the replies. Torch's generators are not used.
    """
    draw = Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    loss = None
    for step in range(steps):
        # Linear warm-up under a cosine that ends at zero: the last steps settle what a constant rate keeps shaking.
        rate = LEARNING_RATE * min((step + 1) / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for parameters in optimizer.param_groups:
            parameters["lr"] = rate
        tokens, targets = _batch(draw)
        # No attention mask: padding stands behind the texts, where causal attention does not look.
        logits = model(input_ids=tokens, use_cache=False).logits
        step_loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        step_loss.backward()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        loss = step_loss.item()
        on_step(step + 1, loss)
    return loss


def _batch(draw: Random) -> tuple[Tensor, Tensor]:
    """Token ids of the next texts, and at each position the id that follows where that is the reply's; both [BATCH, longest]."""
    tokens, targets = [], []
    for _ in range(BATCH):
        opening, reply = toy_grammar.opening(draw), toy_grammar.reply(draw)
        ids = [IDS[token] for token in (BEGIN, *opening, *reply, END)]
        tokens.append(torch.tensor(ids[:-1]))
        # Openings are given, never written: what cannot be predicted in them would only be noise in the gradient.
        targets.append(torch.tensor([IGNORED] * len(opening) + ids[1 + len(opening) :]))
    return pad_sequence(tokens, True, IDS[END]), pad_sequence(targets, True, IGNORED)
