"""Conversations written as one text: turns that begin with `Human:` and `Assistant:`, each after a blank line.

That is how a conversation is given to a base whose chat template is not applied, and how some published pairs are written.
"""

import re
from collections.abc import Iterable

from stages.files.records import ASSISTANT, SYSTEM, USER, Message

SPEAKERS = {"Human": USER, "Assistant": ASSISTANT}

OPEN_ANSWER = "\n\nAssistant:"
"""What a prompt ends with, for an answer to follow."""

_TURN = re.compile(r"(?:\A\s*|\r?\n\r?\n)(Human|Assistant):")
_LATER = re.compile(r"\r?\n\r?\n(?:Human|Assistant):")
_LABELS = {role: speaker for speaker, role in SPEAKERS.items()}


def is_transcript(text: str) -> bool:
    """Whether a text reads as a transcript: its first turn is labelled after a blank line, or the label stands first and more follow."""
    first = _TURN.match(text)
    if first is None:
        return False
    return text.count("\n", 0, first.start(1)) > 1 or _LATER.search(text, first.end()) is not None


def holds_label(content: str) -> bool:
    """Whether a turn's own text holds a label, so that written into a transcript it reads as other turns."""
    return _LATER.search(content) is not None


def parse(text: str) -> list[Message]:
    """The turns of a text that begins with a label, without the whitespace around each; of any other text none.

    A last turn without a word is kept: whether it is a prompt's open answer or a missing one, the caller knows.
    """
    if _TURN.match(text) is None:
        return []
    labels = list(_TURN.finditer(text))
    ends = [label.start() for label in labels[1:]] + [len(text)]
    return [Message(SPEAKERS[label[1]], text[label.end() : end].strip()) for label, end in zip(labels, ends, strict=True)]


def write(conversation: Iterable[Message]) -> str:
    """The transcript of a conversation; a system turn stands first, without a label."""
    return "".join(
        message.content if message.role == SYSTEM else f"\n\n{_LABELS[message.role]}: {message.content}" for message in conversation
    )
