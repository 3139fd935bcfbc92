"""What the topology says of links and of a rank's last operations, in words."""

from __future__ import annotations

from worlds import make_trace, make_world

from phalanx.protocol import LinkMeasurement
from phalanx.widgets._link_words import judge, say_links
from phalanx.widgets._operation_words import say_operations


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
