"""Types, ranges and missing values: turns a section of params.yaml into its frozen dataclass, or lists all that is wrong.

A section is a frozen dataclass with one field per key and no defaults (a default exists once, in conf/); `setting`
attaches a range check to a field. Hydra's own typing, dataclasses in its ConfigStore, is not used: it stops at the first
problem, while here every key that is missing, unknown, mistyped or out of range is told at once.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Check = Callable[[Any], str | None]
"""Takes a value of the right type; returns what is wrong with it as a phrase, or None."""

MISSING = "???"
"""How Hydra and OmegaConf write a value that must be given."""


NEAR = 0.6
"""Likeness of two words, from 0 to 1, above which one is taken for a misspelling of the other."""

SHOWN_CHARACTERS = 60
"""How much of a value is repeated in a message."""

MAX_SEED = 2**63 - 1
"""The largest seed that every generator in use takes."""

_FOUND: dict[type, str] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a decimal number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}


MOST = 2**31 - 1
"""No count here means more than a 32-bit number can say."""

LARGEST = 1e30
"""No factor here is larger: beyond it float32, which training computes in, overflows."""


class Built(NamedTuple):
    """A section read from its mapping: `value` is None where there are problems."""

    value: Any
    problems: list[str]


def setting(*checks: Check) -> Any:
    """A key of a section: no default, and the checks its value must pass, in order, the first failure is the one told."""
    return dataclasses.field(metadata={"checks": checks})


def optional(*checks: Check) -> Any:
    """A key of an entry of a list that may be left out, which means null."""
    return dataclasses.field(metadata={"checks": checks, "optional": True})


def at_least(low: float, otherwise: str) -> Check:
    """Passes values of `low` or more, up to MOST; `otherwise` is what is said of those below."""
    return between(low, MOST, otherwise)


def between(low: float, high: float, otherwise: str) -> Check:
    """Passes values from `low` to `high`, both included; `otherwise` is what is said of those below."""

    def check(value: Any) -> str | None:
        if value > high:
            return f"expected at most {high}"
        return None if value >= low else otherwise

    return check


def finite_above_zero(otherwise: str) -> Check:
    """Passes finite values above zero, up to LARGEST."""
    return lambda value: _too_large(value) if math.isfinite(value) and value > 0 else otherwise


def temperature(otherwise: str, *, greedy: bool) -> Check:
    """Passes finite temperatures from 1e-6 on, below which log-probabilities are no numbers; and 0 where greedy is allowed."""

    def check(value: float) -> str | None:
        if not math.isfinite(value) or value < 0 or (value == 0 and not greedy):
            return otherwise
        return _too_large(value) if value == 0 or value >= 1e-6 else "expected a temperature of at least 1e-06"

    return check


def finite_not_zero(otherwise: str) -> Check:
    """Passes finite values other than zero, down to -LARGEST and up to LARGEST."""
    return lambda value: _too_large(abs(value)) if math.isfinite(value) and value != 0 else otherwise


def finite_from_zero(otherwise: str) -> Check:
    """Passes finite values of zero or more, up to LARGEST."""
    return lambda value: _too_large(value) if math.isfinite(value) and value >= 0 else otherwise


def above(low: float, high: float, otherwise: str) -> Check:
    """Passes values above `low`, up to and including `high`."""
    return lambda value: None if low < value <= high else otherwise


def seed(value: int) -> str | None:
    """Passes whole numbers that a generator can be seeded with."""
    return None if 0 <= value <= MAX_SEED else f"a seed is a whole number from 0 to {MAX_SEED}"


def one_of(*allowed: str) -> Check:
    """Passes the words listed."""
    return lambda value: None if value in allowed else f"expected one of {', '.join(allowed)}"


def not_empty(otherwise: str) -> Check:
    """Passes texts and lists that hold something."""
    return lambda value: None if len(value) > 0 else otherwise


def build_one_of(classes: Sequence[type[Any]], section: str, values: object, known: Iterable[str] = ()) -> Built:
    """The section read from `values`, or every problem in it, one line each, starting with the dotted key.

    Of several shapes it is read as the one that the fewest keys are missing of. Whole numbers, and texts that read as numbers
    (`5e-5`), are decimal numbers where one is expected; a boolean is never a number, nor is 8.0 a whole one. `known` are dotted
    keys beyond the section's own among which an unknown key's nearest neighbour is looked for.
    """
    if values is None:
        return Built(None, [f"{section} is missing: conf/config.yaml's defaults list has to name an option of conf/{section}/"])
    if not isinstance(values, Mapping):
        return Built(None, [f"{section}: expected a mapping of settings, found {show(values)}"])
    cls = min(classes, key=lambda shape: len(keys(shape) - set(values)))
    known = {*known, *(f"{section}.{key}" for shape in classes for key in leaves(shape))}
    problems = [_unknown(cls, classes, f"{section}.{key}", known) for key in values if key not in keys(cls)]
    hints = typing.get_type_hints(cls)
    read: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        absent = None if field.metadata.get("optional") else MISSING
        one = _read(field, hints[field.name], f"{section}.{field.name}", values.get(field.name, absent), known)
        read[field.name] = one.value
        problems += one.problems
    if problems:
        return Built(None, problems)
    value = cls(**read)
    together = value.conflicts() if hasattr(value, "conflicts") else []
    return Built(None if together else value, together)


def keys(cls: type[Any]) -> set[str]:
    """The keys of a section's class."""
    return {field.name for field in dataclasses.fields(cls)}


