"""Reward sources: what is refused before weights are loaded, and what scores are read off."""

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from stages.core import layout
from stages.core.errors import ArtifactError, SettingsError
from stages.core.settings.reward_parts import RewardPart
from stages.files import artifacts, outputs
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from stages.files.records import Prompt
from stages.learning.reward_source import OpenedPart, RewardSource, model_scorer, open_source, reopen
from stages.learning.scores import Drawn, Rewards, all_rated, weighted
from stages.model import toy
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs
from tests.learning.runs import BEGIN, base_record, cut, ended, ids

PROMPT = [BEGIN, *ids("the child drops the cup .")]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "rewards").mkdir(parents=True)


@pytest.fixture(scope="module")
def trained():
    return runs.train_reward(runs.calm_pairs(), epochs=1)


def artifact_of(trained, **changes) -> Artifact:
    fields = {
        "kind": REWARD,
        "model": "toy",
        "model_revision": None,
        "base_fingerprint": base_record().fingerprint,
        "rank": trained.plan.rank,
        "alpha": trained.plan.alpha,
        "targets": trained.plan.targets,
        "layers": trained.plan.layers,
        "hidden_size": 64,
        "report": {},
        "tensors": trained.tensors,
    }
    return Artifact(**{**fields, **changes})


def write(tmp_path, artifact: Artifact) -> str:
    path = tmp_path / "data" / "rewards" / "mine.safetensors"
    artifacts.write(path, artifact)
    return path.relative_to(tmp_path).as_posix()


# Opening


def test_length_needs_no_artifact():
    opened = open_source("length", base_record())
    assert opened == RewardSource((OpenedPart(RewardPart("length", 1.0, None, None)),))
    assert (opened.name, opened.files) == ("length", [])


@pytest.mark.parametrize("name", ["nope", "Length", "data/rewards/none.safetensors", "data/rewards", ""])
def test_what_is_neither_length_nor_a_file_is_refused(name):
    with pytest.raises(SettingsError) as refused:
        open_source(name, base_record())
    assert str(refused.value).startswith(
        f'grpo.reward: reward source "{name}" is neither the keyword length nor a file that exists, nor a function in stages/rewards/ '
        "(none); name one of those, artifacts/reward/reward.safetensors, or an artifact under data/rewards/"
    )


def test_the_pipelines_own_artifact_is_asked_for_where_it_is_missing():
    with pytest.raises(ArtifactError, match=r"^artifacts/reward/reward\.json: no such artifact; run `dvc repro`"):
        open_source("artifacts/reward/reward.safetensors", base_record())


def test_an_artifact_is_opened_under_the_name_that_reports_give_it(tmp_path, trained):
    path = write(tmp_path, artifact_of(trained))
    opened = open_source(path, base_record())
    assert opened.name == f"reward:{path}"
    assert [file.as_posix() for file in opened.files] == [path, path.replace(".safetensors", ".json")]
    assert reopen(opened.record(), base_record()).name == opened.name
    assert reopen(open_source("length", base_record()).record(), base_record()).name == "length"


def test_a_policy_is_not_taken_for_a_reward_model(tmp_path, trained):
    tensors = {name: tensor for name, tensor in trained.tensors.items() if name != HEAD}
    path = write(tmp_path, artifact_of(trained, kind=ADAPTER, tensors=tensors))
    with pytest.raises(ArtifactError, match=rf"^{path}: adapter artifact is a generation adapter, not a reward model$"):
        open_source(path, base_record())


def test_a_missing_head_is_no_fresh_head(tmp_path, trained):
    path = write(tmp_path, artifact_of(trained))
    tensors = {name: tensor for name, tensor in trained.tensors.items() if name != HEAD}
    weights = safetensors.numpy.save(tensors)
    (tmp_path / path).write_bytes(weights)
    sidecar_path = (tmp_path / path).with_suffix(".json")
    sidecar = json.loads(sidecar_path.read_text()) | {"weights_sha256": hashlib.sha256(weights).hexdigest()}
    sidecar_path.write_text(json.dumps(sidecar | {"digest": outputs.digest(sidecar)}))
    with pytest.raises(ArtifactError, match=rf"^{path}: reward artifact is missing tensor reward\.head$"):
        open_source(path, base_record())


