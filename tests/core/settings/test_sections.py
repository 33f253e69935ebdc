"""The ranges of every section, and the phrases that a reader of the refusals may rely on."""

import copy
import dataclasses
from pathlib import Path

import pytest
import yaml

from stages.core.settings.base import CheckpointBase, ToyBase
from stages.core.settings.grpo import Grpo
from stages.core.settings.reward import Reward
from stages.core.settings.sections import KEYS, SECTIONS, build_all

CONF = Path(__file__).parents[3] / "conf"
GRPO = "group-relative policy optimization requires "
RM = "reward modeling requires "
OPTIONS = {"base": "toy"}
SEEDED = ("base", "data", "reward", "grpo", "evaluate")


FILES = {section: CONF / section / f"{OPTIONS.get(section, 'default')}.yaml" for section in SECTIONS}
VALUES = {section: yaml.safe_load(path.read_text()) for section, path in FILES.items()}


def values():
    return copy.deepcopy(VALUES)


def problems(dotted, value):
    section, key = dotted.split(".")
    tree = values()
    tree[section][key] = value
    return build_all(tree).problems


def parts(*entries):
    return problems("grpo.reward", list(entries))


def test_a_list_of_rewards_is_read_as_parts_whose_names_and_arguments_may_be_left_out():
    tree = values()
    tree["grpo"]["reward"] = [
        {"source": "length", "weight": 1},
        {"source": "data/rewards/own-model.safetensors", "weight": -0.5},
        {"source": "overlength", "weight": "5e-1", "name": "short", "arguments": {"cap": 48}},
    ]
    sections = build_all(tree)
    assert sections.problems == []
    reward = sections.built["grpo"].reward
    assert [(part.called, part.weight, part.arguments) for part in reward] == [
        ("length", 1.0, None),
        ("own_model", -0.5, None),
        ("short", 0.5, {"cap": 48}),
    ]
    again = build_all(sections.values())
    assert again.built["grpo"] == sections.built["grpo"]


def test_every_problem_of_every_part_is_told_with_its_place():
    found = parts(
        {"source": "length"},
        {"source": "length", "wieght": 1, "weight": 0},
        {"source": "", "weight": float("nan"), "name": "a b", "arguments": [1]},
        "length",
        {"source": 3, "weight": True},
    )
    assert found == [
        "grpo.reward[0].weight is missing: every entry of the list has one",
        "grpo.reward[1].wieght is not a setting; did you mean grpo.reward[1].weight?",
        "grpo.reward[1].weight: weight must be a finite number other than zero (found 0)",
        'grpo.reward[2].source: length, the path of a reward artifact, or the name of a function in stages/rewards/ is expected (found "")',
        "grpo.reward[2].weight: weight must be a finite number other than zero (found nan)",
        'grpo.reward[2].name: expected letters, digits and underscores, a letter first: it names a column (found "a b")',
        "grpo.reward[2].arguments: expected a mapping of names to values or null, found [1] (a list)",
        'grpo.reward[3]: expected a mapping of settings, found "length"',
        "grpo.reward[4].source: expected a text, found 3 (a whole number); "
        "a text that looks like one is put in quotes: grpo.reward[4].source='\"3\"'",
        "grpo.reward[4].weight: expected a number, found true (a boolean)",
    ]
    assert problems("grpo.reward", 3) == ["grpo.reward: expected a text or a list of mappings, found 3 (a whole number)"]


def test_conf_holds_every_section_as_the_schema_has_it():
    sections = build_all(values())
    assert sections.problems == []
    assert list(sections.values()) == list(SECTIONS)
    assert isinstance(sections.built["base"], ToyBase)


@pytest.mark.parametrize("option", ["smollm2", "hub"])
def test_the_checkpoint_options_have_every_key_of_a_checkpoint(option):
    tree = values() | {"base": yaml.safe_load((CONF / "base" / f"{option}.yaml").read_text())}
    assert set(tree["base"]) == {field.name for field in dataclasses.fields(CheckpointBase)}
    assert [line.partition(":")[0] for line in build_all(tree).problems] == (["base.model is missing"] if option == "hub" else [])


