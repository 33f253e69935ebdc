"""JSON as its standard has it, with the place of everything: what Python's decoder lets pass is refused here.

Refused beside broken syntax: NaN and the infinities, numbers that overflow to one, whole numbers too long to be written
again, keys that stand twice in one object, lone surrogates. A sound text is decoded at the speed of Python's own decoder;
only a text with a flaw, or one in which a value must be found again, is walked token by token.
"""

import json
import math
import re
from typing import Any, NamedTuple, NoReturn

from stages.files.intake.rows import Keys

LONGEST_INTEGER = 4000
"""Digits of a whole number; Python itself refuses to write one of more than 4300."""

SHOWN = 20
"""How many characters of a token a message repeats."""

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
SURROGATE = re.compile("[\ud800-\udfff]")
TOKEN = re.compile(r'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]+)')


class Flaw(NamedTuple):
    """Something wrong at an offset of the text, as a phrase: what was found, what was expected, what to do."""

    offset: int
    phrase: str


TOO_DEEP = Flaw(0, "the JSON is nested too deeply; rows of a few levels are expected; flatten it")


class FlawedError(ValueError):
    """A text that is not strict JSON: its one break in syntax, or else every other flaw that it has, and what it holds all the same."""

    def __init__(self, flaws: list[Flaw], value: Any = None, is_sound: bool = False) -> None:
        super().__init__("; ".join(flaw.phrase for flaw in flaws))
        self.flaws = flaws
        self.value = value
        self.is_sound = is_sound
        """Whether the syntax is, so that there is a value."""


def parse(text: str) -> Any:
    """The value that the text holds; raises FlawedError."""
    try:
        value = STRICT.decode(text)
        if not SURROGATE_ESCAPE.search(text):
            return value
    except json.JSONDecodeError as error:
        raise FlawedError([_syntax(error, text)]) from None
    except RecursionError:
        raise FlawedError([TOO_DEEP]) from None
    except _SuspectError:
        try:
            value = LENIENT.decode(text)
        except json.JSONDecodeError as error:
            raise FlawedError([_syntax(error, text)]) from None
        except RecursionError:
            raise FlawedError([TOO_DEEP]) from None
    _, flaws = _walk(text)
    if flaws:
        raise FlawedError(flaws, value, is_sound=True)
    return value


def starts(text: str, start: int = 0, depth: int | None = None) -> dict[Keys, int]:
    """The offset at which every value begins within the one at `start` of a sound JSON text, down to `depth` keys."""
    return _walk(text, start, depth)[0]


class _SuspectError(Exception):
    """A flaw was met; where it is, and whether there are more, only a walk can say."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _SuspectError
    return value


def _constant(_: str) -> NoReturn:
    raise _SuspectError


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _SuspectError
    return value


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise _SuspectError
    return int(digits)


STRICT = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_number, parse_int=_integer)
LENIENT = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= LONGEST_INTEGER else float(digits))


def _syntax(error: json.JSONDecodeError, text: str) -> Flaw:
    rest = text[error.pos : error.pos + 12]
    if rest.startswith("\ufeff"):
        return Flaw(
            error.pos,
            "a byte-order mark stands inside the file, as where two files were joined; one stands at the beginning only; remove it",
        )
    found = json.dumps(rest, ensure_ascii=not rest.isprintable()) if rest else "the end"
    reason = error.msg[0].lower() + error.msg[1:]
    if text[: error.pos].rstrip().endswith(",") and rest[:1] in ("]", "}", ""):
        reason = "a comma after the last item"
    elif error.msg.startswith("Invalid control character"):
        reason = "a line end or another control character as it is inside a string, where JSON has \\n and the like"
    return Flaw(error.pos, f"broken JSON: {reason}, found {found}; one whole JSON value is expected; mend it here")


class _Container:
    """An object or list that the walk is in: the way to it, and the key or index of the value that comes next."""

    def __init__(self, keys: Keys, is_object: bool) -> None:
        self.keys = keys
        self.is_object = is_object
        self.seen: set[str] = set()
        self.key: str | int | None = None if is_object else 0


def _walk(text: str, start: int = 0, depth: int | None = None) -> tuple[dict[Keys, int], list[Flaw]]:
    """Where each value begins, and the flaws, of a value whose syntax is sound; without recursion, whatever the depth."""
    begins: dict[Keys, int] = {}
    flaws: list[Flaw] = []
    within: list[_Container] = []
    for match in TOKEN.finditer(text, start):
        token, offset = match[1], match.start(1)
        inner = within[-1] if within else None
        if token == ":":
            continue
        if token in "}]":
            within.pop()
            if not within:
                break
            continue
        if token == ",":
            assert inner is not None
            inner.key = None if isinstance(inner.key, str) else (inner.key or 0) + 1
            continue
        if token[0] == '"':
            content = json.loads(token)
            if SURROGATE.search(content):
                flaws.append(Flaw(offset, "a lone surrogate escape (\\ud800 to \\udfff) is no character; write the whole character"))
            if inner is not None and inner.is_object and inner.key is None:
                if content in inner.seen:
                    flaws.append(
                        Flaw(
                            offset,
                            f"the key {_short(token)} stands twice in one object; each key once is expected; remove one",
                        )
                    )
                inner.seen.add(content)
                inner.key = content
                continue
        keys = (*inner.keys, inner.key) if inner is not None and inner.key is not None else ()
        if depth is None or len(keys) <= depth:
            begins[keys] = offset
        if token in "{[":
            within.append(_Container(keys, token == "{"))
        elif token in ("NaN", "Infinity", "-Infinity") or _overflows(token):
            shown = _short(token)
            flaws.append(
                Flaw(offset, f"{shown} is no finite number of at most {LONGEST_INTEGER} digits, which is expected; mend or remove it")
            )
        if not within:
            break
    return begins, flaws


def _short(token: str) -> str:
    return token if len(token) <= SHOWN else f"{token[:SHOWN]}..."


def _overflows(token: str) -> bool:
    if token[0] not in "-0123456789":
        return False
    return len(token) > LONGEST_INTEGER if token.lstrip("-").isdigit() else math.isinf(float(token))