def leaves(cls: type[Any]) -> set[str]:
    """The same, with the keys of a mapping among them in its stead, dotted."""
    hints = typing.get_type_hints(cls)
    nested = {name: leaves(hints[name]) for name in keys(cls) if dataclasses.is_dataclass(hints[name])}
    return {key for name in keys(cls) for key in ({f"{name}.{inner}" for inner in nested[name]} if name in nested else {name})}


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What is said of a dotted key that no section has: its nearest neighbour, or what its section does have."""
    near = neighbour(key, known)
    if near is not None:
        return f"{key} is not a setting; did you mean {near}?"
    section = key.partition(".")[0]
    own = [name.partition(".")[2] for name in sorted(known) if name.startswith(section + ".")]
    sections = sorted({name.partition(".")[0] for name in known})
    if own:
        there = f"{section} has {', '.join(own)}"
    elif section in known:
        there = f"{section} has no settings of its own"
    else:
        there = f"the sections are {', '.join(sections)}"
    return f"{key} is not a setting; {there}"


def neighbour(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key whose last word is most like this one's, the section deciding between equals; None if none is near."""
    section, _, leaf = key.rpartition(".")
    best, likeness = None, 0.0
    for name in sorted(known):
        its_section, _, its_leaf = name.rpartition(".")
        of_leaf = _likeness(leaf, its_leaf)
        score = of_leaf + 0.25 * _likeness(section, its_section)
        if of_leaf >= NEAR and score > likeness:
            best, likeness = name, score
    return best


def typed(hint: Any, value: object) -> Any:
    """The value as the hint has it; raises TypeError where it is of another type."""
    options = _options(hint)
    if value is None and types.NoneType in options:
        return None
    for option in options:
        if option is float and (number := _number(value)) is not None:
            return number
        if typing.get_origin(option) is list and isinstance(value, list):
            return [typed(typing.get_args(option)[0], item) for item in value]
        if option in (int, bool, str) and type(value) is option:
            return value
        if typing.get_origin(option) is dict and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return dict(value)
    raise TypeError


def show(value: object) -> str:
    """The value as it is repeated in a message: short, on one line, texts in quotes."""
    try:
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # it holds itself, a key that is no text, more than can be followed
        text = kind(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def kind(value: object) -> str:
    """What a value is, in words: `a whole number`."""
    return "null" if value is None else _FOUND.get(type(value), f"a {type(value).__name__}")


def _too_large(value: float) -> str | None:
    return f"expected at most {LARGEST:g}" if value > LARGEST else None


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _read(field: dataclasses.Field[Any], hint: Any, key: str, value: object, known: Iterable[str]) -> Built:
    """The value of one key as its field has it, or what is wrong with it."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build_one_of((typing.cast(type[Any], hint),), key, value, known)
    entries = next((entry for entry in map(_entries_of, _options(hint)) if entry), None)
    if entries and isinstance(value, list):
        built = [build_one_of((entries,), f"{key}[{place}]", one) for place, one in enumerate(value)]
        if problems := [problem for one in built for problem in one.problems]:
            return Built(None, problems)
        found: Any = [one.value for one in built]
    else:
        try:
            found = typed(hint, value)
        except TypeError:
            return Built(None, [_missing(key) if value is None or value == MISSING else _mistyped(key, hint, value)])
    if value == MISSING:  # a text field would take it
        return Built(None, [_missing(key)])
    checks = () if found is None else field.metadata["checks"]  # where null is allowed, nothing is to be checked
    wrong = next((wrong for check in checks if (wrong := check(found)) is not None), None)
    return Built(found, [] if wrong is None else [f"{key}: {wrong} (found {show(value)})"])


def _entries_of(option: Any) -> type[Any] | None:
    """The class of the entries of a list of mappings; None where the hint is something else."""
    items = typing.get_args(option) if typing.get_origin(option) is list else ()
    return items[0] if items and isinstance(items[0], type) and dataclasses.is_dataclass(items[0]) else None


def _missing(key: str) -> str:
    section = key.partition(".")[0]
    if "[" in key:
        return f"{key} is missing: every entry of the list has one"
    return f"{key} is missing: set it in conf/{section}/ or with python -m stages.compose {key}=..."


def _mistyped(key: str, hint: Any, value: object) -> str:
    quotes = hint in (str, str | None) and isinstance(value, bool | int | float)
    advice = f"; a text that looks like one is put in quotes: {key}='\"{value}\"'" if quotes else ""
    return f"{key}: expected {_expected(hint)}, found {show(value)} ({kind(value)}){advice}"


def _unknown(cls: type[Any], classes: Sequence[type[Any]], key: str, known: Iterable[str]) -> str:
    leaf = key.partition(".")[2]
    for other in classes:
        if leaf in keys(other):
            return f"{key} belongs to {other.OPTION}; {cls.OPTION} has {', '.join(sorted(keys(cls)))}: choose the other, or drop {key}"
    return unknown_key(key, known)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _expected(hint: Any) -> str:
    singular = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "null"}
    several = {list[str]: "a list of texts", list[int]: "a list of whole numbers", dict[str, Any]: "a mapping of names to values"}
    if dataclasses.is_dataclass(hint):
        return "a mapping of settings"
    named = several | singular
    return " or ".join("a list of mappings" if _entries_of(option) else named[option] for option in _options(hint))


def _number(value: object) -> float | None:
    """The float that a number, or a text that reads as one, stands for; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not (value.isascii() and value == value.strip()):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
