"""A comparison as text: tables as wide as the terminal, or 160 columns and without colours where there is none."""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from stages.core import wording
from stages.versions.comparison import Comparison
from stages.versions.completions import Heldout, HeldoutPrompt
from stages.versions.rows import Row
from stages.versions.updates import ArtifactChange, Distance

ROWS, PROMPTS, CHARACTERS = 20, 50, 400
"""How many rows of each kind of change, held-out prompts, and characters of one text are shown; the rest are counted."""


class Page(NamedTuple):
    """What the text is written for."""

    terminal: bool
    width: int


PLAIN = Page(terminal=False, width=160)


def render(compared: Comparison, page: Page = PLAIN) -> str:
    """The whole comparison."""
    written = io.StringIO()
    console = Console(
        file=written,
        width=page.width,
        force_terminal=page.terminal,
        no_color=None if page.terminal else True,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in _parts(compared):
        console.print(part, soft_wrap=isinstance(part, Text))
    lines = written.getvalue().splitlines()
    return "\n".join(lines if page.terminal else [line.rstrip() for line in lines])


def _parts(compared: Comparison) -> Iterator[RenderableType]:
    yield Text(wording.seen(f"A {compared.a.label}\nB {compared.b.label}"))
    for line in (*compared.unavailable, *compared.notes):
        yield Text(f"! {wording.seen(line)}", style="yellow")
    if compared.is_empty():
        yield Text("\nnothing differs: settings, figures, artifacts, rows and held-out completions are the same")
    yield from _settings(compared)
    yield from _metrics(compared)
    if compared.heldout:
        yield from _heldout("held-out completions", compared.heldout)
    for fresh in compared.fresh:
        yield from _heldout("fresh completions", fresh)
    yield from _rows(compared)
    for change in compared.artifacts:
        yield from _artifact(change)


def _settings(compared: Comparison) -> Iterator[RenderableType]:
    for title, changes in (("settings", compared.settings), ("base", compared.base)):
        if changes is None:
            continue
        yield _title(f"{title}: {wording.counted(len(changes), 'difference')}")
        if changes:
            told = [
                (one.key, wording.value(one.a), wording.value(one.b), "changes numbers by rounding alone" if one.rounding_alone else "")
                for one in changes
            ]
            yield _table(("key", "A", "B", ""), told)


def _metrics(compared: Comparison) -> Iterator[RenderableType]:
    yield _title("metrics [95% interval]")
    if compared.metrics:
        told = [
            (f"{one.report}.{one.key}", wording.measured(one.a), wording.measured(one.b), wording.number(one.difference, signed=True))
            for one in compared.metrics
        ]
        yield _table(("figure", "A", "B", "B - A"), told, right=(1, 2, 3))


def _artifact(change: ArtifactChange) -> Iterator[RenderableType]:
    if change.identical:
        yield _title(f"{change.name}: identical ({wording.counted(len(change.tensors), 'tensor')}, sha256 {change.weights_sha256_a[:12]})")
        return
    differing = sum(one.relative_change != 0 for one in change.tensors)
    yield _title(f"{change.name}: {differing} of {wording.counted(len(change.tensors), 'tensor')} differ")
    if not change.same_base:
        yield Text("! the two were trained on bases of different fingerprints", style="yellow")
    columns = ("norm A", "norm B", "relative change", "cosine")
    yield _table(("update: scale B A", *columns), map(_distance, [change.whole, *change.updates]), right=(1, 2, 3, 4))
    yield Text()
    yield _table(("tensor", *columns), map(_distance, change.tensors), right=(1, 2, 3, 4))


def _distance(one: Distance) -> Sequence[str]:
    return (one.name, *map(wording.number, (one.norm_a, one.norm_b, one.relative_change, one.cosine)))


def _rows(compared: Comparison) -> Iterator[RenderableType]:
    for change in compared.rows:
        kinds: dict[str, list[Row]] = {"added": change.added, "removed": change.removed, "moved": change.moved}
        yield _title(f"{change.kind}: {', '.join(f'{len(found)} {what}' for what, found in kinds.items())}")
        told = [(what, one.split, _cut(wording.row(one.row))) for what, found in kinds.items() for one in found[:ROWS]]
        if told:
            yield _table(("", "split", "row"), told)
        for what, found in kinds.items():
            if len(found) > ROWS:
                yield Text(f"... and {len(found) - ROWS} more {what}; --json has all")


def _heldout(title: str, heldout: Heldout) -> Iterator[RenderableType]:
    yield _title(f"{title}: {wording.counted(len(heldout.prompts), 'prompt')}, scored by {heldout.scored_by}")
    if paired := heldout.paired:
        draws = wording.counted(sum(len(one.draws) for one in heldout.prompts), "draw")
        yield Text(
            f"mean reward of the policy over {draws}: A {wording.number(paired.reward_a)}, B {wording.number(paired.reward_b)}, "
            f"B - A {wording.number(paired.difference, signed=True)}{wording.interval(paired.difference_low, paired.difference_high)}"
            f"{wording.verdict(paired.difference_low, paired.difference_high)}\n"
            f"B against A, win rate: {wording.number(paired.win_rate)}{wording.interval(paired.win_rate_low, paired.win_rate_high)}"
        )
    if heldout.draws_apart:
        yield Text(f"{wording.counted(heldout.draws_apart, 'draw')} of these prompts on one side alone")
    if heldout.prompts:
        told = [
            (
                _cut(wording.prompt(one.prompt)),
                wording.number(one.reward_a),
                wording.number(one.reward_b),
                wording.number(one.difference, signed=True),
                *(_cut(text) for text in _telling(one)),
            )
            for one in heldout.prompts[:PROMPTS]
        ]
        yield _table(("prompt", "reward A", "reward B", "B - A", "draw that differs most, A", "B"), told, right=(1, 2, 3))
    if len(heldout.prompts) > PROMPTS:
        yield Text(f"... and {len(heldout.prompts) - PROMPTS} more prompts; --json and --html have all, and every draw")
    for side, only in (("A", heldout.only_a), ("B", heldout.only_b)):
        if only:
            yield Text(f"{wording.counted(len(only), 'prompt')} in {side} alone:")
            yield _table(("prompt",), [(_cut(wording.prompt(one)),) for one in only[:ROWS]])
            if len(only) > ROWS:
                yield Text(f"... and {len(only) - ROWS} more; --json and --html have all")


def _telling(prompt: HeldoutPrompt) -> tuple[str, str]:
    """Both policies' completions of the draw in which they differ most; of the first where they write the same."""
    unlike = [draw for draw in prompt.draws if draw.policy_a != draw.policy_b]
    draw = max(unlike or prompt.draws[:1], key=lambda one: abs(one.reward_b - one.reward_a))
    return draw.policy_a, draw.policy_b


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Table:
    """Cells are texts and never markup; what does not fit is folded, the widest column first, and nothing is cropped."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(Text(name), overflow="fold", justify="right" if place in right else "left")
    for row in rows:
        table.add_row(*(Text(wording.seen(cell)) for cell in row))
    return table


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}... and {len(text) - CHARACTERS} more characters"
