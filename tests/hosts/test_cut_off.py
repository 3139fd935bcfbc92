"""Hosts that cannot be reached for a while, or whose connections break: what becomes of them."""

from __future__ import annotations

import pytest
from cutting import reset
from hosts.world_over_ssh import BOUND_S, SILENCE_S, SLACK_S, World, check_named

LINGER_S = 2.0
LONG_S = 600.0
# A host tries to reach its root again each 1.6 s at most, and ends its ranks in half a second.
BACK_S = 1.6 + BOUND_S + SLACK_S
HEARD_S = 6.0  # a cell that is lost on its way, and its end as well, are asked for in 2 s each
SSHD = "sshd: "  # it cannot know that its connection has broken before its cable is back

pytestmark = pytest.mark.slow


@pytest.fixture
def start(bed, tmp_path):
    worlds = []

    def start(**options):
        worlds.append(World(bed, tmp_path, **options))
        worlds[-1].boot()
        return worlds[-1]

    yield start
    for world in worlds:
        with world:
            pass
    assert bed.left(BACK_S) == []


def _eth0(bed, host, state):
    bed.run(host, ["ip", "link", "set", "eth0", state])


def test_a_host_whose_own_interface_goes_down_is_named_and_leaves_nothing(bed, start):
    world = start(linger=LINGER_S)
    world.wait_together()
    _eth0(bed, 2, "down")
    try:
        check_named(world, "c", SILENCE_S + 0.5 + SLACK_S)
        # It does not know whether its root is gone: its ranks are there for a while.
        assert world.find(2, "phalanx.supervisor._engine")
        assert bed.left(LINGER_S + SILENCE_S + BOUND_S + SLACK_S, 2, but=SSHD) == []
    finally:
        _eth0(bed, 2, "up")
    assert "stopped" in world.stop()


def test_all_hosts_are_named_when_the_roots_interface_goes_down(bed, start):
    world = start(linger=0)
    world.wait_together()
    _eth0(bed, 0, "down")
    try:
        said = world.answer()
        assert "lost its host: it has not answered for 2 s" in said["problem"]
        assert said["seconds"] - world.waited_s < SILENCE_S + 0.5 + SLACK_S
        assert bed.left(SILENCE_S + BOUND_S + SLACK_S, 1, 2, but=SSHD) == []
    finally:
        _eth0(bed, 0, "up")
    assert "stopped" in world.stop()


def test_hosts_that_were_given_up_or_missed_the_stop_end_when_they_are_back(bed, start):
    world = start(linger=LONG_S)
    world.wait_together()
    bed.cut(2)
    try:
        check_named(world, "c", SILENCE_S + 0.5 + SLACK_S)
        bed.mend(2)
        assert bed.left(BACK_S, 2) == []  # it was told
        bed.cut(1)
        assert "stopped" in world.stop()
        assert bed.left(BOUND_S + SLACK_S, 0) == []
        assert world.find(1, "phalanx.supervisor._engine")
    finally:
        bed.mend(1)
        bed.mend(2)
    assert bed.left(BACK_S) == []  # nobody listens where its root was


def test_a_host_whose_connections_are_reset_stays_and_is_stopped(bed, start):
    """Also without its ssh, which is how a router that forgets its connections looks."""
    world = start(linger=LONG_S)
    (host,) = world.find(2, "-m phalanx.supervisor host")
    ranks = world.find(2, "phalanx.supervisor._engine")
    for process in bed.processes(0):
        if process.name() == "ssh":
            process.kill()
    assert reset(bed, 2, host.pid) == 1
    # For longer than a host that is gone is given.
    said = world.run(f"import time; time.sleep({SILENCE_S + 1}); px.all_sum(1)")
    assert said["values"] == ["6"] * 6
    assert world.find(2, "phalanx.supervisor._engine") == ranks
    assert reset(bed, 2, host.pid) == 1
    assert "stopped" in world.stop()
    assert bed.left(BOUND_S) == []


def test_a_cell_that_is_sent_as_connections_are_reset_runs_once_everywhere(bed, start):
    world = start(linger=LONG_S)
    world.run("n_runs = 0")
    count = "n_runs += 1; n_runs"
    ranks = world.find(2, "phalanx.supervisor._engine")
    for n_runs in range(1, 3):
        assert reset(bed, 2, ranks[n_runs % 2].pid) > 1
        said = world.run(count)
        assert said.get("values") == [str(n_runs)] * 6, said
        assert said["seconds"] < HEARD_S
    # A reset as the cell ends: its reply, its last words, or nothing is lost.
    for n_runs in range(3, 5):
        world.say(f"import time; time.sleep(0.1); print('x' * 10_000)\n{count}")
        reset(bed, 2, ranks[n_runs % 2].pid)
        said = world.answer()
        assert "seconds" in said, said
        assert said["seconds"] < HEARD_S
    assert world.run(count)["values"] == ["5"] * 6
    assert "stopped" in world.stop()