def test_a_reward_model_of_another_base_is_refused_by_fingerprint_and_width(tmp_path, trained):
    path = write(tmp_path, artifact_of(trained))
    other = base_record(fingerprint="e" * 64, hidden_size=96)
    with pytest.raises(ArtifactError) as refused:
        open_source(path, other)
    assert [line.removeprefix(f"{path}: ") for line in refused.value.lines()] == [
        "adapter was trained for model toy (ffffffffffff), current model is toy (eeeeeeeeeeee); "
        "train it on this base, or set base to the one it was trained for",
        "adapter width 64 does not match model width 96",
    ]
    open_source(path, base_record(model="moved/elsewhere"))  # the same base by another name


@pytest.mark.parametrize("source", ["/etc/passwd", "data/rewards/../../x.safetensors", "artifacts/x.safetensors", "reward:length"])
def test_a_report_that_names_no_reward_of_the_pipeline_is_refused(source):
    with pytest.raises(
        ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: its report names the reward .*, which grpo never trains on"
    ):
        reopen([{"source": source, "weight": 1.0}], base_record())


@pytest.mark.parametrize("record", [None, [], {}, "length", [None], ["length"], [{"source": "length"}], [{"source": 3, "weight": 1.0}]])
def test_a_report_that_says_no_reward_is_refused(record):
    with pytest.raises(ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: its report does not say what reward it was trained on"):
        reopen(record, base_record())


def test_a_function_that_a_policy_was_trained_on_and_that_is_gone_is_told():
    with pytest.raises(ArtifactError, match=r"it was trained on function:mine, which is not in stages/rewards/ any more; bring it back"):
        reopen([{"source": "mine", "weight": 1.0}], base_record())


# Scoring


def rewards_of(scorer, prompt, completions) -> torch.Tensor:
    """The rewards of one group, alone in its pass."""
    (scores,) = scorer.scores([Drawn(0, prompt, completions)])
    assert scores.total.rated.all()
    return scores.total.values


def attached(adapted, artifact: Artifact, name: str = "reward"):
    """The scorer of an artifact's reward model."""
    return model_scorer(adapted, RewardModel.trained(adapted, artifact, name))


def test_length_counts_tokens_without_the_end_token_and_zero_for_a_lone_one():
    scorer = open_source("length", base_record()).attach(tiny.adapted(runs.frozen_toy()), [], None)
    rewards = rewards_of(scorer, PROMPT, [ended(5, 6, 7), cut(5, 6, 7), ended(), ended(2, 0)])
    assert rewards.tolist() == [3.0, 3.0, 0.0, 2.0]
    assert rewards.dtype == torch.float64


COMPLETIONS = [ended(*ids("please rest .")), cut(*ids("just leave now . you are")), ended(), ended(*ids("we can wait together ."))]


@pytest.fixture
def scorer(trained):
    return attached(tiny.adapted(runs.frozen_toy()), artifact_of(trained))


def test_a_score_is_read_at_the_end_token_or_at_the_last_one_of_a_cut_completion(scorer):
    """By transformers, one row at a time: the last hidden state under the head."""
    rewards = rewards_of(scorer, PROMPT, COMPLETIONS)
    ((_, part),) = scorer.parts.values()
    part.adapters.use("reward")
    head = part.reward_model.head[0].double()
    for reward, completion in zip(rewards, COMPLETIONS, strict=True):
        row = torch.tensor([[*PROMPT, *completion.ids]])
        with torch.no_grad():
            states = part.adapters.model.model(input_ids=row, use_cache=False).last_hidden_state[0].double()
        torch.testing.assert_close(reward, states[-1] @ head, rtol=1e-5, atol=1e-6)
        assert abs(reward - states[-2] @ head) > 1e-4  # and at no other place


def test_scoring_leaves_every_adapter_off_and_the_base_bitwise(scorer):
    rows = torch.tensor([PROMPT])
    rewards_of(scorer, PROMPT, COMPLETIONS)
    with torch.no_grad():
        assert torch.equal(scorer.parts["reward"][1].adapters.model(rows).logits, runs.frozen_toy()(rows).logits)


def test_the_same_text_scored_twice_has_the_same_bits_and_its_neighbours_do_not_matter(scorer):
    together = rewards_of(scorer, PROMPT, COMPLETIONS)
    assert torch.equal(rewards_of(scorer, PROMPT, COMPLETIONS), together)
    beside = rewards_of(scorer, PROMPT, [*COMPLETIONS, cut(*[7] * 60)])[: len(COMPLETIONS)]
    torch.testing.assert_close(beside, together, rtol=1e-5, atol=1e-6)
    assert len(set(together.tolist())) == len(COMPLETIONS)


def test_equal_completions_have_equal_rewards_to_the_last_bit_wherever_they_stand(scorer):
    # Were it otherwise, a group of equal completions would not be flat, and a tie of base and policy no tie.
    equal = ended(5, 9, 7, 11)
    others = [cut(*[place] * (3 * place % 17 + 1)) for place in range(5, 30)]
    completions = [equal if place % 3 else others[place] for place in range(len(others))]
    rewards = rewards_of(scorer, PROMPT, completions)
    assert len({reward for place, reward in enumerate(rewards.tolist()) if place % 3}) == 1
    alone = torch.cat([rewards_of(scorer, PROMPT, [completion]) for completion in completions])
    torch.testing.assert_close(rewards, alone, rtol=1e-5, atol=1e-6)


def test_a_reward_model_that_is_read_back_scores_as_it_did_when_it_was_trained(tmp_path, trained):
    source = open_source(write(tmp_path, artifact_of(trained)), base_record())
    opened = source.attach(tiny.adapted(runs.frozen_toy()), [], None, "another_name")
    sides = [side for pair in runs.calm_pairs() for side in pair]
    with torch.no_grad():
        trained.adapters.use("reward")
        head = torch.from_numpy(trained.tensors[HEAD][0])
        hidden = [trained.model.model(input_ids=torch.tensor([side]), use_cache=False).last_hidden_state[0, -1] for side in sides]
    expected = (torch.stack(hidden) @ head).double()
    found = torch.cat([rewards_of(opened, side[:2], [cut(*side[2:])]) for side in sides])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_two_reward_models_and_a_policy_share_one_base_without_touching(trained):
    """As in evaluate, where the policy was trained on another reward than the pipeline's own."""
    adapted = tiny.adapted(runs.frozen_toy())
    adapted.add_fresh("policy", runs.toy_plan(adapted.model), 1)
    first = attached(adapted, artifact_of(trained))
    doubled = {name: tensor * np.float32(2) if name == HEAD else tensor for name, tensor in trained.tensors.items()}
    second = attached(adapted, artifact_of(trained, tensors=doubled), "training_reward")
    rewards = rewards_of(first, PROMPT, COMPLETIONS)
    torch.testing.assert_close(rewards_of(second, PROMPT, COMPLETIONS), 2 * rewards, rtol=1e-6, atol=1e-7)
    assert torch.equal(rewards_of(first, PROMPT, COMPLETIONS), rewards)


def test_a_reward_that_a_policy_was_trained_on_and_that_is_gone_is_the_policys_matter():
    with pytest.raises(
        ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: it was trained on reward:data/rewards/gone\.safetensors, "
    ):
        reopen([{"source": "data/rewards/gone.safetensors", "weight": 1.0}], base_record())


def test_a_reward_model_that_was_trained_under_another_template_is_said_so(tmp_path, trained, capsys):
    path = write(tmp_path, artifact_of(trained, report={"chat_template": "applied", "precision": base_record().precision}))
    open_source(path, base_record())
    assert f"{path}: trained with base.chat_template applied, and scores here with {base_record().chat_template}" in capsys.readouterr().err


# Several


def mine(text: str, name: str = "mine") -> None:
    """A reward function of the user's."""
    folder = layout.REWARDS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)


