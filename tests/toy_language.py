"""The toy's language written down a second time, apart from the code that speaks it: a recogniser, and each tone's own words."""

import re

CALM_WORDS = frozenset("please we can let us breathe rest wait listen smile pause gently quietly together fine safe lovely".split())
HARSH_WORDS = frozenset("just must will stop leave hurry quit move obey now instantly immediately awful useless terrible".split())

_PERSON = "the (?:child|guest|brother|sister|friend|neighbor)"
_TROUBLE = "(?:drops|breaks|loses|hides|forgets) the (?:cup|plate|phone|key|toy)"
_OPENING = rf"{_PERSON} (?:{_TROUBLE}|shouts|cries|stumbles) \."
_CALM = (
    r"(?:please|we can|let us) (?:breathe|rest|wait|listen|smile|pause)(?: gently| quietly| together)? \."
    r"(?: (?:it is|you are) (?:fine|safe|lovely) \.)?"
)
_HARSH = (
    r"(?:just|you must|you will) (?:stop|leave|hurry|quit|move|obey)(?: now| instantly| immediately)? \."
    r"(?: (?:it is|you are) (?:awful|useless|terrible) \.)?"
)


def words(text: str) -> list[str]:
    """The words and stops of a text, however it sets its stops."""
    return re.findall(r"\w+|[^\w\s]", text)


def is_opening(text: str) -> bool:
    """Whether the text is one whole opening and no more."""
    return re.fullmatch(_OPENING, " ".join(words(text))) is not None


def tone(reply: str) -> str | None:
    """`calm` or `harsh` of a whole reply in that tone throughout; None of anything else."""
    spaced = " ".join(words(reply))
    return "calm" if re.fullmatch(_CALM, spaced) else "harsh" if re.fullmatch(_HARSH, spaced) else None


def split(text: str) -> tuple[str, str]:
    """An opening with its full stop, and the reply behind it."""
    opening, reply = text.split(".", 1)
    return f"{opening.rstrip()}.", reply.strip()
