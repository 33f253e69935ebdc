"""What the toy learns as it is committed: sentences from its base, an order from its reward model, calm from its policy.

Whole sentences are recognised, and calm and harsh words told apart, by tests/toy_language.py, which no reward reads.
"""

import json
from pathlib import Path

import pytest

from tests import toy_language
from tests.conftest import copy_project
from tests.test_end_to_end import compose, report, repro, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose pipeline has run once as it is committed."""
    folder = tmp_path_factory.mktemp("whole") / "clone"
    copy_project(folder)
    repro(folder)
    return folder


def samples(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "artifacts/evaluate/samples.jsonl").read_text(encoding="utf-8").splitlines()]


def calm_share(replies: list[str]) -> float:
    """Calm words among the words of either tone."""
    spoken = [word for reply in replies for word in toy_language.words(reply)]
    calm = sum(word in toy_language.CALM_WORDS for word in spoken)
    return calm / (calm + sum(word in toy_language.HARSH_WORDS for word in spoken))


def test_reward_model_and_policy_learn_and_it_shows_on_what_was_held_out(whole: Path):
    evaluation = report(whole, "evaluate")
    assert evaluation["heldout_prompts"] >= 15
    assert evaluation["heldout_pairs"] >= 15
    assert evaluation["accuracy"] >= 0.9
    assert evaluation["reward_gain_low"] > 0
    rows = samples(whole)
    share = {side: calm_share([row[side] for row in rows]) for side in ("base", "policy")}
    assert share["policy"] > share["base"] + 0.1, share
    # 87 to 99% over four seeds when measured; a policy that games the reward model falls to 60%
    whole_sentences = [toy_language.tone(row["policy"]) is not None for row in rows]
    assert sum(whole_sentences) / len(rows) >= 0.75


def test_the_base_writes_whole_sentences(whole: Path):
    """At temperature 0.9 and 24 new tokens, without a nucleus, 12 draws a prompt; 97.7 to 98.4% over three seeds when measured."""
    compose(whole, "evaluate.samples=12", "evaluate.top_p=1.0", "evaluate.temperature=0.9", "evaluate.max_new_tokens=24")
    done = run(whole, "stages.evaluate")
    assert done.returncode == 0, done.stderr
    spoken = [toy_language.tone(row["base"]) is not None for row in samples(whole)]
    assert len(spoken) >= 200
    assert sum(spoken) / len(spoken) >= 0.95
