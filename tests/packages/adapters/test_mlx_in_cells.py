"""MLX's own groups in the cells of a notebook's ranks."""

from __future__ import annotations

import re

import pytest
from support.programs.restarting import Notices, failures, stop_begun, values
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell, wait_in
from support.waiting import wait_until

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace
from phalanx.workspace.cells import stopping

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

BEGIN = """
import mlx.core as mx, mlx.nn as nn, time
mlx_world = mx.distributed.init(strict=True)
n, W = 0, mx.zeros(4)
def train(steps):
    global n, W
    for step in range(steps):
        mean = nn.average_gradients({"w": mx.ones(4) * (rank + 1)})
        W = W - 0.1 * mean["w"]
        mx.eval(W)
        n += 1
        if rank == 1: time.sleep(0.001)
        if rank == 2: sum(range(step % 5000))
"""


class StopLines(Notices):
    """Keeps the ranks that have said that a stop has ended an evaluation."""

    def __init__(self):
        super().__init__()
        self.ranks = set()

    def lines(self, stream, lines):
        for ranks, line in lines:
            if line.startswith("the stop has ended an evaluation of MLX; its arrays are not valid"):
                self.ranks.update(ranks)


@pytest.fixture(scope="module")
def ws():
    """Three ranks with MLX's world, which the tests of this file share."""
    with Workspace.start(n=3) as workspace:
        workspace.run(BEGIN)
        yield workspace


def sums(ws):
    """Return what each rank gets by MLX."""
    return values(ws, "mx.distributed.all_sum(mx.array(rank)).item()")


def test_cells_have_the_ranks_of_phalanx(ws):
    assert values(ws, "mlx_world.rank() == rank, mlx_world.size()") == ["(True, 3)"] * 3
    assert sums(ws) == ["3"] * 3
    assert values(ws, "train(20); round(W[0].item(), 3)") == ["-4.0"] * 3
    assert values(ws, "px.all_sum(1)") == ["3"] * 3


def test_a_stop_keeps_ranks_in_step_and_their_arrays_valid(ws, monkeypatch):
    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)
    for _ in range(4):
        code = "n, W = 0, mx.zeros(4)\ntrain(20)\nprint('begun', flush=True)\ntrain(10**7)"
        error, texts = stop_begun(ws, code)
        assert isinstance(error, CellError)
        assert not [text for text in texts if "may differ" in text]
        assert len(set(values(ws, "n, W.tolist()"))) == 1
        # Each step adds -0.2 to every element. The stop came before a step was counted, or after.
        assert (
            values(ws, "bool(mx.allclose(W, W[0])), round(W[0].item() / -0.2) - n in (0, 1)")
            == ["(True, True)"] * 3
        )
        assert sums(ws) == ["3"] * 3


@pytest.mark.parametrize("is_late", [False, True])
def test_a_second_or_late_stop_ends_evaluations_that_wait_for_each_other(ws, is_late):
    set_limit = "from phalanx.rank import stops\nstops.CUT_S = "
    ws.run(f"{set_limit}{0.0 if is_late else 1e6}")
    ws.run("part = mlx_world.split(0)\nmx.eval(mx.distributed.all_sum(mx.ones(2)))")
    code = """
x = mx.distributed.all_sum(mx.ones(5), group=part if rank == 1 else None)
mx.eval(x)
"""
    view = StopLines()
    with BackgroundCell(ws, code, view=view) as cell:
        wait_in(ws, "all_sum", 0, 1, 2)
        ws.interrupt()
        if not is_late:  # a stop counts as the second one once the first has interrupted the ranks
            wait_until(lambda: ws.interrupt() == () or cell.is_over, "the cell is over")
    assert {ename for ename, _, _ in cell.error.failures.values()} == {"KeyboardInterrupt"}
    assert view.ranks == {0, 1, 2}
    assert values(ws, "mx.isnan(x).all().item()") == ["True"] * 3
    assert sums(ws) == ["3"] * 3
    ws.run(f"{set_limit}10.0")


def test_a_stop_of_a_rank_that_computes_ends_the_evaluation_of_the_others(ws):
    code = """
if rank == 1:
    while True: pass
try:
    mx.eval(mx.distributed.all_sum(mx.ones(5)))
    while True: pass
finally:
    for _ in range(1000): pass
"""
    view = StopLines()
    with BackgroundCell(ws, code, view=view) as cell:
        wait_in(ws, "all_sum", 0, 2)
        ws.interrupt()
    assert {ename for ename, _, _ in cell.error.failures.values()} == {"KeyboardInterrupt"}
    assert view.ranks == {0, 2}
    assert sums(ws) == ["3"] * 3


def test_a_rank_that_raises_frees_the_others_and_the_next_cell_works(ws):
    text = failures(ws, "if rank == 1: raise ValueError('no')\ntrain(3)")
    assert "ValueError: no" in text
    assert re.search(r"RankFailure: .*rank 1", text), text
    assert sums(ws) == ["3"] * 3


def test_ranks_that_call_differently_are_told_on_all(ws):
    text = failures(ws, "mx.eval(mx.distributed.all_sum(mx.ones(3 + rank % 2)))\npass")
    assert "CollectiveMismatch" in text, text
    assert sums(ws) == ["3"] * 3


def test_a_failure_after_the_last_line_is_its_cells_error(ws):
    # Rank 1 takes no part in what ranks 0 and 2 still compute after their last line.
    late = "if rank != 1: late = mx.distributed.all_sum(mx.ones(5)); mx.async_eval(late)"
    assert "RankFailure: rank 1 on" in failures(ws, late)
    assert values(ws, "rank") == ["0", "1", "2"]
    failures(ws, "if rank == 1: px.all_sum(np.ones(2))\nelse: px.all_sum(np.ones(3))")
    assert sums(ws) == ["3"] * 3


def test_a_failure_beside_another_error_is_printed_and_ends_nothing(ws, tmp_path):
    # Rank 1 takes no part, and ends when IPython shows the error of the others.
    late = f"""
from pathlib import Path
seen = [Path({str(tmp_path)!r}, str(other)) for other in (0, 2)]
class Shown(Exception):
    def __str__(self):
        seen[rank // 2].touch()
        return "shown"
if rank == 1:
    while not all(path.exists() for path in seen): time.sleep(0.001)
else:
    mx.async_eval(mx.distributed.all_sum(mx.ones(5)))
    raise Shown
"""
    assert "ranks 0,2: Shown: shown" in failures(ws, late)
    failures(ws, "if rank == 1: px.all_sum(np.ones(2))\nelse: px.all_sum(np.ones(3))")
    assert sums(ws) == ["3"] * 3


def test_a_call_ends_when_what_it_has_submitted_is_computed(ws):
    def submit(is_alone: bool) -> None:
        import mlx.core as mx

        import phalanx as px

        if px.init().rank() != 1 or not is_alone:
            mx.async_eval(mx.distributed.all_sum(mx.ones(5)))

    ws.apply(submit, False)
    with pytest.raises(CellError, match="RankFailure"):
        ws.apply(submit, True)
    assert sums(ws) == ["3"] * 3


def test_a_rank_that_dies_in_an_operation_is_named(ws):
    kill_2 = "import os, signal\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
    with pytest.raises(RankFailure, match="rank 2"):
        ws.run(kill_2 + "try: train(3)\nexcept px.RankFailure as error: seen = error.rank")
    assert ws.pull("seen", ranks=[0, 1]) == [2, 2]
    ws.restart()
    ws.run(BEGIN, ranks=[2])
    assert sums(ws) == ["3"] * 3
