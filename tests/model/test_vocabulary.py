"""The product with a vocabulary's weights, by blocks, against the plain one."""

import pytest
import torch

from stages.model.groups import Completed
from stages.model.packed import PackedPasses
from stages.model.padded import PaddedPasses
from stages.model.vocabulary import BLOCK, tall_product
from tests import tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 128])
@pytest.mark.parametrize("vocabulary", [40, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK - 1])
def test_blocks_and_their_rest_are_one_product(vocabulary: int, rows: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    weight, states = (torch.randn(size, 32, generator=generator).to(dtype) for size in (vocabulary, rows))
    expected = weight @ states.T
    found = tall_product(weight, states)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5) if dtype == torch.float32 else torch.testing.assert_close(
        found, expected
    )


def test_scores_over_a_vocabulary_of_blocks_are_the_padded_ones():
    model = tiny.model(vocab_size=2 * BLOCK + 16)
    groups = [Completed([6, 7, 8], [[390, 10, 399], [12, 383]])]
    (packed,), (padded,) = (way.token_scores(groups, 0.7) for way in (PackedPasses(model, 2), PaddedPasses(model)))
    torch.testing.assert_close(packed.log_probs, padded.log_probs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed.entropy, padded.entropy, rtol=1e-5, atol=1e-5)


def test_the_product_carries_a_gradient_where_one_is_wanted():
    weight, states = torch.randn(2 * BLOCK, 8, generator=torch.Generator().manual_seed(0)), torch.ones(3, 8, requires_grad=True)
    tall_product(weight, states).sum().backward()
    torch.testing.assert_close(states.grad, weight.sum(0).expand(3, -1))
