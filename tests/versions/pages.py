"""A comparison made by hand, with what a text may hold that a terminal or a browser would take for more."""

import dataclasses
from typing import Any

from stages.files.artifacts import ADAPTER, REWARD
from stages.versions import completions, updates
from stages.versions.comparison import Comparison, Side
from stages.versions.figures import Figure, Measured
from stages.versions.rows import Row, RowChange
from stages.versions.settings import Change
from stages.versions.updates import Kept
from tests.versions.projects import PROMPTS, artifact, samples

MARKUP = "[bold]loud[/bold] [/] :smile: [link=x]"
HTML = "<script>alert('x')</script> & <b>"
CONTROL = "red \x1b[31mtext\x07 and\x9b2J"
MESSAGES = [{"role": "user", "content": "hello"}]


def interval(values: Any) -> tuple[float, float | None, float | None]:
    return float(values.mean()), float(values.min()), float(values.max())


def comparison(**changes: Any) -> Comparison:
    """Everything there is to show, a little of each."""
    prompts = [*PROMPTS, MARKUP, HTML, MESSAGES]
    a, b = Kept(artifact(), "a" * 64), Kept(artifact(seed=1), "b" * 64)
    reward = Kept(artifact(REWARD), "c" * 64)
    assert a.artifact.kind == ADAPTER
    whole = Comparison(
        a=Side("HEAD~1", "1" * 40, "HEAD~1 (1111111)"),
        b=Side("workspace", None, "workspace"),
        unavailable=[],
        notes=["held-out completions were not drawn alike"],
        settings=[Change("grpo.beta", 0.04, 0.1, False), Change("runtime.threads", 1, 2, True)],
        base=[],
        metrics=[Figure("evaluate", "reward_gain", Measured(0.5, 0.25, 0.75), Measured(1.0, None, None), 0.5)],
        artifacts=[updates.compare("reward", reward, reward), updates.compare("policy", a, b)],
        rows=[
            RowChange("prompts", [Row("train", {"prompt": MARKUP})], [Row("heldout", {"prompt": HTML})], []),
            RowChange("pairs", [], [], [Row("train", {"prompt": MESSAGES, "chosen": "yes", "rejected": CONTROL})]),
        ],
        heldout=completions.compare(
            samples(prompts, policy=MARKUP), samples([*prompts, CONTROL], policy=HTML, gain=0.5), "the reward model of both", interval
        ),
        fresh=[],
    )
    return dataclasses.replace(whole, **changes)


def same() -> Comparison:
    """Of two versions that do not differ."""
    kept = Kept(artifact(), "a" * 64)
    return comparison(
        notes=[],
        settings=[],
        metrics=[Figure("evaluate", "accuracy", Measured(1, None, None), Measured(1, None, None), 0)],
        artifacts=[updates.compare("policy", kept, kept)],
        rows=[RowChange("prompts", [], [], [])],
        heldout=completions.compare(samples(), samples(), "the reward model of both", interval),
    )
