"""Reward sources: what is refused before weights are loaded, and what scores are read off."""

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from stages.core.errors import ArtifactError, SettingsError
from stages.files import artifacts, outputs
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from stages.learning.reward_source import RewardSource, open_source, reopen
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
    assert open_source("length", base_record()) == RewardSource("length", None)


@pytest.mark.parametrize("name", ["nope", "Length", "data/rewards/none.safetensors", "data/rewards", ""])
def test_what_is_neither_length_nor_a_file_is_refused(name):
    with pytest.raises(SettingsError) as refused:
        open_source(name, base_record())
    assert str(refused.value).startswith(
        f'grpo.reward: reward source "{name}" is neither the keyword length nor a file that exists; name length, '
        "artifacts/reward/reward.safetensors, or an artifact under data/rewards/"
    )


def test_the_pipelines_own_artifact_is_asked_for_where_it_is_missing():
    with pytest.raises(ArtifactError, match=r"^artifacts/reward/reward\.json: no such artifact; run `dvc repro`"):
        open_source("artifacts/reward/reward.safetensors", base_record())


def test_an_artifact_is_opened_under_the_name_that_reports_give_it(tmp_path, trained):
    path = write(tmp_path, artifact_of(trained))
    opened = open_source(path, base_record())
    assert opened.name == f"reward:{path}"
    assert reopen(opened.name, base_record()).name == opened.name
    assert reopen("length", base_record()).artifact is None


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


@pytest.mark.parametrize(
    "name", ["reward:/etc/passwd", "reward:data/rewards/../../x.safetensors", "data/rewards/x.safetensors", "reward:length", "judge"]
)
def test_a_report_that_names_no_reward_of_the_pipeline_is_refused(name):
    with pytest.raises(
        ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: its report names the reward .*, which grpo never trains on"
    ):
        reopen(name, base_record())


# Scoring


def rewards_of(scorer, prompt, completions) -> torch.Tensor:
    """The rewards of one group, alone in its pass."""
    return scorer.rewards([(prompt, completions)])[0]


def test_length_counts_tokens_without_the_end_token_and_zero_for_a_lone_one():
    scorer = open_source("length", base_record()).attach(tiny.adapted(runs.frozen_toy()))
    rewards = rewards_of(scorer, PROMPT, [ended(5, 6, 7), cut(5, 6, 7), ended(), ended(2, 0)])
    assert rewards.tolist() == [3.0, 3.0, 0.0, 2.0]
    assert rewards.dtype == torch.float64


COMPLETIONS = [ended(*ids("please rest .")), cut(*ids("just leave now . you are")), ended(), ended(*ids("we can wait together ."))]


@pytest.fixture
def scorer(trained):
    return RewardSource("reward:x", artifact_of(trained)).attach(tiny.adapted(runs.frozen_toy()))


def test_a_score_is_read_at_the_end_token_or_at_the_last_one_of_a_cut_completion(scorer):
    """By transformers, one row at a time: the last hidden state under the head."""
    rewards = rewards_of(scorer, PROMPT, COMPLETIONS)
    scorer.adapters.use("reward")
    head = scorer.reward_model.head[0].double()
    for reward, completion in zip(rewards, COMPLETIONS, strict=True):
        row = torch.tensor([[*PROMPT, *completion.ids]])
        with torch.no_grad():
            states = scorer.adapters.model.model(input_ids=row, use_cache=False).last_hidden_state[0].double()
        torch.testing.assert_close(reward, states[-1] @ head, rtol=1e-5, atol=1e-6)
        assert abs(reward - states[-2] @ head) > 1e-4  # and at no other place


def test_scoring_leaves_every_adapter_off_and_the_base_bitwise(scorer):
    rows = torch.tensor([PROMPT])
    rewards_of(scorer, PROMPT, COMPLETIONS)
    with torch.no_grad():
        assert torch.equal(scorer.adapters.model(rows).logits, runs.frozen_toy()(rows).logits)


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
    opened = open_source(write(tmp_path, artifact_of(trained)), base_record()).attach(tiny.adapted(runs.frozen_toy()), "another_name")
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
    first = RewardSource("a", artifact_of(trained)).attach(adapted)
    doubled = {name: tensor * np.float32(2) if name == HEAD else tensor for name, tensor in trained.tensors.items()}
    second = RewardSource("b", artifact_of(trained, tensors=doubled)).attach(adapted, "training_reward")
    rewards = rewards_of(first, PROMPT, COMPLETIONS)
    torch.testing.assert_close(rewards_of(second, PROMPT, COMPLETIONS), 2 * rewards, rtol=1e-6, atol=1e-7)
    assert torch.equal(rewards_of(first, PROMPT, COMPLETIONS), rewards)


def test_a_reward_that_a_policy_was_trained_on_and_that_is_gone_is_the_policys_matter():
    with pytest.raises(
        ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: it was trained on reward:data/rewards/gone\.safetensors, "
    ):
        reopen("reward:data/rewards/gone.safetensors", base_record())


def test_a_reward_model_that_was_trained_under_another_template_is_said_so(tmp_path, trained, capsys):
    path = write(tmp_path, artifact_of(trained, report={"chat_template": "applied", "precision": base_record().precision}))
    open_source(path, base_record())
    assert f"{path}: trained with base.chat_template applied, and scores here with {base_record().chat_template}" in capsys.readouterr().err
