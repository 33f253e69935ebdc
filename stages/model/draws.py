"""The uniform numbers that choose tokens: a function of (seed, iteration, index, draw, position) and nothing else.

numpy's counter-based Philox (Salmon et al., SC 2011) is keyed by seed and iteration and counted from index and draw, so
batch size, order and number of processes leave every draw alone.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def uniforms(seed: int, iteration: int, index: int, draw: int, positions: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), one per position [T], of draw `draw` of the prompt at `index`; a longer run begins the same."""
    bits = np.random.Philox(key=np.array([seed, iteration], np.uint64), counter=np.array([0, 0, draw, index], np.uint64))
    return np.random.Generator(bits).random(positions)


def group_uniforms(seed: int, iteration: int, indexes: Sequence[int], group: int, positions: int) -> NDArray[np.float64]:
    """The numbers of `group` draws of each of P prompts, [P, G, T]."""
    return np.array([[uniforms(seed, iteration, index, draw, positions) for draw in range(group)] for index in indexes])
