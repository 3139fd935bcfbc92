"""Hosts that cannot be reached for a while, or whose connections break: what becomes of them."""

from __future__ import annotations

import re

import pytest
from hosts.ssh.world_over_ssh import SILENCE_S, SSHD, SharedWorld, check_named
from support.hosts.cutting import ports_of, reset
from support.hosts.hosts_bed import check_nothing_left, has_failed
from support.promise import BOUND_S, after_silence_s, check
from support.runs.tiers import deep
from support.waiting import wait_until

LINGER_S = 0.3
LONG_S = 600.0  # no linger time that is over while a test looks
# A host tries to reach its root again each 1.6 s at most, and ends its ranks in half a second.
BACK_S = 1.6 + BOUND_S
HEARD_S = 4.0 + BOUND_S  # a cell that is lost on its way, and its end as well: 2 s each
RANK = " rank-"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="class")
def shared(bed, request, tmp_path_factory):
    shared = SharedWorld(bed, tmp_path_factory.mktemp("world"), linger=request.cls.linger_s)
    yield shared
    shared.end()


@pytest.fixture
def world(shared, request):
    """Six ranks on three hosts; a test that loses some restarts them, or ends the world."""
    yield shared.take()
    if has_failed(request.node):
        shared.drop()


class TestOneWay:
    """Packets that are lost in one direction only, in a world whose links are whole."""

    linger_s = LONG_S

    @pytest.mark.promise
    def test_a_one_way_fault_names_the_host_and_the_direction_on_all_ranks(
        self, bed, world, tmp_path
    ):
        """What a sends to c is lost; what c sends to a is not."""
        world.wait_together(tmp_path)
        bed.block(0, 2)
        try:
            said = world.answer()
            files = [tmp_path / f"{rank}.error" for rank in range(6)]
            wait_until(lambda: all(file.exists() for file in files), "all ranks are freed")
            if "failures" in said:
                # What a rank on c says of its link arrives, and the root takes it as a sign of life:
                # the link has then failed before the host is given up.
                told = [text for _, text in said["failures"].values()]
                # The host is given up before the next cell begins, which then runs without its
                # ranks and says so, or while the cell runs.
                after = world.run("1")
                reasons = [text for _, text in after.get("failures", {}).values()]
                said_after = [after.get("problem", ""), *reasons, *after.get("notices", [])]
                assert any(re.search("rank [45].* lost its host", said) for said in said_after), (
                    after
                )
            else:
                told = [said["problem"]]
        finally:
            bed.unblock(2)
        for text in (*told, *(file.read_text() for file in files)):
            assert re.search("rank [45] on c: ", text)
            assert "nothing comes from 10.77.0.11 " in text
            assert " to 10.77.0.13" in text
        assert all(file.read_text().startswith("RankFailure: ") for file in files)
        check(said["seconds"] - world.waited_s, after_silence_s(SILENCE_S))
        check_nothing_left(bed, 2, bound_s=BACK_S)  # it hears that it was given up
        world.restart()
        assert world.run("px.all_sum(1)")["values"] == ["6"] * 6


class TestReset:
    """Connections that break while both sides live; at last, hosts that are gone for a while."""

    linger_s = LONG_S

    def test_a_host_whose_connections_are_reset_stays(self, bed, world):
        """Also without its ssh, which is how a router that forgets its connections looks."""
        (host,) = world.find(2, "-m phalanx.supervisor host")
        ranks = world.find(2, RANK)
        for process in bed.processes(0):
            if process.name() == "ssh":
                process.kill()
        assert reset(bed, 2, host.pid) == 1
        # For longer than a host that is gone is given.
        said = world.run(f"import time; time.sleep({SILENCE_S + 1}); px.all_sum(1)")
        assert said["values"] == ["6"] * 6
        assert world.find(2, RANK) == ranks
        wait_until(lambda: ports_of(bed, 2, host.pid), "the host is connected again")
        assert reset(bed, 2, host.pid) == 1

    @pytest.mark.promise
    def test_a_cell_that_is_sent_as_connections_are_reset_runs_once_everywhere(self, bed, world):
        world.run("n_runs = 0")
        count = "n_runs += 1; n_runs"
        ranks = world.find(2, RANK)
        for n_runs in range(1, 3):
            rank = ranks[n_runs % 2].pid
            wait_until(lambda pid=rank: len(ports_of(bed, 2, pid)) > 1, "a rank is connected")
            assert reset(bed, 2, rank) > 1
            said = world.run(count)
            assert said.get("values") == [str(n_runs)] * 6, said
            check(said["seconds"], HEARD_S)
        # A reset as the cell ends: its reply, its last words, or nothing is lost.
        for n_runs in range(3, 5):
            world.say(f"import time; time.sleep(0.1); print('x' * 10_000)\n{count}")
            reset(bed, 2, ranks[n_runs % 2].pid)
            said = world.answer()
            assert "seconds" in said, said
            check(said["seconds"], HEARD_S)
        assert world.run(count)["values"] == ["5"] * 6

    @deep
    @pytest.mark.promise
    def test_hosts_that_were_given_up_or_missed_the_stop_end_when_they_are_back(
        self, bed, world, tmp_path
    ):
        world.wait_together(tmp_path)
        bed.cut(2)
        try:
            check_named(world, "c")
            assert world.find(2, RANK)  # it does not know whether its root is gone
            bed.mend(2)
            check_nothing_left(bed, 2, bound_s=BACK_S)  # it was told
            bed.cut(1)
            assert "stopped" in world.stop()
            check_nothing_left(bed, 0)
            assert world.find(1, RANK)
        finally:
            bed.mend(1)
            bed.mend(2)
        check_nothing_left(bed, bound_s=BACK_S)  # nobody listens where its root was


@deep
class TestGone:
    """Hosts that end by themselves, as their root is gone for them."""

    linger_s = LINGER_S

    @pytest.mark.promise
    def test_a_host_whose_own_interface_goes_down_is_named_and_leaves_nothing(
        self, bed, world, tmp_path
    ):
        world.wait_together(tmp_path)
        bed.switch_off(2)
        try:
            check_named(world, "c")
            check_nothing_left(bed, 2, bound_s=LINGER_S + SILENCE_S + BOUND_S, but=SSHD)
        finally:
            bed.switch_on(2)
        world.restart()

    @pytest.mark.promise
    def test_all_hosts_are_named_when_the_roots_interface_goes_down(self, bed, world, tmp_path):
        world.wait_together(tmp_path)
        bed.switch_off(0)
        try:
            said = world.answer()
            assert "lost its host: it has not answered for 2 s" in said["problem"]
            check(said["seconds"] - world.waited_s, after_silence_s(SILENCE_S))
            check_nothing_left(bed, 1, 2, bound_s=LINGER_S + SILENCE_S + BOUND_S, but=SSHD)
        finally:
            bed.switch_on(0)
        assert "stopped" in world.stop()
