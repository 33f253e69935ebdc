"""Blocks of attention, merged, against the plain softmax over all keys at once, gradients by autograd."""

import pytest
import torch
from torch import Tensor

from stages.model import kernels
from stages.model.kernels import Block, attend, attend_backward, merge

SCALE = 0.37


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plainly(query: Tensor, keys: list[Tensor], values: list[Tensor], visible: Tensor, softcap: float | None) -> Tensor:
    scores = query @ torch.cat(keys, -2).transpose(-1, -2) * SCALE
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), -1) @ torch.cat(values, -2)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("width", [8, 6])  # of the values; flash takes that of the keys alone
def test_two_merged_blocks_are_one_softmax_and_so_are_their_gradients(
    softcap: float | None, flash: bool, width: int, monkeypatch: pytest.MonkeyPatch
):
    if not flash:
        monkeypatch.setattr(kernels, "_takes_flash", lambda _block: False)
    query = numbers(2, 3, 5, 8, seed=0).requires_grad_()
    keys = [numbers(2, 3, 7, 8, seed=1).requires_grad_(), numbers(2, 3, 5, 8, seed=2).requires_grad_()]
    values = [numbers(2, 3, 7, width, seed=3).requires_grad_(), numbers(2, 3, 5, width, seed=4).requires_grad_()]
    # of the first block the first query sees nothing, the others all but the first key; the second block is causal
    some = torch.ones(5, 7, dtype=torch.bool)
    some[0], some[:, 0] = False, False
    visible = torch.cat([some, torch.ones(5, 5, dtype=torch.bool).tril()], -1)
    expected = plainly(query, keys, values, visible, softcap)
    upstream = numbers(*expected.shape, seed=5)
    gradients = torch.autograd.grad(expected, [query, *keys, *values], upstream)

    first, second = (
        Block(
            query.detach(),
            keys[place].detach(),
            values[place].detach(),
            kernels.additive(some, query.dtype) if place == 0 else None,
            place == 1,
            SCALE,
            softcap,
        )
        for place in range(2)
    )
    found = merge(attend(first), attend(second))
    torch.testing.assert_close(found.out, expected.detach(), rtol=1e-5, atol=1e-6)
    parts = [attend_backward(block, found.out, found.lse, upstream) for block in (first, second)]
    torch.testing.assert_close(parts[0].query + parts[1].query, gradients[0], rtol=1e-5, atol=1e-5)
    for place, part in enumerate(parts):
        torch.testing.assert_close(part.key, gradients[1 + place], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(part.value, gradients[3 + place], rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_no_key_of_a_block_reads_nothing_of_it():
    query, key, value = (numbers(1, 1, 2, 4, seed=seed).float() for seed in (0, 1, 2))
    visible = torch.tensor([[False, False], [True, True]])
    found = attend(Block(query, key, value, kernels.additive(visible, query.dtype), causal=False, scale=SCALE, softcap=None))
    assert found.lse[0, 0, 0] == -torch.inf
    assert found.out[0, 0, 0].tolist() == [0.0] * 4
    assert torch.isfinite(found.lse[0, 0, 1])


def test_flash_is_taken_on_the_cpu_where_scores_are_not_capped():
    query = torch.zeros(1, 1, 2, 4)
    block = Block(query, query, query, None, causal=True, scale=SCALE, softcap=None)
    assert kernels._takes_flash(block)
    assert not kernels._takes_flash(block._replace(softcap=30.0))
    assert not kernels._takes_flash(block._replace(value=torch.zeros(1, 1, 2, 3)))
    assert not kernels._takes_flash(block._replace(query=query.to("meta")))


@pytest.mark.parametrize("flash", [True, False])
def test_half_precision_is_rounded_at_the_end(flash: bool, monkeypatch: pytest.MonkeyPatch):
    if not flash:
        monkeypatch.setattr(kernels, "_takes_flash", lambda _block: False)
    query, key, value = (numbers(1, 2, 9, 16, seed=seed).bfloat16() for seed in (0, 1, 2))
    block = Block(query, key, value, None, causal=False, scale=SCALE, softcap=None)
    scores = query.double() @ key.double().mT * SCALE
    found = attend(block)
    torch.testing.assert_close(found.lse.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.out.double(), torch.softmax(scores, -1) @ value.double(), rtol=0.01, atol=0.01)
    assert merge(found, found).out.dtype == found.out.dtype == torch.bfloat16


def test_numbers_that_do_not_lie_beside_each_other_are_read_all_the_same():
    whole = [numbers(1, 2, 9, 8, seed=seed).float() for seed in range(4)]
    apart = [one.mT.contiguous().mT for one in whole]
    assert apart[0].stride(-1) != 1
    expected, found = (attend(Block(*three, None, causal=True, scale=SCALE, softcap=None)) for three in (whole[:3], apart[:3]))
    assert torch.equal(found.out, expected.out)
    ones = torch.ones(()).expand(1, 2, 9, 8)  # as sum() gives them, without any storage of their own
    for upstream, dense in ((apart[3], whole[3]), (ones, ones.contiguous())):
        block = Block(*apart[:3], None, causal=True, scale=SCALE, softcap=None)
        back = attend_backward(block, found.out.mT.contiguous().mT, found.lse, upstream)
        plain = attend_backward(block._replace(query=whole[0], key=whole[1], value=whole[2]), expected.out, expected.lse, dense)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(back, plain, strict=True))
