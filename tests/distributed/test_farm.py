"""The farm itself: what one test leaves under way is not the next one's answer."""

from __future__ import annotations

import signal

import pytest
from distributed import cells


def test_a_cell_that_never_ends_is_not_the_next_ones_answer(rank_pool):
    world = rank_pool(2)
    world.start(signal.pause)
    with pytest.raises(TimeoutError, match="rank 0 is still busy"):
        world.outcomes(timeout=0.01)
    assert rank_pool(2).run(cells.stream_of_sums, 2, 10) == [2, 2]
