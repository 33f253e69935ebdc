"""Adapters: which modules get one, how it starts, that it computes what PEFT's does, and that switching moves nothing."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import Linear
from torch import Tensor
from transformers import PreTrainedModel

from stages.core.errors import TrainingError
from stages.model import adapters
from stages.model.adapters import Adapters, Plan
from stages.model.lora import LoraLinear
from stages.model.padded import PaddedPasses
from tests import tiny

ROW = [6, 7, 8, 9, 10, 11, 12]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ROW])).logits[0]


def planned(model: PreTrainedModel, targets: Any = "all-linear", layers: Any = "all", rank: int = 4, alpha: float = 6.0) -> Plan:
    return adapters.plan(model, "grpo", rank, alpha, targets, layers)


def train(parameters: dict[str, torch.nn.Parameter], seed: int = 1) -> None:
    """Gives the factors values that change the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own use of transformers
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt", "bloom"])
def test_an_adapter_is_pefts_own_under_pefts_own_names(kind: str):
    ours, theirs = tiny.model(kind), tiny.model(kind)
    base = logits(ours)
    plan = planned(ours)
    held = tiny.adapted(ours)
    factors = held.add_fresh("policy", plan, seed=0)
    train(factors)
    peft = get_peft_model(
        theirs, LoraConfig(r=4, lora_alpha=6, target_modules=plan.modules, lora_dropout=0.0, fan_in_fan_out=kind == "gpt2")
    ).eval()
    state = get_peft_model_state_dict(peft)
    assert {name: value.shape for name, value in state.items()} == {name: value.shape for name, value in factors.items()}
    set_peft_model_state_dict(peft, {name: value.detach().clone() for name, value in factors.items()})
    torch.testing.assert_close(logits(ours), logits(peft), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(logits(ours), base)


def test_the_update_is_b_times_a_scaled_by_alpha_over_rank():
    model = tiny.model()
    weight = model.model.layers[1].self_attn.q_proj.weight.clone()
    held = tiny.adapted(model)
    factors = held.add_fresh("policy", planned(model, ["q_proj"], [1], rank=4, alpha=6.0), seed=0)
    assert list(factors) == [f"base_model.model.model.layers.1.self_attn.q_proj.lora_{side}.weight" for side in "AB"]
    train(factors)
    a, b = factors.values()
    changed = tiny.model()
    with torch.no_grad():
        changed.model.layers[1].self_attn.q_proj.weight.copy_(weight + 6.0 / 4 * b @ a)
    torch.testing.assert_close(logits(model), logits(changed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fresh_adapter_changes_nothing_and_switching_off_is_bitwise_the_base(kind: str, dtype: torch.dtype):
    model = tiny.model(kind).to(dtype)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    base = logits(model)
    held = tiny.adapted(model)
    factors = held.add_fresh("policy", planned(model), seed=0)
    assert torch.equal(logits(model), base)
    train(factors)
    assert not torch.equal(logits(model), base)
    held.use(None)
    assert torch.equal(logits(model), base)
    with held.using("policy", then=None):
        assert not torch.equal(logits(model), base)
    assert torch.equal(logits(model), base)
    assert all(factor.dtype == torch.float32 for factor in factors.values())
    now = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items() if "lora_" not in name}
    assert all(torch.equal(now[name], value) for name, value in weights.items())


def test_a_starts_normal_with_deviation_one_over_the_rank_and_b_at_zero():
    model = tiny.model(hidden_size=64, num_hidden_layers=4)
    factors = tiny.adapted(model).add_fresh("policy", planned(model, rank=8), seed=5)
    a = torch.cat([value.flatten() for name, value in factors.items() if ".lora_A." in name])
    # n values: the deviation of a sample's deviation is 1/8/sqrt(2n), of its mean 1/8/sqrt(n); five of each, odds below 2e-6.
    assert abs(a.std() - 1 / 8) < 5 / 8 / (2 * len(a)) ** 0.5
    assert abs(a.mean()) < 5 / 8 / len(a) ** 0.5
    assert all((value == 0).all() for name, value in factors.items() if ".lora_B." in name)


def test_the_start_is_a_function_of_the_seed_alone():
    def start(seed: int) -> dict[str, Tensor]:
        model = tiny.model()
        torch.rand(3)
        return adapters.to_numpy(tiny.adapted(model).add_fresh("policy", planned(model), seed))

    first, again, other = start(0), start(0), start(1)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first if ".lora_A." in name)


def test_nothing_but_the_factors_of_the_adapter_that_is_on_gets_a_gradient():
    model = tiny.model()
    held = tiny.adapted(model)
    policy = held.add_fresh("policy", planned(model, ["q_proj"]), seed=0)
    reward = held.add_fresh("reward", planned(model, ["v_proj"]), seed=0)
    train(policy)
    train(reward)
    held.use("policy")
    model(input_ids=torch.tensor([ROW])).logits.sum().backward()
    trained = {id(parameter) for parameter in policy.values()}
    for parameter in model.parameters():
        assert (parameter.grad is not None) == (id(parameter) in trained)
    assert all(parameter.grad.abs().max() > 0 for parameter in policy.values())


@pytest.mark.parametrize("same_modules", [True, False])
def test_two_adapters_of_unlike_shape_share_a_base_and_none_touches_the_other(same_modules: bool):
    model = tiny.model()
    base = logits(model)
    plans = {
        "policy": planned(model, ["q_proj", "v_proj"], rank=4, alpha=6.0),
        "reward": planned(
            model, ["q_proj", "v_proj"] if same_modules else ["down_proj"], "all" if same_modules else [1], rank=2, alpha=8.0
        ),
    }
    alone = {}
    for seed, (name, plan) in enumerate(plans.items()):
        single = tiny.model()
        train(tiny.adapted(single).add_fresh(name, plan, seed=0), seed)
        alone[name] = logits(single)
    held = tiny.adapted(model)
    for seed, (name, plan) in enumerate(plans.items()):
        train(held.add_fresh(name, plan, seed=0), seed)
    values = {name: adapters.to_numpy(held.factors(name)) for name in plans}
    for name in ("policy", "reward", None, "reward", "policy", None, "policy"):
        held.use(name)
        assert torch.equal(logits(model), base if name is None else alone[name])
    for name in plans:
        now = adapters.to_numpy(held.factors(name))
        assert all(np.array_equal(now[key], values[name][key]) for key in now)
        assert len(now) == 2 * len(plans[name].modules)


def test_an_adapter_added_to_a_model_keeps_it_in_evaluation_mode():
    model = tiny.model("gpt2", resid_pdrop=0.1, embd_pdrop=0.1)
    tiny.adapted(model).add_fresh("policy", planned(model), seed=0)
    assert not any(module.training for module in model.modules())


def test_trained_factors_come_back_bit_for_bit_in_another_model():
    first, second = tiny.model(), tiny.model()
    factors = tiny.adapted(first).add_fresh("policy", planned(first, ["q_proj", "v_proj"], [1]), seed=0)
    train(factors)
    held = tiny.adapted(second)
    held.add_trained("other", 4, 6.0, adapters.to_numpy(factors))
    assert torch.equal(logits(first), logits(second))
    assert list(held.factors("other")) == list(factors)


def test_twenty_modules_and_more_are_the_ones_planned():
    model = tiny.model(num_hidden_layers=12)
    layers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11]
    plan = planned(model, ["q_proj", "v_proj"], layers)
    factors = tiny.adapted(model).add_fresh("policy", plan, seed=0)
    expected = [
        f"base_model.model.model.layers.{layer}.self_attn.{target}.lora_{side}.weight"
        for layer, target, side in itertools.product(layers, ("q_proj", "v_proj"), "AB")
    ]
    assert list(factors) == expected


