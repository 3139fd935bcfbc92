"""The status line of a long cell: what it says, when, and what it costs a short one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol import HostInfo, RankInfo, WorldTopology
from phalanx.workspace import View
from phalanx.workspace.output.status_line import CellStatusLine, format_time, status_text


class Status(View):
    shows_status = True

    def __init__(self) -> None:
        self.said: list[str] = []

    def status(self, text):
        self.said.append(text)


def world(**details):
    ranks = tuple(
        RankInfo(rank, 0, 1, "busy", "", details.get(f"r{rank}", "")) for rank in range(3)
    )
    return WorldTopology("w", 1, (HostInfo(0, "here", "127.0.0.1", 2),), ranks, ())


def test_a_short_cell_shows_and_asks_nothing():
    view, asked = Status(), []
    status = CellStatusLine((0, 1), view, lambda: asked.append(1), 10.0)
    status.step({0, 1}, (), (), 10.99)
    status.close(11.0)
    assert (view.said, asked) == ([], [])


def test_a_view_without_a_place_asks_nothing():
    asked = []
    status = CellStatusLine((0,), View(), lambda: asked.append(1), 0.0)
    assert status.next_due_s() is None
    status.step({0}, (), (), 99.0)
    assert asked == []


def test_a_long_cell_is_told_twice_a_second_and_says_how_long_it_took():
    view, asked = Status(), []
    status = CellStatusLine((0, 1, 2), view, lambda: asked.append(1), 0.0)
    status.step({0, 1, 2}, (), (), 1.0)
    status.step({0, 1, 2}, (), (), 1.1)
    status.take(world(r2="in all_sum #7"))
    status.step({1, 2}, (), (), 1.5)
    status.step({1, 2}, (1,), (), 2.5)
    status.close(3.0)
    assert view.said == [
        "▸ 1 s · running 0-2",
        "▸ 1 s · done 0 · running 1 · rank 2 in all_sum #7",
        "▸ 2 s · done 0 · rank 2 in all_sum #7 · waiting for input 1",
        "▸ took 3 s",
        "",
    ]
    status.close(4.0)
    assert len(view.said) == 5


def test_a_root_that_does_not_answer_is_asked_once():
    asked = []
    status = CellStatusLine((0,), Status(), lambda: asked.append(1), 0.0)
    for now_s in range(1, 9):
        status.step({0}, (), (), float(now_s))
    assert asked == [1]
    status.take(world())
    status.step({0}, (), (), 9.0)
    assert asked == [1, 1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 s"), (59.99, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_times(seconds, text):
    assert format_time(seconds) == text


_RANKS = st.sets(st.integers(0, 9))


@given(_RANKS, _RANKS, _RANKS, st.dictionaries(st.integers(0, 9), st.sampled_from("ab")))
def test_every_rank_is_named_once(running, lost, waiting, details):
    lost -= running
    done = set(range(10)) - running - lost
    text = status_text(3.0, done, lost, running, waiting, details)
    named = []
    for part in text.split(" · ")[1:]:
        for word in part.split():
            if word[0].isdigit():
                for run in word.split(","):
                    low, _, high = run.partition("-")
                    named += range(int(low), int(high or low) + 1)
    assert sorted(named) == list(range(10))
