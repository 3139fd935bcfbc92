"""Orders and addresses chosen by times; and the times taken for real, between programs here."""

from __future__ import annotations

import threading

import pytest

from phalanx.distributed._pair_probe import time_pair
from phalanx.distributed._rendezvous import MemoryRendezvous
from phalanx.errors import DistributedError
from phalanx.hosts import (
    Discovery,
    DiscoveryError,
    Host,
    Interface,
    Network,
    PathTimes,
    Survey,
    cable_networks,
    measure,
    measured_plan,
)
from phalanx.hosts._probes import _rounds

_CARDS = {"10.0.0": "eth0", "10.1.0": "eth1"}


def _discovery(n):
    surveys = [
        Survey(
            f"h{i}", "Linux",
            tuple(Interface(card, "ethernet", True, (f"{net}.{i + 1}/24",)) for net, card in _CARDS.items()),
        )
        for i in range(n)
    ]  # fmt: skip
    return Discovery([Host(f"h{i}") for i in range(n)], surveys)


def _times(found, fast, *, factor=10.0, failed=()):
    """Times of all pairs on both networks; those in ``fast`` are faster, those in ``failed`` none."""
    return [
        PathTimes(a, b, net.prefix, failure="blocked")
        if (a, b, net.prefix) in failed
        else PathTimes(
            a, b, net.prefix, 20.0, *(2 * [factor if (a, b, net.prefix) in fast else 1.0])
        )
        for net in found.networks
        for a in net.members
        for b in net.members
        if a < b
    ]


def _plan(found, times):
    return measured_plan(found, found.plan("ethernet", "ring"), found.networks, times)


def test_the_ring_goes_over_the_fast_pairs_and_their_addresses():
    found = _discovery(4)
    one, two = (f"{net}.0/24" for net in _CARDS)
    fast = {(0, 2, one), (1, 2, two), (1, 3, one), (0, 3, two)}
    plan = _plan(found, _times(found, fast))
    assert plan.order == (0, 2, 1, 3)
    # Each listens on the network over which the one before it comes in.
    assert [host.ips for host in plan.hostfile.hosts] == [
        ("10.1.0.1",), ("10.0.0.3",), ("10.1.0.2",), ("10.0.0.4",)
    ]  # fmt: skip
    assert "10.00 GB/s" in plan.remarks[-1]


def test_of_two_addresses_of_a_card_all_use_the_same_unless_one_is_faster_by_much():
    addresses = [(f"10.0.0.{i}/24", f"fd77::{i}/64") for i in (1, 2, 3)]
    surveys = [
        Survey(f"h{i}", "Linux", (Interface("eth0", "ethernet", True, found),))
        for i, found in enumerate(addresses)
    ]
    found = Discovery([Host(f"h{i}") for i in range(3)], surveys)
    for factor, ips in (
        (1.1, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        (2.0, ["fd77::1", "fd77::2", "10.0.0.3"]),
    ):
        faster = {(0, 2, "fd77::/64"), (0, 1, "fd77::/64")}
        plan = _plan(found, _times(found, faster, factor=factor))
        assert [ip for host in plan.hostfile.hosts for ip in host.ips] == ips


def test_paths_that_are_about_as_fast_are_used_together():
    found = _discovery(3)
    plan = _plan(found, _times(found, {(0, 1, "10.1.0.0/24")}, factor=1.1))
    assert all(len(host.ips) == 2 for host in plan.hostfile.hosts)
    assert "2.00 GB/s" in plan.remarks[-1]
    plan = _plan(found, _times(found, {(0, 1, "10.1.0.0/24")}, factor=2.0))
    assert [len(host.ips) for host in plan.hostfile.hosts] == [2, 1, 2]


def test_a_path_that_failed_is_gone_round_or_named():
    found = _discovery(4)
    failed = {(0, 1, f"{net}.0/24") for net in _CARDS}
    plan = _plan(found, _times(found, (), failed=failed))
    assert plan.order == (0, 2, 1, 3)
    failed |= {(0, b, f"{net}.0/24") for net in _CARDS for b in (2, 3)}
    with pytest.raises(DiscoveryError, match=r"h0 - h1 \(blocked\); h0 - h2 \(blocked\)"):
        _plan(found, _times(found, (), failed=failed))


@pytest.mark.parametrize("n", range(2, 12))
def test_every_pair_has_its_turn_and_no_host_two_at_once(n):
    network = Network("x", {i: ("eth0", str(i)) for i in range(n)})
    rounds = list(_rounds(n, [network]))
    for pairs in rounds:
        hosts = [host for a, b, _ in pairs for host in (a, b)]
        assert len(hosts) == len(set(hosts))
    told = [(a, b) for pairs in rounds for a, b, _ in pairs]
    assert sorted(told) == [(a, b) for a in range(n) for b in range(a + 1, n)]


def test_a_cable_is_a_network_of_its_own():
    (net,) = cable_networks(_thunderbolt())
    assert net.members == {0: ("en2", "192.168.0.1"), 1: ("en3", "192.168.0.2")}


def _thunderbolt():
    from phalanx.hosts import Cable

    return [Cable(0, "en2", "192.168.0.1", 1, "en3", "192.168.0.2")]


def test_a_pair_is_timed_by_the_engine():
    found = [None, None]

    def rank(meeting):
        found[meeting.rank] = time_pair(meeting, "127.0.0.1", bytes(32), ("a", "b"), 10.0)

    threads = [threading.Thread(target=rank, args=(m,)) for m in MemoryRendezvous.of_size(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found[1] is None
    assert 0 < found[0].latency_us < 1e6
    assert min(found[0].there_gbs, found[0].back_gbs) > 0


def test_programs_on_hosts_meet_and_are_gone_afterwards():
    """Two programs here, on loopback addresses of their own; one pair cannot be connected."""
    hosts = [Host("127.0.0.1"), Host("localhost")]
    good = Network("loopback", {0: ("lo", "127.0.0.1"), 1: ("lo", "127.0.0.1")})
    # Nobody has an address of TEST-NET-1 here, or the test would be on the network.
    bad = Network("nowhere", {0: ("x", "198.51.100.77"), 1: ("x", "198.51.100.78")})
    said = []
    times = measure(hosts, hosts, [bad, good], say=said.append)
    assert [path.network for path in times] == ["nowhere", "loopback"]
    assert times[0].failure
    assert not times[1].failure
    assert times[1].there_gbs > 0
    assert said[1].startswith("127.0.0.1 - localhost on loopback: ")


def test_hosts_that_cannot_start_it_are_all_named(tmp_path):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No module named phalanx' >&2\nexit 1\n")
    bare.chmod(0o755)
    hosts = [Host("127.0.0.1"), Host("localhost")]
    with pytest.raises(DistributedError) as told:
        measure(hosts, hosts, [], python=str(bare))
    assert "127.0.0.1: No module named phalanx; localhost: No module named" in str(told.value)
