"""What a still picture of a world says beside how it stands, as the live one shows it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest
from msgspec.structs import replace
from support.ranks.worlds import make_trace, make_world

from phalanx import widgets
from phalanx.protocol import LinkMeasurement, RankInfo
from phalanx.widgets import Observations, topology, uses_of
from phalanx.widgets.frames.rates import LinkRate
from phalanx.widgets.text.operations import UseFrame

_SVG = "{http://www.w3.org/2000/svg}"


def _links(t, slow=()):
    return tuple(
        LinkMeasurement(link.a, link.b, 20.0, 0.1 if (link.a, link.b) in slow else 2.0, 1 << 20, 0)
        for link in t.links
    )


def _texts(picture):
    return [its.text or "" for its in ET.fromstring(picture.svg).iter(f"{_SVG}text")]


def test_measured_links_are_on_the_still_and_in_its_text():
    t = make_world(1, 4, tcp=True)
    picture = topology(t, Observations(_links(t, slow=[(1, 3)])))
    slow = "rank 1 - rank 3: slow: 20 µs, 0.1 GB/s; others 2 GB/s"
    for said in ("6 links measured, 1 slow or broken", slow, "rank 0 - rank 1: 20 µs, 2 GB/s"):
        assert said in _texts(picture)
        assert said in picture.text
    # The link itself looks otherwise than the others, and says why under a pointer.
    odd = [
        g for g in ET.fromstring(picture.svg).iter(f"{_SVG}g") if g.findtext(f"{_SVG}title") == slow
    ]
    assert odd[0].find(f"{_SVG}path").get("stroke-dasharray")


def test_of_many_links_the_first_that_are_odd_are_named():
    t = make_world(1, 16)
    slow = [(0, b) for b in range(1, 9)]
    picture = topology(t, Observations(_links(t, slow=slow)))
    assert "120 links measured, 8 slow or broken" in picture.text
    assert picture.text.count(": slow: ") == 6
    assert "and 2 more" in _texts(picture)


def test_a_dead_rank_is_not_told_again_by_each_of_its_links():
    t = make_world(1, 4)
    died = replace(t, ranks=(*t.ranks[:3], RankInfo(3, 0, 7, "dead", detail="killed")))
    picture = topology(died, Observations(_links(t)))
    assert "3 links measured, none slow or broken" in picture.text
    assert "rank 3 is dead" not in picture.text


def test_what_moves_and_which_ways_are_in_use():
    t = make_world(1, 4, tcp=True)
    uses = (
        UseFrame("all_gather", "mesh", 8, 64, is_split=False, is_now=False),
        UseFrame("all_sum", "ring", 1 << 20, 4 << 20, is_split=False, is_now=True),
    )
    picture = topology(
        t, Observations(moving=(LinkRate(0, 1, 2e5), LinkRate(1, 0, 5e6)), uses=uses)
    )
    moves = "moves over tcp: rank 1 to rank 0 5 MB/s, rank 0 to rank 1 200 kB/s"
    assert moves in _texts(picture)
    said = picture.text.splitlines()[-3:]
    assert said == [
        f"  {moves}",
        "  in use: all_sum of 1 MiB to 4 MiB: ring",
        "  in use: all_gather of 8 B to 64 B: mesh (earlier)",
    ]


def test_a_rank_in_a_collective_is_drawn_as_one():
    t = make_world(1, 2)
    busy = tuple(
        RankInfo(rank, 0, 7, "busy", detail=detail)
        for rank, detail in enumerate(("in all_sum #3", ""))
    )
    texts = _texts(topology(replace(t, ranks=busy)))
    assert {"collective", "⇄", "1 collective", "busy", "1 busy"} <= set(texts)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_ways_in_use_are_read_from_the_recorders(n_ranks):
    trace = make_trace(n_ranks)
    ways = {(its["op"], its["algorithm"]) for its in trace.records if its["algorithm"]}
    uses = uses_of(trace)
    assert {(use.op, use.algorithm) for use in uses} == ways
    (use,) = [its for its in uses if its.op == "all_sum"]
    assert [use.low, use.high, use.is_split] == [1 << 20, 1 << 20, False]


def test_ways_of_splits_and_of_long_ago_are_told_apart():
    trace = make_trace(2)
    records = trace.records.copy()
    records["group"][records["rank"] == 1] = 5
    late = np.int64(3600 * 10**9)
    uses = uses_of(type(trace)(records, trace.hosts, trace.dropped, trace.now_ns + int(late)))
    assert {(use.is_split, use.is_now) for use in uses if use.op == "all_sum"} == {
        (False, False),
        (True, False),
    }
    empty = type(trace)(records[:0], trace.hosts, trace.dropped, trace.now_ns)
    assert uses_of(empty) == ()


def test_the_former_names_of_public_classes_are_kept():
    assert widgets.Asked is widgets.SweepRequest
    assert widgets.Seen is widgets.Observations
