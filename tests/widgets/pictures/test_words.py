"""What the topology says of links and of a rank's last operations, in words."""

from __future__ import annotations

from msgspec.structs import replace
from support.ranks.worlds import make_trace, make_world

from phalanx.protocol import LinkMeasurement
from phalanx.widgets import Observations, topology
from phalanx.widgets.frames import links as _link_words
from phalanx.widgets.frames.links import judge, say_links
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
    said = [say_ms(ms) for ms in (999.4, 999.7, 0.9994, 0.99996, 12_000, 2.01, 1.2e3)]
    assert said == ["999 ms", "1 s", "999 µs", "1 ms", "12 s", "2.01 ms", "1.2 s"]


def test_links_are_judged_once_however_often_a_widget_or_a_still_asks(monkeypatch):
    sizes: list[int] = []  # of what a median was computed

    def counted(values):
        known = [*values]
        sizes.append(len(known))
        return real(known)

    def measured(latency_us=10.0):
        return tuple(LinkMeasurement(its.a, its.b, latency_us, 2.0, 64, 0) for its in world.links)

    real = _link_words.median
    monkeypatch.setattr(_link_words, "median", counted)
    _link_words._judge.cache_clear()
    world = make_world(8, 8)  # 224 pairs share memory, 8 are wired
    first = judge(measured(), world)
    assert len(first) == len(world.links)
    assert sorted(sizes) == [8, 8, 224, 224]
    later = replace(world, ranks=tuple(replace(its, state="busy") for its in world.ranks))
    assert judge(measured(), later) is first  # as another look finds them
    assert "232 links measured, none slow" in topology(world, Observations(measured())).text
    assert len(sizes) == 4
    died = replace(world, ranks=(replace(world.ranks[0], state="dead"), *world.ranks[1:]))
    assert judge(measured(), died)[0].state == "broken"
    assert judge(measured(20.0), died)[-9].words == "20 µs, 2 GB/s"
    assert len(sizes) == 12
