"""The checkpoint's own chat template: whether it is one, and what it makes of messages."""

import json
from collections.abc import Sequence

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from stages.core.errors import BaseError
from stages.files.records import USER, Message

NO_CLOCK = "{%- macro strftime_now(format) -%}01 January 2025{%- endmacro -%}"
"""Put before a template: some write today's date into every prompt, which would give other numbers every day."""

FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template can end in: its own refusal, or a fault of its expressions, which Jinja passes on as it is."""


def text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The template as one text, also where the tokenizer carries several; raises BaseError where it is none."""
    template = tokenizer.chat_template
    if not isinstance(template, dict | str | None):
        raise BaseError(f"base.model: the tokenizer's chat_template is {template!r:.40}; a text is expected")
    return json.dumps(template, sort_keys=True) if isinstance(template, dict) else template


def apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, marker: bool) -> str:
    """The messages as the template writes them, with the generation marker or without; raises one of FAULTS."""
    template = NO_CLOCK + str(tokenizer.chat_template)
    return str(
        tokenizer.apply_chat_template(
            [message._asdict() for message in messages], chat_template=template, tokenize=False, add_generation_prompt=marker
        )
    )


def require_one(tokenizer: PreTrainedTokenizerBase, model: str) -> None:
    """Raises BaseError where several templates are carried, or the one is no Jinja; what it makes of a row is told where rows are."""
    if isinstance(tokenizer.chat_template, dict):
        raise BaseError(
            f"base.model: {model} carries several chat templates ({', '.join(tokenizer.chat_template)}); "
            "keep one in its tokenizer, or set base.chat_template=off"
        )
    try:
        apply(tokenizer, [Message(USER, "a")], marker=True)
    except TemplateSyntaxError as error:
        raise BaseError(
            f"base.model: {model}: its chat template is no Jinja: line {error.lineno}: {error.message}; "
            "mend it, or set base.chat_template=off"
        ) from error
    except FAULTS:  # it may want other messages than this one
        return
