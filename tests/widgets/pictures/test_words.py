"""What the topology says of links and of a rank's last operations, in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.ranks.worlds import make_trace, make_world

from phalanx.protocol import LinkMeasurement
from phalanx.widgets import Observations, topology
from phalanx.widgets.frames import links as _link_words
from phalanx.widgets.frames.links import LinkClassifier, judge, say_links
from phalanx.widgets.text.operations import say_operations
from phalanx.widgets.text.world import say_ms


def test_what_a_dead_rank_was_in_does_not_go_on():
    trace = make_trace(2)
    assert say_operations(trace, 1).startswith("barrier #9999, by inline, runs for 500 ms: the")
    said = say_operations(trace, 1, is_dead=True).splitlines()
    assert said[0].endswith(
        ", by inline, had not ended when the rank died: the last rank had not come"
    )
    assert said[1].endswith(" ago")


def test_slow_and_broken_links_are_told_from_the_others():
    world = make_world(1, 4, states=("idle", "idle", "idle", "dead"))
    fast = [LinkMeasurement(a, b, 10.0, 2.0, 64, 0) for a, b in ((0, 1), (0, 3))]
    slow = [LinkMeasurement(0, 2, 10.0, 0.9, 64, 0), LinkMeasurement(1, 2, 600.0, 2.0, 64, 0)]
    found = {(one.a, one.b): (one.state, one.words) for one in judge(fast + slow, world)}
    assert found[0, 1] == ("ok", "10 µs, 2 GB/s")
    assert found[0, 2] == ("slow", "slow: 10 µs, 0.9 GB/s; others 2 GB/s")
    assert found[1, 2] == ("slow", "slow: 600 µs, 2 GB/s; others 10 µs")
    for pair in ((0, 3), (1, 3), (2, 3)):  # the last two are not measured
        assert found[pair] == ("broken", "broken: rank 3 is dead")
    (wrong,) = judge([LinkMeasurement(0, 1, 10.0, 2.0, 64, 3)], make_world(1, 2))
    assert wrong.words == "broken: 3 bytes came back wrong; 10 µs, 2 GB/s"
    assert say_links(judge(slow, make_world(1, 4))) == "2 links measured, none slow or broken"


def test_times_change_their_unit_before_they_need_a_power_of_ten():
    said = [say_ms(ms) for ms in (999.4, 999.7, 0.9994, 0.99996, 12_000)]
    assert said == ["999 ms", "1 s", "999 µs", "1 ms", "12 s"]


def test_long_times_of_links_are_said_in_their_own_unit():
    world = make_world(1, 4)
    links = [LinkMeasurement(a, b, 2010.0, 2.0, 64, 0) for a, b in ((0, 1), (0, 2), (0, 3))]
    late = LinkMeasurement(1, 2, 1.2e6, 2.0, 64, 0)
    assert [one.words for one in judge([links[0], *links, late], world)][::4] == [
        "2.01 ms, 2 GB/s",
        "slow: 1.2 s, 2 GB/s; others 2.01 ms",
    ]


@pytest.fixture
def medians(monkeypatch):
    """How many values each median was of, in the order in which they were asked for."""
    found: list[int] = []

    def counted(values):
        known = [*values]
        found.append(len(known))
        return real(known)

    real = _link_words.median
    monkeypatch.setattr(_link_words, "median", counted)
    return found


def _measured(t, latency_us=10.0):
    return tuple(LinkMeasurement(its.a, its.b, latency_us, 2.0, 64, 0) for its in t.links)


def test_what_is_usual_is_found_once_for_each_kind_of_link(medians):
    world = make_world(8, 8)  # 224 pairs share memory, 8 are wired
    frames = judge(_measured(world), world)
    assert len(frames) == len(world.links)
    assert sorted(medians) == [8, 8, 224, 224]


def test_a_still_judges_its_links_once(medians):
    world = make_world(8, 8)
    assert "232 links measured, none slow" in topology(world, Observations(_measured(world))).text
    assert len(medians) == 4


def test_looks_at_the_same_links_judge_them_once(medians):
    judge_of, world = LinkClassifier(), make_world(8, 8)
    links = _measured(world)
    first = judge_of.take(links, world)
    later = replace(world, ranks=tuple(replace(its, state="busy") for its in world.ranks))
    assert judge_of.take(_measured(world), later) is first  # as another look finds them
    assert len(medians) == 4
    died = replace(world, ranks=(replace(world.ranks[0], state="dead"), *world.ranks[1:]))
    assert judge_of.take(links, died)[0].state == "broken"
    assert judge_of.take(_measured(world, 20.0), died)[-9].words == "20 µs, 2 GB/s"
    assert len(medians) == 12
