"""The farm itself: what one test leaves under way is not the next one's answer; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from distributed.cells import cells
from support.programs.processes import wait_gone
from support.promise import PATIENCE_S

FARM = """
import signal
from distributed.farm.farm import Farm
world = Farm().world(2)
world.start(signal.pause)
print("ready", flush=True)
signal.pause()
"""


def test_a_cell_that_never_ends_is_not_the_next_ones_answer(rank_pool):
    world = rank_pool(2)
    world.start(signal.pause)
    with pytest.raises(TimeoutError, match="rank 0 is still busy"):
        world.outcomes(timeout=0.01)
    assert rank_pool(2).run(cells.stream_of_sums, 2, 10) == [2, 2]


@pytest.mark.slow
def test_ranks_end_with_who_started_them():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", FARM], env=env, stdout=subprocess.PIPE) as farm:
        assert farm.stdout.readline() == b"ready\n"
        ranks = psutil.Process(farm.pid).children()
        farm.kill()
    assert len(ranks) == 2
    assert wait_gone(ranks, PATIENCE_S) == []
