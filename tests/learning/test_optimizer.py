"""The optimizer: torch's own AdamW and clipping, the planned rate, and the stop before a step that is not finite."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stages.core.errors import TrainingError
from stages.learning import schedule
from stages.learning.optimizer import Optimizer, count, remedy

SHAPES = ((3, 4), (2,))


@dataclass(frozen=True)
class Plan:
    """Five planned steps, with the settings that a section would bring."""

    weight_decay: float = 0.0
    max_grad_norm: float = 1e9
    learning_rate: float = 0.1
    warmup_steps: int = 2


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {str(shape): nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES}


def stepped(optimizer: Optimizer, step: int, where: str = "here") -> float:
    norm = optimizer.clip(step, where)
    optimizer.step(step)
    return norm


def give_gradients(tensors, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator) * 3


@pytest.mark.parametrize(("weight_decay", "max_grad_norm"), [(0.0, 1e9), (0.3, 1e9), (0.0, 0.5), (0.3, 0.5)])
def test_steps_are_those_of_torchs_adamw_and_clipping_called_directly(weight_decay, max_grad_norm):
    ours, theirs = parameters(), list(parameters().values())
    optimizer = Optimizer(ours, 5, Plan(weight_decay, max_grad_norm), "grpo")
    adamw = torch.optim.AdamW(theirs, lr=1.0, weight_decay=weight_decay, fused=True)
    for step in range(3):
        give_gradients(ours.values(), step)
        give_gradients(theirs, step)
        stepped(optimizer, step)
        nn.utils.clip_grad_norm_(theirs, max_grad_norm)
        adamw.param_groups[0]["lr"] = schedule.learning_rate(step, 5, 0.1, 2)
        adamw.step()
    assert all(torch.equal(mine, their) for mine, their in zip(ours.values(), theirs, strict=True))


def test_decay_and_clipping_change_the_weights():
    """Without this the comparison above could hold with both of them lost."""

    def after(weight_decay, max_grad_norm):
        tensors = parameters()
        optimizer = Optimizer(tensors, 5, Plan(weight_decay, max_grad_norm), "grpo")
        for step in range(2):
            give_gradients(tensors.values(), step * 7)
            stepped(optimizer, step)
        return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])

    plain = after(0.0, 1e9)
    assert not torch.equal(after(0.3, 1e9), plain)
    assert not torch.equal(after(0.0, 0.5), plain)


def test_the_norm_returned_is_the_one_before_clipping():
    tensor = nn.Parameter(torch.zeros(2))
    tensor.grad = torch.tensor([3.0, 4.0])  # norm 5
    assert stepped(Optimizer({"t": tensor}, 5, Plan(0.0, 0.5), "grpo"), 0, "here") == pytest.approx(5.0)


def test_a_step_follows_the_planned_index_and_not_the_number_of_steps_taken():
    # AdamW's first step moves by the rate times the gradient's sign, up to its epsilon
    tensor = nn.Parameter(torch.zeros(1))
    tensor.grad = torch.tensor([1.0])
    optimizer = Optimizer({"t": tensor}, 5, Plan(0.0, 1e9), "grpo")
    stepped(optimizer, 4)
    rate = schedule.learning_rate(4, 5, 0.1, 2)
    assert optimizer.rate(4) == rate
    assert tensor.item() == pytest.approx(-rate)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_stops_before_any_weight_moves(broken):
    tensors = parameters()
    give_gradients(tensors.values(), 0)
    tensors["(2,)"].grad[1] = broken
    before = [tensor.detach().clone() for tensor in tensors.values()]
    with pytest.raises(TrainingError, match=r"^iteration 1/3 step 2/18: the gradient is not finite .*no weight was moved"):
        stepped(Optimizer(tensors, 5, Plan(0.1, 1.0), "grpo"), 1, "iteration 1/3 step 2/18")
    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors.values(), before, strict=True))


def test_gradients_are_cleared_after_a_step():
    tensors = parameters()
    give_gradients(tensors.values(), 0)
    stepped(Optimizer(tensors, 5, Plan(0.0, 1.0), "grpo"), 0, "here")
    assert all(tensor.grad is None for tensor in tensors.values())


def test_a_first_gradient_of_zero_leaves_every_byte_where_nothing_decays():
    tensors = parameters()
    before = [tensor.detach().numpy().tobytes() for tensor in tensors.values()]
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    stepped(Optimizer(tensors, 5, Plan(0.0, 1.0), "grpo"), 0, "here")
    assert [tensor.detach().numpy().tobytes() for tensor in tensors.values()] == before


def test_parameters_are_counted_number_by_number():
    assert count(parameters()) == 3 * 4 + 2


def test_before_the_first_step_the_learning_rate_is_not_blamed():
    assert remedy("grpo", 0) == "no step was taken yet, so look at grpo.alpha and at the base's own weights"
    assert remedy("reward", 1) == "lower reward.learning_rate"
    tensors = parameters()
    give_gradients(tensors.values(), 0)
    tensors["(2,)"].grad[1] = float("nan")
    for step, last in ((0, "look at grpo.alpha and at the base's own weights"), (1, "lower grpo.learning_rate")):
        with pytest.raises(TrainingError, match=rf"(; no weight was moved; |so ){last}$"):
            stepped(Optimizer(tensors, 5, Plan(), "grpo"), step, "here")