@pytest.mark.parametrize(
    ("kind", "targets", "resolved"),
    [
        ("llama", ["query", "value"], ["q_proj", "v_proj"]),
        ("llama", ["key", "output"], ["k_proj", "o_proj"]),
        ("llama", ["q_proj"], ["q_proj"]),
        ("llama", "q_proj", ["q_proj"]),
        ("llama", ["self_attn.q_proj"], ["q_proj"]),
        ("llama", ["model.layers.0.self_attn.q_proj"], ["q_proj"]),
        ("llama", ["query", "q_proj"], ["q_proj"]),
        ("llama", "all-linear", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("opt", ["query", "output"], ["out_proj", "q_proj"]),
        ("gpt2", ["c_attn"], ["c_attn"]),
        ("gpt2", ["c_proj"], ["attn.c_proj", "mlp.c_proj"]),
        ("gpt2", ["mlp.c_proj"], ["mlp.c_proj"]),
        ("gpt2", "all-linear", ["attn.c_proj", "c_attn", "c_fc", "mlp.c_proj"]),
        ("gpt_neox", ["query_key_value"], ["query_key_value"]),
    ],
)
def test_targets_are_short_names_the_models_own_or_all(kind: str, targets: Any, resolved: list[str]):
    model = tiny.model(kind)
    plan = planned(model, targets)
    assert sorted(plan.targets) == resolved
    assert plan.layers == [0, 1]
    assert len(plan.modules) == 2 * len(resolved)
    assert all(model.get_submodule(module) is not None for module in plan.modules)


@pytest.mark.parametrize(
    ("layers", "resolved"), [("all", [0, 1, 2, 3]), ([2], [2]), ([3, 1], [1, 3]), ("1..3", [1, 2]), ("0..4", [0, 1, 2, 3])]
)
def test_layers_are_all_a_list_or_a_half_open_range(layers: Any, resolved: list[int]):
    model = tiny.model(num_hidden_layers=4)
    plan = planned(model, ["q_proj"], layers)
    assert plan.layers == resolved
    assert plan.modules == [f"model.layers.{layer}.self_attn.q_proj" for layer in resolved]


HAS = "it has mlp.down_proj, mlp.gate_proj, mlp.up_proj, self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj"


@pytest.mark.parametrize(
    ("kind", "targets", "layers", "line"),
    [
        ("llama", ["q_proj", "nope"], "all", f"reward.targets: the model has no linear module nope in its layers; {HAS} (or all-linear)"),
        ("llama", ["a", "b"], "all", f"reward.targets: the model has no linear module a, b in its layers; {HAS} (or all-linear)"),
        (
            "llama",
            ["reward.head"],
            "all",
            f"reward.targets: the model has no linear module reward.head in its layers; {HAS} (or all-linear)",
        ),
        ("llama", ["lm_head"], "all", f"reward.targets: the model has no linear module lm_head in its layers; {HAS} (or all-linear)"),
        ("llama", ["proj"], "all", f"reward.targets: the model has no linear module proj in its layers; {HAS} (or all-linear)"),
        (
            "gpt2",
            ["q_proj"],
            "all",
            "reward.targets: the model has no linear module q_proj in its layers; "
            "it has attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj (or all-linear)",
        ),
        ("llama", ["q_proj"], [0, 2], "reward.layers: layer 2 is not there; the model has 2 layers, 0 to 1"),
        ("llama", ["q_proj"], "1..9", "reward.layers: layer 8 is not there; the model has 2 layers, 0 to 1"),
    ],
)
def test_what_the_model_does_not_have_is_refused_with_what_it_has(kind: str, targets: Any, layers: Any, line: str):
    with pytest.raises(TrainingError) as caught:
        adapters.plan(tiny.model(kind), "reward", 4, 8.0, targets, layers)
    assert caught.value.lines() == [line]


def test_a_plan_is_the_same_when_an_adapter_is_already_there():
    model = tiny.model()
    before = planned(model)
    tiny.adapted(model).add_fresh("policy", before, seed=0)
    assert planned(model) == before


def test_tensors_of_another_model_are_refused():
    model = tiny.model()
    factors = adapters.to_numpy(tiny.adapted(model).add_fresh("policy", planned(model, ["q_proj"]), seed=0))
    with pytest.raises(TrainingError) as foreign:
        tiny.adapted(tiny.model("gpt2")).add_trained("reward", 4, 6.0, factors)
    assert foreign.value.lines() == [
        "adapter reward: the model has no linear module model.layers.0.self_attn.q_proj, model.layers.1.self_attn.q_proj in its layers"
    ]
    with pytest.raises(TrainingError) as wider:
        tiny.adapted(tiny.model(hidden_size=64)).add_trained("reward", 4, 6.0, factors)
    assert wider.value.lines() == [
        "adapter reward: tensor base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape [4, 32], the model needs [4, 64]"
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_a_layer_computes_what_pefts_own_does(dtype: torch.dtype, shape: tuple[int, ...]):
    model = tiny.model().to(dtype)
    held = Adapters(PaddedPasses(model))
    train(held.add_fresh("policy", planned(model, ["q_proj"]), seed=0))
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, LoraLinear)
    states = torch.randn(*shape, layer.in_features, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert layer(states).dtype == dtype
    torch.testing.assert_close(layer(states), Linear.forward(layer, states), rtol=1e-6, atol=1e-6)
    held.use(None)
    assert torch.equal(layer(states), layer.base_layer(states))


def test_a_trained_adapter_stays_frozen_beside_a_fresh_one_whichever_comes_first():
    model = tiny.model()
    plan = planned(model, ["q_proj"])
    tensors = adapters.to_numpy(tiny.adapted(tiny.model()).add_fresh("any", plan, seed=0))
    for order in (("fresh", "trained"), ("trained", "fresh")):
        held = tiny.adapted(tiny.model())
        for name in order:
            if name == "fresh":
                held.add_fresh(name, plan, seed=0)
            else:
                held.add_trained(name, plan.rank, plan.alpha, tensors)
        assert all(factor.requires_grad for factor in held.factors("fresh").values())
        assert not any(factor.requires_grad for factor in held.factors("trained").values())