HALVES = "def mine(completions, columns, factor=1.0):\n    return [factor * len(text) / 2 for text in completions]\n"
ROWS = [Prompt("the child", {"answer": "5"}), Prompt("the guest", {"answer": "7"})]
RENDERER = Renderer(toy.tokenizer(), base_record())


def test_several_rewards_add_up_by_their_weights_and_are_told_apart(tmp_path, trained):
    mine(HALVES)
    path = write(tmp_path, artifact_of(trained))
    parts = [
        RewardPart("length", 2.0, None, None),
        RewardPart(path, -0.5, None, None),
        RewardPart("mine", 1.0, "halves", {"factor": 3.0}),
    ]
    source = open_source(parts, base_record())
    assert source.name == f"2 * length + -0.5 * reward:{path} + 1 * function:mine(factor=3.0)"
    scorer = source.attach(tiny.adapted(runs.frozen_toy()), ROWS, RENDERER)
    (scores,) = scorer.scores([Drawn(1, PROMPT, COMPLETIONS)])
    assert list(scores.parts) == ["length", "mine", "halves"]  # the artifact's stem, a function's given name
    model = rewards_of(attached(tiny.adapted(runs.frozen_toy()), artifact_of(trained)), PROMPT, COMPLETIONS)
    lengths = torch.tensor([one.length for one in COMPLETIONS], dtype=torch.float64)
    texts = torch.tensor([len(RENDERER.text(one.content)) for one in COMPLETIONS], dtype=torch.float64)
    assert torch.equal(scores.parts["length"].values, lengths)
    torch.testing.assert_close(scores.parts["mine"].values, model)
    assert torch.equal(scores.parts["halves"].values, 3 * texts / 2)
    torch.testing.assert_close(scores.total.values, 2 * lengths - 0.5 * model + 3 * texts / 2)
    again = reopen(json.loads(json.dumps(source.record())), base_record())
    assert (again.name, again.record()) == (source.name, source.record())


