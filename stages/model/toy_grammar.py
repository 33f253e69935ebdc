"""The little language that the toy base speaks: an everyday trouble, then a reply that is calm or harsh.

    the child drops the cup. let us rest quietly. it is fine.
    the guest shouts. you must leave now. you are useless.

Both tones fill the same slots (a lead, a verb, a manner or none, a second sentence or none) with words of their own. So a
reply's length says nothing about its tone, and a tone is learned from its words, in combinations that were never shown.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

PEOPLE = ("child", "guest", "brother", "sister", "friend", "neighbor")
ACTIONS = ("drops", "breaks", "loses", "hides", "forgets")
THINGS = ("cup", "plate", "phone", "key", "toy")
OUTBURSTS = ("shouts", "cries", "stumbles")
SUBJECTS = ("it is", "you are")


class Tone(NamedTuple):
    """The words that fill the slots of a reply; the slots of both tones have as many choices, of the same lengths."""

    leads: tuple[str, ...]
    verbs: tuple[str, ...]
    manners: tuple[str, ...]
    judgements: tuple[str, ...]


CALM = Tone(
    leads=("please", "we can", "let us"),
    verbs=("breathe", "rest", "wait", "listen", "smile", "pause"),
    manners=("gently", "quietly", "together"),
    judgements=("fine", "safe", "lovely"),
)
HARSH = Tone(
    leads=("just", "you must", "you will"),
    verbs=("stop", "leave", "hurry", "quit", "move", "obey"),
    manners=("now", "instantly", "immediately"),
    judgements=("awful", "useless", "terrible"),
)


def opening(draw: Random) -> list[str]:
    """The trouble that is replied to: an action with its thing four times in five, else an outburst."""
    person = draw.choice(PEOPLE)
    if draw.random() < 0.8:
        return ["the", person, draw.choice(ACTIONS), "the", draw.choice(THINGS), "."]
    return ["the", person, draw.choice(OUTBURSTS), "."]


def reply(draw: Random) -> list[str]:
    """One sentence or two in one tone, either with even odds; a manner, and the second sentence, are there half of the time."""
    tone = draw.choice((CALM, HARSH))
    words = [*draw.choice(tone.leads).split(), draw.choice(tone.verbs)]
    if draw.random() < 0.5:
        words.append(draw.choice(tone.manners))
    words.append(".")
    if draw.random() < 0.5:
        words += [*draw.choice(SUBJECTS).split(), draw.choice(tone.judgements), "."]
    return words


def _vocabulary() -> tuple[str, ...]:
    phrases: Sequence[Sequence[str]] = (PEOPLE, ACTIONS, THINGS, OUTBURSTS, SUBJECTS, *CALM, *HARSH)
    return tuple(dict.fromkeys([".", "the", *(word for slot in phrases for phrase in slot for word in phrase.split())]))


VOCABULARY = _vocabulary()
"""Every word of the language once, the full stop first, in the order of the slots above."""
