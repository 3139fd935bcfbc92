"""Splits of earlier cells: nobody waits in one for a rank that has ended its cell."""

from __future__ import annotations

import pytest
from support.promise import within
from support.ranks.cells import BackgroundCell, wait_idle, wait_in

from phalanx.errors import CellError


@pytest.fixture
def split(ws):
    """A workspace of three ranks, of which 1 and 2 have a group of their own, from a cell before."""
    ws.run("part = px.init().split(None if rank == 0 else 1)")
    yield ws
    ws.run("if rank and not part._current.engine.is_closed: part.close()")


@pytest.mark.promise
@pytest.mark.parametrize(
    ("code", "ranks", "reason"),
    [
        ("if rank == 1: px.all_sum(1, group=part)", None, "ended its cell"),
        ("if rank == 1: px.all_sum(1, group=part)", [0, 1], "is not asked to run this cell"),
    ],
)
def test_who_waits_in_a_split_for_a_rank_that_has_ended_is_freed(split, code, ranks, reason):
    with within(), pytest.raises(CellError) as caught:
        split.run(code, ranks=ranks)
    assert set(caught.value.failures) == {1}
    ename, evalue, _ = caught.value.failures[1]
    assert ename == "RankFailure"
    assert "rank 2" in evalue
    assert reason in evalue
    assert "all_sum #" in evalue
    # A new epoch: the world works again, and the split with it.
    found = split.run("px.all_sum(1) + (px.all_sum(10, group=part) if rank else 0)")
    assert [result.value for result in found] == ["3", "23", "23"]


def test_a_split_that_a_rank_has_closed_names_it_in_the_next_epoch(split):
    with pytest.raises(CellError):
        split.run("if rank == 2: part.close()\nelse: px.all_sum(1)")
    with pytest.raises(CellError) as caught:
        split.run("if rank == 1: part.barrier()")
    said = caught.value.failures[1][1]
    assert "rank 2 has closed or lost this split; make the split anew" in said
    split.run("part = px.init().split(None if rank == 0 else 1)\nif rank: part.barrier()")


def test_a_rank_that_has_ended_and_is_in_no_such_split_is_not_missed(split, gate):
    code = f"if rank == 1: {gate.wait}\nif rank: px.all_sum(1, group=part)"
    with BackgroundCell(split, code) as cell:
        wait_idle(split, 0)
        wait_in(split, "all_sum", 2)
        gate.open()
    assert cell.error is None
