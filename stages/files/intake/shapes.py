"""What the texts of one row make together: which turns are the prompt, and which are the sides.

Sides that are whole conversations share a beginning; the turns they share, up to the last one of the user's, are the prompt.
A prompt that stands beside them must be what both begin with, up to a turn of the user's: all of it, but for a system turn, or
that turn alone, as some published pairs have it. Then it is the prompt, whatever more the sides share.
"""

from typing import NamedTuple

from stages.files import transcript
from stages.files.intake.texts import VISIBLE
from stages.files.records import ASSISTANT, CHOSEN, PROMPT, REJECTED, SYSTEM, USER, Conversation, Message, Text
from stages.files.splits import normalised


class ShapeError(ValueError):
    """A text that cannot be what its column says: `column`, and what was found, expected, and to be done as a phrase."""

    def __init__(self, column: str, phrase: str) -> None:
        super().__init__(phrase)
        self.column = column
        self.phrase = phrase


class Sides(NamedTuple):
    """The texts of a pair, the prompt apart from the sides."""

    prompt: Text | None
    chosen: Text
    rejected: Text
    implicit: bool
    """Whether the prompt was found in the sides alone."""


def conversation_of(text: str, column: str) -> Conversation:
    """The turns of a transcript; of a prompt, the open answer at its end is left out. Raises ShapeError for an empty turn."""
    turns = transcript.parse(text)
    if column == PROMPT and turns[-1] == Message(ASSISTANT, ""):
        turns.pop()
    for place, turn in enumerate(turns, 1):
        if VISIBLE.search(turn.content) is None:
            raise ShapeError(
                column, f"is a transcript whose turn {place} of {len(turns)}, the {turn.role}'s, is empty; write a text or remove the row"
            )
    return tuple(turns)


def prompt(text: Text) -> Text:
    """The prompt itself; raises ShapeError where it is a conversation that asks for no answer."""
    if isinstance(text, str):
        return text
    if text[-1].role != USER:
        raise ShapeError(PROMPT, f"ends with the {text[-1].role}'s turn; the user's is expected last, to be answered; remove the turn")
    return text


def sides(given: Text | None, chosen: Text, rejected: Text) -> Sides:
    """Prompt and sides of one pair; raises ShapeError where they do not fit together."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        return Sides(None if given is None else prompt(given), chosen, rejected, False)
    if isinstance(chosen, str) or isinstance(rejected, str):
        column = REJECTED if isinstance(rejected, str) else CHOSEN
        raise ShapeError(column, "is a text, and the other side a list of messages; both of one kind are expected; rewrite one")
    for column, side in ((CHOSEN, chosen), (REJECTED, rejected)):
        if side[-1].role != ASSISTANT:
            raise ShapeError(
                column,
                f"ends with the {side[-1].role}'s turn; the assistant's, which is compared, is expected last; remove the turn or the row",
            )
    answers = [side[0].role == ASSISTANT for side in (chosen, rejected)]
    if answers == [True, True]:
        before = _as_conversation(given)
        return Sides(before, _answer(chosen, before), _answer(rejected, before), False)
    if any(answers):
        column = CHOSEN if answers[0] else REJECTED
        raise ShapeError(
            column, "begins with the assistant's turn, and the other side does not; both with the prompt, or both without, are expected"
        )
    shared = _shared(chosen, rejected)
    if given is not None:
        shared = _repeated(shared, prompt(given))
    before = shared or None
    start = len(shared)
    return Sides(before, _answer(chosen[start:], before), _answer(rejected[start:], before), given is None and before is not None)


def _as_conversation(text: Text | None) -> Conversation | None:
    if text is None:
        return None
    asked = prompt(text)
    return (Message(USER, asked),) if isinstance(asked, str) else asked


def _answer(side: Conversation, before: Conversation | None) -> Text:
    """One answer to a prompt as its text; without a prompt nothing else says that it is a turn."""
    return side[0].content if before is not None and len(side) == 1 else side


def _shared(one: Conversation, other: Conversation) -> Conversation:
    """The turns that two conversations begin with, up to the last of the user's that the assistant answers in both.

    Texts are compared but for whitespace around them and the form of their Unicode, as the split compares prompts.
    """
    length = 0
    for mine, theirs in zip(_plain(one[:-1]), _plain(other[:-1]), strict=False):
        if mine != theirs:
            break
        length += 1
    while length and not (one[length - 1].role == USER and one[length].role == other[length].role == ASSISTANT):
        length -= 1
    return one[:length]


def _repeated(shared: Conversation, given: Text) -> Conversation:
    """What of the shared turns the given prompt repeats, but for whitespace around texts and the form of their Unicode."""
    for length in range(len(shared), 0, -1):
        begun = shared[:length]
        if isinstance(given, str):
            repeats = begun[-1].role == USER and normalised(begun[-1].content) == normalised(given)
        else:
            repeats = _plain(begun) == _plain(given) or (_plain(begun[1:]) == _plain(given) and begun[0].role == SYSTEM)
        if repeats:
            return begun
    raise ShapeError(PROMPT, "is not what both sides begin with; the turns that they share are expected; mend it, or remove the column")


def _plain(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, normalised(message.content)) for message in conversation]
