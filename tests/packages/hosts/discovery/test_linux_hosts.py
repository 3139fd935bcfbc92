"""Linux hosts: the script run for real, on this machine's /sys and on made-up ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts.discovery.linux import ip_addr, make_sys
from hosts.discovery.macs import macs

from phalanx.cli.config.networks import DiscoveryError
from phalanx.cli.config.planner import Discovery
from phalanx.cli.config.surveys import Interface, RdmaDevice, Survey, gather, read_survey
from phalanx.cli.probe.probe_main import survey_linux
from phalanx.cli.probe.talk import HostProbes
from phalanx.hosts import Host, own_addresses, to_json
from phalanx.protocol import HostPlan, RemoteOptions


def survey_of(root, name, *, addresses, **devices):
    """Survey a made-up /sys, and what `ip` says of it."""
    notes = []
    found = survey_linux(make_sys(root / "sys", **devices), ip_addr(**addresses), notes)
    assert not notes
    return read_survey(name, {"system": "Linux", **found})


def found_in(surveys):
    return Discovery([Host(survey.name) for survey in surveys], surveys)


def plan_of(surveys, over, backend=None):
    return found_in(surveys).plan(over, backend)


def rows(plan):
    return [(h["ssh"], h["ips"], h["rdma"]) for h in json.loads(to_json(plan.hostfile))["hosts"]]


def test_this_machine_is_surveyed_as_it_is():
    before = _known_addresses()
    here = HostPlan("here", 0, is_local=True)
    surveys, failures = gather(HostProbes([here], RemoteOptions()))
    after = _known_addresses()
    assert not failures
    survey = surveys[0]
    assert survey.system == "Linux"
    assert not survey.notes
    found = {
        interface.name: {text.partition("/")[0] for text in interface.addresses}
        for interface in survey.interfaces
    }
    # Tests in other processes make interfaces, and remove them, at the same time.
    stayed = {name for name, texts in before.items() if after.get(name) == texts}
    assert {name: found[name] for name in stayed} == {name: before[name] for name in stayed}
    assert {name for name, texts in found.items() if texts} <= before.keys() | after.keys()
    assert {i.name: i.kind for i in survey.interfaces}["lo"] == "loopback"


def _known_addresses() -> dict[str, set[str]]:
    known = {
        name: {text for text in texts if "%" not in text and not text.startswith("fe80")}
        for name, texts in own_addresses().items()
    }
    return {name: texts for name, texts in known.items() if texts}


def _thunderbolt_hosts(tmp_path, pairs, n):
    """Linux hosts whose cables are pairs; all sockets of a host are of one domain."""
    found = []
    for host in range(n):
        peers = [b if a == host else a for a, b in pairs if host in (a, b)]
        devices = [("0-0", f"uuid-{host}", "")]
        for k, peer in enumerate(peers):
            devices += [(f"0-{k + 1}", f"uuid-{peer}", ""), (f"0-{k + 1}.1", "", f"thunderbolt{k}")]
        found.append(
            survey_of(
                tmp_path / str(host), f"h{host}",
                addresses={"eth0": [f"10.0.0.{host + 1}/24"]},
                interfaces=[
                    ("eth0", "up", 1000, "igc"),
                    *((f"thunderbolt{k}", "down", "", "thunderbolt-net") for k in range(len(peers))),
                ],
                thunderbolt=devices,
            )
        )  # fmt: skip
    return found


def test_thunderbolt_networking_makes_a_ring(tmp_path):
    surveys = _thunderbolt_hosts(tmp_path, [(0, 1), (1, 2), (2, 0)], 3)
    assert {i.name: (i.kind, i.speed_mbps) for i in surveys[0].interfaces} == {
        "eth0": ("ethernet", 1000),
        "thunderbolt0": ("thunderbolt", 0),
        "thunderbolt1": ("thunderbolt", 0),
    }
    plan = plan_of(surveys, "any")
    assert plan.over == "thunderbolt"
    assert rows(plan) == [
        ("h0", ["192.168.0.5"], []),
        ("h1", ["192.168.0.2"], []),
        ("h2", ["192.168.0.10"], []),
    ]


def test_a_mac_and_a_linux_host_see_one_cable(tmp_path):
    (mac,) = macs(1)
    mac.peers[1] = [["0F0F0F0F-AAAA-4000-8000-000000000001"]]
    linux = survey_of(
        tmp_path, "h1",
        addresses={},
        interfaces=[("thunderbolt0", "up", "", "thunderbolt-net")],
        thunderbolt=[
            ("0-0", "0f0f0f0f-aaaa-4000-8000-000000000001", ""),
            ("0-1", mac.domain(1).lower(), ""),
            ("0-1.1", "", "thunderbolt0"),
        ],
    )  # fmt: skip
    plan = plan_of([mac.survey(), linux], "thunderbolt")
    assert rows(plan) == [("mac0", ["192.168.0.1"], []), ("h1", ["192.168.0.2"], [])]
    assert not plan.remarks


def test_two_cables_between_two_linux_hosts_are_two(tmp_path):
    plan = plan_of(_thunderbolt_hosts(tmp_path, [(0, 1), (0, 1)], 2), "thunderbolt")
    assert rows(plan)[0] == ("h0", ["192.168.0.1", "192.168.0.5"], [])


def _infiniband_host(tmp_path, host, *, state="4: ACTIVE", layer="InfiniBand"):
    root = tmp_path / str(host)
    interface = "ib0" if layer == "InfiniBand" else "eth1"
    return survey_of(
        root, f"h{host}",
        addresses={"eth0": [f"10.0.0.{host + 1}/24"], interface: [f"10.1.0.{host + 1}/24"]},
        interfaces=[("eth0", "up", 1000, "igc"), (interface, "up", 100000, "mlx5_core")],
        infiniband=[
            ("mlx5_0", 1, "1: DOWN", "Ethernet", "", ""),
            ("mlx5_1", 1, "1: DOWN", layer, "", ""),  # of two ports the one that works counts
            ("mlx5_1", 2, state, layer, f"fe80:0000:0000:0001:0000:0000:0000:000{host}", interface),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_infiniband_and_roce_make_a_mesh(tmp_path, layer):
    surveys = [_infiniband_host(tmp_path, i, layer=layer) for i in range(3)]
    plan = plan_of(surveys, "any", "jaccl")
    assert rows(plan)[1] == ("h1", ["10.1.0.2"], ["mlx5_1", None, "mlx5_1"])
    assert plan_of(surveys, "any").hostfile.backend == "ring"


def test_hosts_without_an_active_rdma_device_are_all_named(tmp_path):
    surveys = [
        _infiniband_host(tmp_path, i, state="4: ACTIVE" if i == 1 else "2: INIT") for i in range(3)
    ]
    with pytest.raises(DiscoveryError, match="h0, h2: no active RDMA device"):
        plan_of(surveys, "ethernet", "jaccl")


def test_a_device_of_no_interface_is_on_no_network(tmp_path):
    surveys = [_infiniband_host(tmp_path, i, layer="Ethernet") for i in range(2)]
    card = Interface("eth0", "ethernet", is_up=True, addresses=("10.0.0.3/24",))
    surveys.append(Survey("h2", "Linux", (card,), rdma=(RdmaDevice("mlx5_0"),)))
    with pytest.raises(DiscoveryError, match="h2: no active RDMA device"):
        plan_of(surveys, "ethernet", "jaccl")


def ethernet(tmp_path, host, interfaces):
    """A host of (name, speed, driver, address)."""
    root = tmp_path / str(host)
    return survey_of(
        root, f"h{host}",
        addresses={name: [address] for name, _, _, address in interfaces if address},
        interfaces=[(name, "up", speed, driver) for name, speed, driver, _ in interfaces],
    )  # fmt: skip


def test_the_fastest_network_that_all_are_on_is_taken(tmp_path):
    surveys = [
        ethernet(
            tmp_path, i,
            [
                ("docker0", 10000, "", "172.17.0.1/16"),  # the same on each of them: not one network
                ("eth0", 1000, "igc", f"10.0.0.{i + 1}/24"),
                ("eth1", 25000, "mlx5_core", f"10.2.0.{i + 1}/24"),
                ("eth2", 25000, "mlx5_core", f"10.3.0.{i + 1}/24" if i else ""),
            ],
        )
        for i in range(3)
    ]  # fmt: skip
    assert [ips for _, ips, _ in rows(plan_of(surveys, "any"))] == [
        [f"10.2.0.{i}"] for i in (1, 2, 3)
    ]
    # Between the last two there are two of them, equally fast and on cards of their own.
    assert rows(plan_of(surveys[1:], "any"))[0][1] == ["10.2.0.2", "10.3.0.2"]


def test_an_address_that_the_user_names_decides_the_network(tmp_path):
    surveys = [
        ethernet(
            tmp_path, i,
            [("eth0", 1000, "igc", f"10.0.0.{i + 1}/24"), ("eth1", 25000, "mlx5", f"10.2.0.{i + 1}/24")],
        )
        for i in range(2)
    ]  # fmt: skip
    found = Discovery([Host("10.0.0.1"), Host("b")], surveys)
    assert [host.ips for host in found.plan("ethernet").hostfile.hosts] == [
        ("10.0.0.1",),
        ("10.0.0.2",),
    ]


def test_cards_joined_without_a_switch_make_a_ring(tmp_path):
    pairs = [(0, 2), (2, 1), (1, 3), (3, 0)]
    surveys = [
        ethernet(
            tmp_path, host,
            [
                (f"eth{k}", 25000, "mlx5_core", f"10.9.{k}.{1 + pair.index(host)}/30")
                for k, pair in enumerate(pairs)
                if host in pair
            ],
        )
        for host in range(4)
    ]  # fmt: skip
    plan = plan_of(surveys, "ethernet", "ring")
    assert [ssh for ssh, _, _ in rows(plan)] == [surveys[i].name for i in (0, 2, 1, 3)]
    assert [ips for _, ips, _ in rows(plan)] == [
        ["10.9.3.2"],
        ["10.9.0.2"],
        ["10.9.1.2"],
        ["10.9.2.2"],
    ]


def test_a_network_is_drawn_with_its_hosts(tmp_path):
    surveys = [ethernet(tmp_path, i, [("eth0", 1000, "igc", f"10.0.0.{i}/24")]) for i in (1, 2)]
    assert found_in(surveys).dot("any").splitlines()[4:] == [
        '  net0 [shape=ellipse label="10.0.0.0/24"];',
        '  a -- net0 [label="eth0 10.0.0.1"]',
        '  b -- net0 [label="eth0 10.0.0.2"]',
        "}",
    ]


def test_hosts_on_different_networks_use_their_own_addresses_and_that_is_said(tmp_path):
    surveys = [ethernet(tmp_path, i, [("eth0", 1000, "igc", f"10.{i}.0.9/24")]) for i in range(2)]
    plan = plan_of(surveys, "any")
    assert [ips for _, ips, _ in rows(plan)] == [["10.0.0.9"], ["10.1.0.9"]]
    assert "no network has all hosts on it" in plan.remarks[0]


def test_hosts_without_any_address_are_all_named():
    with pytest.raises(DiscoveryError, match="a, b: no address that others could reach"):
        plan_of([Survey("a", "Linux"), Survey("b", "Linux")], "any")


def test_a_host_without_ip_is_told_what_to_install():
    notes = []
    survey_linux(Path("/sys"), "", notes)
    assert "iproute2" in notes[0]
