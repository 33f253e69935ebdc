"""Base and policy answer side by side, each answer with its reward.

usage    python -m stages.chat "a prompt" [--samples N] [--json]
         python -m stages.chat --interactive
         both sides' tokens are chosen by the same draws, by the settings of section evaluate; --interactive asks for lines until
         the input ends, each side going on from its own answers; an empty line begins a new conversation
reads    artifacts/base, both artifacts, section evaluate of params.yaml
writes   nothing
refuses  artifacts of another base; a prompt that runs beyond the model's positions
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stages.core import params as params_file
from stages.core import runner, wording
from stages.core.errors import LeashError, SettingsError
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.runtime import Runtime
from stages.files.records import ASSISTANT, USER, Conversation, Message
from stages.learning import answering
from stages.learning.answering import SIDES, Answer, Answering

MOST_SAMPLES = 1000


@dataclass(frozen=True)
class Params:
    """The sections that answering reads."""

    evaluate: Evaluate
    runtime: Runtime


class Request(NamedTuple):
    """What one call asks for."""

    prompt: str | None
    """None where it is to be a conversation."""
    samples: int
    json: bool


def main(request: Request) -> str:
    """Answers one prompt and returns what is to be printed."""
    assert request.prompt is not None
    params = params_file.load(Params)
    ready = answering.opened(params.evaluate, params.runtime)
    found = ready.answers(dict.fromkeys(SIDES, request.prompt), 0, request.samples)
    if request.json:
        return runner.as_json({"prompt": request.prompt, **{side: [one._asdict() for one in answers] for side, answers in found.items()}})
    return "\n".join(shown(found, draw) for draw in range(request.samples))


def converse(_: Request) -> None:
    """Answers lines of stdin until it ends."""
    params = params_file.load(Params)
    ready = answering.opened(params.evaluate, params.runtime)
    said: dict[str, Conversation] = dict.fromkeys(SIDES, ())
    turn = 0
    for line in _lines():
        if not line.strip():
            said = dict.fromkeys(SIDES, ())
            sys.stderr.write("a new conversation\n")
            continue
        try:
            found = _turn(ready, said, line, turn)
        except LeashError as error:
            sys.stderr.write("".join(f"{problem}\n" for problem in error.lines()))
            continue
        said = {side: (*said[side], Message(USER, line), Message(ASSISTANT, answers[0].text)) for side, answers in found.items()}
        turn += 1
        sys.stdout.write(shown(found, 0) + "\n")
        sys.stdout.flush()


def _turn(ready: Answering, said: dict[str, Conversation], line: str, turn: int) -> dict[str, list[Answer]]:
    """Both sides' answers to a line; the first of a conversation is a prompt as a data file has it."""
    return ready.answers({side: (*before, Message(USER, line)) if before else line for side, before in said.items()}, turn)


def shown(found: dict[str, list[Answer]], draw: int) -> str:
    """One draw's answers, each under its side's name and reward."""
    parts = []
    for side, answers in found.items():
        one = answers[draw]
        cut = ", truncated" if one.truncated else ""
        parts.append(
            f"{side}  reward {wording.number(one.reward)}, {wording.counted(one.tokens, 'token')}{cut}\n{wording.seen(one.text)}\n"
        )
    return "\n".join(parts)


def read_arguments(arguments: Sequence[str]) -> Request:
    """The request in the command line; raises SettingsError for one that makes no sense."""
    prompts: list[str] = []
    samples, json, interactive = 1, False, False
    waiting = list(arguments)
    while waiting:
        option, equals, value = waiting.pop(0).partition("=")
        if option == "--samples":
            samples = _samples(value if equals else waiting.pop(0) if waiting else "")
        elif option in ("--json", "--interactive") and not equals:
            json, interactive = json or option == "--json", interactive or option == "--interactive"
        elif option.startswith("--"):
            raise SettingsError(f"{option}: expected a prompt, --samples N, --json or --interactive")
        else:
            prompts.append(option + equals + value)
    if interactive and (prompts or samples > 1 or json):
        raise SettingsError("--interactive: it takes its prompts from the terminal, one answer each; leave the other arguments out")
    if not interactive and len(prompts) != 1:
        raise SettingsError(f'python -m stages.chat: expected one prompt in quotes, found {len(prompts)}: "a prompt", or --interactive')
    return Request(None if interactive else prompts[0], samples, json)


def _samples(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST_SAMPLES:
        raise SettingsError(f"--samples: found {text[:40]!r}, expected a whole number from 1 to {MOST_SAMPLES}")
    return int(text)


def _lines() -> Iterator[str]:
    """The lines of stdin, asked for where it is a terminal."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


if __name__ == "__main__":
    if sys.argv[1:] in (["--help"], ["-h"]):
        runner.print_help(main)

    if "--interactive" in sys.argv[1:]:
        runner.attempt("chat", lambda: converse(read_arguments(sys.argv[1:])))
    runner.finish("chat", lambda: main(read_arguments(sys.argv[1:])))