@pytest.mark.parametrize(
    ("key", "value", "phrase"),
    [
        *[("grpo.group", bad, GRPO + "a group of at least two completions, because the group is the baseline") for bad in (1, 0, -2)],
        *[("grpo.temperature", bad, GRPO + "a temperature above zero") for bad in (0, 0.0, -1, ".inf", float("nan"))],
        *[("grpo.beta", bad, GRPO + "a finite beta of zero or more") for bad in (-1, float("inf"), float("nan"))],
        ("grpo.iterations", 0, GRPO + "at least one iteration"),
        ("grpo.accumulation", 0, GRPO + "an accumulation of at least one prompt"),
        *[("grpo.learning_rate", bad, GRPO + "a finite learning rate above zero") for bad in (0, -1, float("inf"), float("nan"))],
        ("grpo.max_new_tokens", 0, "max_new_tokens must be greater than zero"),
        ("grpo.max_sequence", 0, "max_sequence must be at least one token"),
        *[("grpo.top_p", bad, "top_p must be above zero and at most one") for bad in (0, 1.1, float("nan"))],
        (
            "grpo.reward",
            "",
            "length, the path of a reward artifact, the name of a function in stages/rewards/, or a list of these is expected",
        ),
        (
            "grpo.reward",
            [],
            "length, the path of a reward artifact, the name of a function in stages/rewards/, or a list of these is expected",
        ),
        (
            "grpo.reward",
            [{"source": "length", "weight": 1}, {"source": "length", "weight": 2}],
            "several parts are called length; give them a name each, as in {source: ..., name: ...}",
        ),
        ("grpo.updates", 0, GRPO + "at least one update per round of sampling"),
        *[("grpo.clip_low", bad, "clip_low must be above zero and at most one") for bad in (0, 1.1, float("nan"))],
        *[("grpo.clip_high", bad, "clip_high must be a finite number above zero") for bad in (0, -0.2, float("inf"))],
        ("grpo.importance_sampling_level", "word", "expected one of token, sequence"),
        ("grpo.aggregation", "dapo", "expected one of completion, tokens, fixed"),
        ("grpo.scale_rewards", "batch", "expected one of group, none"),
        ("grpo.empty_completions", "skip", "expected one of refuse, score"),
        ("grpo.warmup_steps", -1, "warmup_steps must be zero or more"),
        ("grpo.weight_decay", -0.1, "weight_decay must be a finite number of zero or more"),
        ("grpo.max_grad_norm", 0, "max_grad_norm must be a finite number above zero"),
        ("grpo.rank", 0, "a LoRA rank must be at least one"),
        ("grpo.alpha", 0, "alpha must be a finite number above zero"),
        ("grpo.targets", [], "at least one target module is expected"),
        *[
            ("grpo.layers", bad, "expected all, a list of distinct layer numbers, or a half-open range such as 8..16")
            for bad in ([], [1, 1], [-1], "some", "8..8")
        ],
        ("reward.epochs", 0, RM + "at least one epoch"),
        ("reward.accumulation", 0, RM + "an accumulation of at least one pair"),
        *[("reward.learning_rate", bad, RM + "a finite learning rate above zero") for bad in (0, -1, float("inf"))],
        ("reward.batch_size", 0, RM + "a batch of at least one pair"),
        ("reward.max_sequence", 1, "max_sequence must be at least two tokens"),
        ("evaluate.samples", 0, "samples must be at least one per prompt"),
        ("evaluate.temperature", -1, "temperature must be a finite number of zero (greedy) or more"),
        ("evaluate.bootstrap", 0, "bootstrap must be at least one resample"),
        *[("data.heldout_fraction", bad, "heldout_fraction must be zero or more and below one") for bad in (1, -0.1, float("nan"))],
        ("runtime.threads", 0, "threads must be at least one, or null"),
        *[(f"{section}.seed", bad, f"a seed is a whole number from 0 to {2**63 - 1}") for section in SEEDED for bad in (-1, 2**63)],
        *[
            (key, bad, "expected at most 1e+30")
            for key in ("grpo.learning_rate", "reward.learning_rate", "grpo.alpha", "grpo.beta", "grpo.weight_decay", "grpo.max_grad_norm")
            for bad in (1e38, 1e300)
        ],
        ("grpo.temperature", 1e300, "expected at most 1e+30"),
        ("evaluate.bootstrap", 1_000_001, "expected at most 1000000"),
        ("runtime.threads", 1025, "expected at most 1024"),
        ("runtime.logits_chunk", 0, "logits_chunk must be at least one row"),
        ("runtime.checkpoint_every", 0, "checkpoint_every must be at least one step"),
        ("runtime.processes", 0, "processes must be at least one"),
        ("runtime.nodes", 0, "nodes must be at least one"),
        ("runtime.nodes", 5000, "expected at most 4096"),
        *[
            ("runtime.rendezvous", bad, "expected host:port, such as 10.0.0.1:29500")
            for bad in ("host", "host:", ":1", "host:0", "host:65536", "a b:1", "http://host:1", "host:1:2", "::1:29500")
        ],
        ("base.precision", "f64", "expected one of f32, f16, bf16"),
        ("base.chat_template", "on", "expected one of auto, off"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_phrase_and_value(key, value, phrase):
    if value == ".inf":
        value = float("inf")
    (line,) = problems(key, value)
    assert line.startswith(f"{key}: {phrase}")
    assert "(found " in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grpo.beta", 0),
        ("grpo.warmup_steps", 0),
        ("grpo.weight_decay", 0),
        ("grpo.temperature", 0.001),
        ("grpo.temperature", "0.7"),
        ("grpo.group", 2),
        ("grpo.top_p", 1),
        ("grpo.targets", "all-linear"),
        ("grpo.layers", [0, 3]),
        ("grpo.layers", "1..3"),
        ("reward.max_sequence", 2),
        ("evaluate.temperature", 0),
        ("data.heldout_fraction", 0),
        ("base.fit_steps", 0),
        *[(f"{section}.seed", edge) for section in SEEDED for edge in (0, 2**63 - 1)],
        ("runtime.threads", 1),
        ("runtime.threads", 1024),
        ("runtime.logits_chunk", 1),
        ("evaluate.bootstrap", 1_000_000),
        ("grpo.alpha", 1e30),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_kept_as_it_is(key, value):
    assert problems(key, value) == []
    section, name = key.split(".")
    tree = values()
    tree[section][name] = value
    kept = build_all(tree).values()[section][name]
    assert kept == (float(value) if value == "0.7" else value)


@pytest.mark.parametrize(
    "key", [f"{section}.{field.name}" for section, cls in (("reward", Reward), ("grpo", Grpo)) for field in dataclasses.fields(cls)]
)
def test_every_key_of_reward_and_grpo_is_missing_when_it_is_not_stated(key):
    tree = values()
    section, name = key.split(".")
    del tree[section][name]
    assert [line.partition(":")[0] for line in build_all(tree).problems] == [f"{key} is missing"]


def test_the_bases_model_beside_the_toys_keys_is_told_whose_it_is():
    (line,) = problems("base.model", "gpt2")
    assert line.startswith("base.model belongs to base=hub; base=toy has ")


def test_a_section_that_the_schema_lacks_is_refused():
    assert build_all(values() | {"trainer": {"seed": 1}}).problems[0].startswith("trainer is not a setting")


def test_no_field_has_a_default():
    for classes in SECTIONS.values():
        for cls in classes:
            for field in dataclasses.fields(cls):
                assert field.default is dataclasses.MISSING
                assert field.default_factory is dataclasses.MISSING


def test_keys_of_both_bases_are_known():
    assert {"base.fit_steps", "base.model", "grpo.beta"} <= KEYS


@pytest.mark.parametrize("key", ["rank", "group", "iterations", "accumulation", "max_new_tokens"])
def test_a_count_has_an_upper_bound(key):
    built = build_all(VALUES | {"grpo": VALUES["grpo"] | {key: 2**31}})
    assert built.problems == [f"grpo.{key}: expected at most 2147483647 (found 2147483648)"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"nodes": 2}, "runtime.rendezvous: expected the host:port at which runtime.nodes=2 machines meet, found null"),
        ({"rendezvous": "host:29500"}, "runtime.rendezvous: host:29500 is for several machines, and runtime.nodes is 1; set either"),
        (
            {"shard": True},
            "runtime.shard: one process has no other to spread the base over; set runtime.processes, or runtime.shard=false",
        ),
        (
            {"processes": 2, "device": "cuda:1"},
            "runtime.device: cuda:1 is one device, and several processes need one each; set cuda",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, line):
    tree = values()
    tree["runtime"].update(changes)
    assert build_all(tree).problems == [line]


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 2, "rendezvous": "node-0.cluster:29500"},
        {"nodes": 2, "rendezvous": "[fe80::1]:29500"},
        {"processes": 2, "shard": True},
        {"nodes": 2, "rendezvous": "10.0.0.1:1", "shard": True},
        {"processes": 2, "device": "cuda"},
    ],
)
def test_settings_that_go_together_are_kept(changes):
    tree = values()
    tree["runtime"].update(changes)
    assert build_all(tree).problems == []
