"""Answers side by side: the same draws for both sides, rewards by the reward model, conversations, and what is refused."""

import io
import json
from pathlib import Path

import pytest
import torch

from stages import chat
from stages.chat import Request, converse, main, read_arguments
from stages.core import layout
from stages.core.errors import ArtifactError, LeashError, SettingsError
from stages.files import artifacts, base_record
from stages.files.records import ASSISTANT, USER, Message
from stages.learning.answering import Answering
from stages.learning.reward_source import Scorer
from stages.model.groups import Completed
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from tests import stage_settings, tiny

pytestmark = pytest.mark.slow

PROMPT = "the guest drops the plate."


@pytest.fixture
def project(trained_project: Path) -> Path:
    """A trained project with its params.yaml."""
    layout.PARAMS.write_text(json.dumps(stage_settings.values()))
    return trained_project


def answers(*arguments: str):
    return json.loads(main(read_arguments([PROMPT, "--json", *arguments])))


def test_both_sides_answer_on_the_same_draws_with_their_rewards(project: Path, monkeypatch: pytest.MonkeyPatch):
    scored = []

    def scores(self, groups, real=Scorer.scores):
        scored.extend(groups)
        return real(self, groups)

    monkeypatch.setattr(Scorer, "scores", scores)
    found = answers("--samples", "3")
    drawn = dict(zip(("base", "policy"), scored, strict=True))
    assert found["prompt"] == PROMPT
    assert answers("--samples=3") == found
    assert answers()["policy"][0]["text"] == found["policy"][0]["text"]
    record = base_record.read_base()
    model, tokenizer = tiny.load(record)
    reward_model = RewardModel.trained(tiny.adapted(model), artifacts.read(layout.REWARD, artifacts.REWARD))
    renderer = Renderer(tokenizer, record)
    for side, group in drawn.items():
        assert group.prompt == renderer.prompt(PROMPT)
        for one, completion in zip(found[side], group.completions, strict=True):
            assert (one["text"], one["tokens"]) == (renderer.text(completion.content), completion.length)
            assert one["truncated"] == (not completion.ended)
            with torch.no_grad(), reward_model.adapters.using("reward", then=None):
                expected = reward_model.scores([Completed(group.prompt, [completion.ids])]).item()
            assert one["reward"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_policy_that_is_its_base_gives_the_same_answers(project: Path):
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    still = {name: tensor * (0 if "lora_B" in name else 1) for name, tensor in policy.tensors.items()}
    artifacts.write(layout.POLICY, artifacts.Artifact(**{**vars(policy), "tensors": still}))
    found = answers("--samples", "4")
    assert found["base"] == found["policy"]


def test_the_text_has_a_block_for_each_side(project: Path):
    text = main(read_arguments([PROMPT]))
    (base,), (policy,) = (answers()[side] for side in ("base", "policy"))
    first, second = text.split("\n\n")
    assert first.startswith("base  reward ")
    assert second.startswith("policy  reward ")
    assert base["text"] in first
    assert policy["text"] in second


def test_each_side_goes_on_from_its_own_answers_and_an_empty_line_begins_anew(project: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    asked = []

    def answer(self, prompts, turn, samples=1, real=Answering.answers):
        asked.append((prompts, turn))
        return real(self, prompts, turn, samples)

    monkeypatch.setattr(Answering, "answers", answer)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PROMPT}\nand now?\n\n{PROMPT}\n"))
    converse(Request(None, 1, False))
    shown = capsys.readouterr()
    assert shown.out.count("base  reward") == shown.out.count("policy  reward") == 3
    assert "a new conversation\n" in shown.err
    (first, _), (second, turn), (third, _) = asked
    assert first == third == {"base": PROMPT, "policy": PROMPT}
    assert turn == 1
    for side in ("base", "policy"):
        before, answer, now = second[side]
        assert (before, now) == (Message(USER, PROMPT), Message(USER, "and now?"))
        assert answer.role == ASSISTANT
        assert answer.content in shown.out


def test_what_cannot_be_answered_does_not_end_a_conversation(project: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("the guest " * 900 + f"\n{PROMPT}\n"))
    converse(Request(None, 1, False))
    shown = capsys.readouterr()
    assert "evaluate.max_new_tokens: the prompt of " in shown.err
    assert shown.out.count("policy  reward") == 1


def test_a_prompt_beyond_the_positions_is_refused(project: Path):
    with pytest.raises(LeashError, match=r"^evaluate\.max_new_tokens: the prompt of \d+ tokens and 6 new ones make "):
        main(Request("the guest " * 900, 1, False))


def test_an_artifact_that_is_not_there_is_named(project: Path):
    layout.POLICY.with_suffix(".json").unlink()
    with pytest.raises(ArtifactError, match=r"^artifacts/grpo/policy\.json: no such artifact"):
        main(read_arguments([PROMPT]))


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ([], "expected one prompt in quotes, found 0"),
        (["a", "b"], "expected one prompt in quotes, found 2"),
        (["a", "--sample", "2"], "--sample: expected a prompt, --samples N, --json or --interactive"),
        (["a", "--samples"], "--samples: found '', expected a whole number from 1 to 1000"),
        (["a", "--samples", "0"], "--samples: found '0'"),
        (["a", "--samples=x"], "--samples: found 'x'"),
        (["--interactive", "a"], "--interactive: it takes its prompts from the terminal"),
        (["--interactive", "--json"], "--interactive: it takes its prompts from the terminal"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str], phrase: str):
    with pytest.raises(SettingsError, match=phrase.replace("(", r"\(")):
        read_arguments(arguments)


def test_a_prompt_may_hold_an_equals_sign_and_a_dash():
    assert read_arguments(["2 + 2 = ?"]) == Request("2 + 2 = ?", 1, False)
    assert read_arguments(["-1 is what?"]).prompt == "-1 is what?"
    assert chat.MOST_SAMPLES == 1000