def test_a_reward_model_that_is_there_already_is_not_put_in_twice(tmp_path, trained):
    path = write(tmp_path, artifact_of(trained))
    adapted = tiny.adapted(runs.frozen_toy())
    model = RewardModel.trained(adapted, artifact_of(trained))
    source = open_source([RewardPart(path, 1.0, None, None), RewardPart("length", 1.0, None, None)], base_record())
    scorer = source.attach(adapted, ROWS, RENDERER, "training_reward", {path: model})
    assert scorer.parts["mine"][1].reward_model is model


def test_a_part_that_abstains_adds_nothing_and_where_all_do_there_is_no_reward():
    rewards = [
        Rewards(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([True, False, False])),
        Rewards(torch.tensor([4.0, 6.0, 0.0], dtype=torch.float64), torch.tensor([True, True, False])),
    ]
    total = weighted([(2.0, rewards[0]), (0.5, rewards[1])])
    assert total.values.tolist() == [4.0, 3.0, 0.0]
    assert total.rated.tolist() == [True, True, False]
    alone = torch.tensor([0.1, 1e-300, -0.0], dtype=torch.float64)
    assert weighted([(1.0, all_rated(alone))]).values.numpy().tobytes() == alone.numpy().tobytes()


@pytest.mark.parametrize("source", ["length", "data/rewards/mine.safetensors"])
def test_what_takes_no_arguments_is_given_none(tmp_path, trained, source):
    write(tmp_path, artifact_of(trained))
    what = "length" if source == "length" else "a reward model"
    with pytest.raises(SettingsError, match=rf"^grpo\.reward\[0\]\.source: {what} takes no arguments \(found cap\); leave them out"):
        open_source([RewardPart(source, 1.0, None, {"cap": 3})], base_record())
