"""Orders and addresses chosen by measurements; and measurements between ranks here."""

from __future__ import annotations

import itertools

import pytest

from phalanx.distributed.bench.links import pairing_rounds
from phalanx.hosts import (
    Discovery,
    DiscoveryError,
    Host,
    Interface,
    Survey,
    cable_networks,
    measured_plan,
)
from phalanx.protocol import HostPlan, LinkMeasurement, RemoteOptions
from phalanx.workspace import Workspace

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
        LinkMeasurement(a, b, 0.0, 0.0, 0, 0, net.prefix, "blocked")
        if (a, b, net.prefix) in failed
        else LinkMeasurement(
            a, b, 20.0, factor if (a, b, net.prefix) in fast else 1.0, 1 << 20, 0, net.prefix
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
    rounds = list(pairing_rounds(range(n)))
    for pairs in rounds:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts))
    told = itertools.chain(*rounds)
    assert sorted(told) == [(a, b) for a in range(n) for b in range(a + 1, n)]


def test_a_cable_is_a_network_of_its_own():
    (net,) = cable_networks(_thunderbolt())
    assert net.members == {0: ("en2", "192.168.0.1"), 1: ("en3", "192.168.0.2")}


def _thunderbolt():
    from phalanx.hosts import Cable

    return [Cable(0, "en2", "192.168.0.1", 1, "en3", "192.168.0.2")]


@pytest.fixture(scope="module")
def three():
    """Ranks on three "hosts", which are all this machine."""
    hosts = [HostPlan(name, 1) for name in "abc"]
    remote = RemoteOptions(launcher="local")
    with Workspace.start(hosts=hosts, remote=remote, linger=0) as workspace:
        yield workspace


def test_ranks_measure_each_pair_on_each_network(three):
    """The pairs of a network have one connection each, on its addresses alone."""
    everybody = {rank: f"127.0.0.{rank + 1}" for rank in range(3)}
    found = three.measure_links({"one": everybody, "two": {0: "127.0.0.1", 2: "127.0.0.3"}})
    pairs = [(link.network, link.a, link.b) for link in found]
    assert sorted(pairs) == [("one", 0, 1), ("one", 0, 2), ("one", 1, 2), ("two", 0, 2)]
    assert all(link.gbs > 0 and link.latency_us > 0 for link in found)
    assert not any(link.failure or link.n_wrong for link in found)
    assert three.measured_links == ()  # those are of the ranks' own links


def test_a_pair_that_cannot_be_connected_leaves_the_others(three):
    # Nobody has an address of TEST-NET-1 here, or the test would be on the network.
    # The lower rank of a pair listens.
    nowhere = {0: "198.51.100.78", 1: "127.0.0.2", 2: "127.0.0.3"}
    found = {(link.a, link.b): link for link in three.measure_links({"nowhere": nowhere})}
    assert "198.51.100.78" in found[0, 1].failure
    assert "198.51.100.78" in found[0, 2].failure
    assert not found[1, 2].failure
    assert found[1, 2].gbs > 0
    assert three.measure_links()[0].network == ""  # the ranks are as good as before
