"""A link that breaks while both its ends live is named as that link, by everyone."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

import pytest
from distributed.cells import cells
from distributed.cells.cells import Case
from distributed.farm.farm import Farm
from support.hosts.cutting import cut
from support.promise import PATIENCE_S, after_silence_s, check, within
from support.waiting import wait_until

import phalanx as px
from phalanx.distributed.control import AbortKind


@pytest.mark.promise
@pytest.mark.parametrize("with_memory", [True, False])
def test_a_cut_link_is_named_and_each_end_accuses_the_other(rank_pool, with_memory, tmp_path):
    world = rank_pool(3, transport="tcp", with_memory=with_memory)
    world.run(cells.call, Case("all_sum"))
    world.start(cells.announced, str(tmp_path), cells.call, Case("all_sum"), ranks=[0, 1])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both are about to sum")
    for rank in (0, 1):
        world.wait_asleep(rank)
    assert cut(world.pid(1), world.pid(2))
    with within():
        errors = world.outcomes([0, 1])
    # Without memory, it may have got all it needs for the operation that the others gave up.
    world.start(cells.endless_sums, 3, ranks=[2])
    errors += world.outcomes([2])
    for error, culprit_rank in zip(errors, (2, 2, 1), strict=True):
        assert isinstance(error, px.RankFailure), error
        assert error.rank == culprit_rank
        assert re.search(
            r"the link between rank 1 and rank 2 broke \(.+\) during ", error.reason
        ), error.reason
    if with_memory:
        assert {notice.kind for _, notice in world.notices()} == {AbortKind.LINK_BROKEN}


@pytest.mark.promise
def test_a_message_that_waits_is_freed_by_a_cut(rank_pool):
    world = rank_pool(2, transport="tcp")
    world.run(cells.call, Case("all_sum"))
    world.start(cells.receive_for_ever, 1, ranks=[0])
    world.wait_in("recv", [0])
    assert cut(world.pid(0), world.pid(1))
    with within():
        (error,) = world.outcomes([0])
    assert isinstance(error, px.RankFailure), error
    assert error.rank == 1
    assert "the link between rank 0 and rank 1 broke (127.0.0.1 to 127.0.0.1: " in error.reason


class TwoHosts:
    """This network namespace and another one, joined by a cable that can be pulled."""

    def __init__(self) -> None:
        self.name = f"px{time.monotonic_ns() % 10**7}"
        number = time.monotonic_ns() // 7 % 250 + 1
        self.addresses = (f"10.213.{number}.1", f"10.213.{number}.2")
        here, there = f"{self.name}a", f"{self.name}b"
        self.cable = here
        for command in (
            f"netns add {self.name}",
            f"link add {here} type veth peer name {there} netns {self.name}",
            f"addr add {self.addresses[0]}/24 dev {here}",
            f"link set {here} up",
            f"-n {self.name} addr add {self.addresses[1]}/24 dev {there}",
            f"-n {self.name} link set {there} up",
            f"-n {self.name} link set lo up",
        ):
            self.ip(command)

    def ip(self, command: str) -> None:
        done = subprocess.run(["ip", *command.split()], capture_output=True, check=False)
        if done.returncode:
            self.close()
            pytest.skip(f"no network namespaces here: {done.stderr.decode().strip()}")

    def pull(self) -> None:
        """Let the other host vanish without a word: no packet comes or goes."""
        # Not `link set down`: of that the kernel here would know.
        self.ip(f"-n {self.name} link set {self.name}b down")

    def close(self) -> None:
        for command in (["link", "del", self.cable], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)


@pytest.fixture
def hosts():
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here")
    pair = TwoHosts()
    yield pair
    pair.close()


def has_full_window(pid):
    """Whether the kernel holds bytes that the other end of a connection has no room for."""
    said = subprocess.run(["ss", "-tonpH"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in said.splitlines() if f"pid={pid}," in line]
    return any("timer:(persist" in line for line in ours)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("what", ["recv", "all_sum", "send"])
def test_a_host_that_vanishes_without_a_word_is_noticed(hosts, what):
    """Waiting with nothing under way, with a question under way, and with a full window."""
    limit_s = 2.0
    farm = Farm(prefixes={1: ["ip", "netns", "exec", hosts.name]})
    try:
        homes = dict(enumerate((address,) for address in hosts.addresses))
        world = farm.unformed(
            2, (0, 1), "tcp", with_memory=False, addresses_of=homes, silence_s=limit_s
        )
        world.run(cells.join)
        world.run(cells.call, Case("all_sum"))
        if what != "all_sum":
            world.start(cells.timed_loss, what, ranks=[0])
        if what == "recv":
            world.wait_asleep(0)
        if what == "send":
            wait_until(lambda: has_full_window(world.pid(0)), "rank 1 has no more room")
        hosts.pull()
        pulled_s = time.time()
        if what == "all_sum":
            world.start(cells.timed_loss, what, ranks=[0])
        ((culprit_rank, at_s, reason),) = world.outcomes([0], PATIENCE_S + 10)
        assert culprit_rank == 1
        here, there = hosts.addresses
        way = f"{here} on {hosts.cable} to {there}"
        # Of an idle connection the kernel may say it first: it has asked as often by then.
        why = f"(no answer for {limit_s:g} s{'|Connection timed out' if what == 'recv' else ''})"
        assert re.search(rf"the link between rank 0 and rank 1 broke \({way}: {why}\)", reason)
        check(at_s - pulled_s, after_silence_s(limit_s))
    finally:
        farm.close()
