"""From recorded outputs to hostfiles, beside what MLX makes of the same outputs."""

from __future__ import annotations

import builtins
import io
import itertools
import json
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest
from hosts.discovery.macs import Mac, macs, mesh, plug, survey_of, wired, worlds

from phalanx.cli.config.networks import DiscoveryError
from phalanx.cli.config.planner import Discovery
from phalanx.cli.config.setup import setup_scripts
from phalanx.cli.config.surveys import load_surveys, read_survey, save_surveys
from phalanx.hosts import Host, to_json


def discovery_of(surveys):
    return Discovery([Host(survey.name) for survey in surveys], surveys)


def discovered(hosts):
    return discovery_of([host.survey() for host in hosts])


def found_in(world):
    return discovered(worlds()[world])


def hostfile(plan):
    return json.loads(to_json(plan.hostfile))


# -- beside MLX ------------------------------------------------------------------------------------


class Mlx:
    """MLX's own configuration, its ssh answered by our Macs."""

    def __init__(self, monkeypatch, hosts):
        self.config = pytest.importorskip("mlx._distributed_utils.config")
        self.hosts = {host.name: host for host in hosts}
        monkeypatch.setattr(self.config, "run", self.run)
        monkeypatch.setattr(builtins, "input", lambda _: "")
        self.monkeypatch = monkeypatch

    def run(self, command, *, text=False, **_):
        _, *rest = [word for word in command if not word.startswith(("-o", "BatchMode", "Connect"))]
        host, *asked = rest
        said = self.hosts[host].outputs()
        answer = {
            "system_profiler": said["system_profiler"],
            "networksetup": said["networksetup"],
            "ipconfig": self.hosts[host].address + "\n",
            "ibv_devices": said["ibv_devices"],
        }.get(asked[0], "")
        return SimpleNamespace(returncode=0, stdout=answer if text else answer.encode())

    def said(self, *options):
        argv = ["mlx.distributed_config", "--hosts", ",".join(self.hosts), *options]
        self.monkeypatch.setattr(sys, "argv", argv)
        with redirect_stdout(io.StringIO()) as out:
            self.config.main()
        return out.getvalue()

    def hostfile(self, *options):
        return json.loads(self.said(*options).rpartition("========\n")[2])


def _double(pairs):
    return [pair for pair in pairs for _ in range(2)]


WIRED = {
    "two": (2, [(0, 1)]),
    "two, three cables": (2, [(0, 1)] * 3),
    "mesh of 3": (3, mesh(3)),
    "mesh of 4": (4, mesh(4)),
    "mesh of 4, two cables each": (4, _double(mesh(4))),
    "mesh of 3, one with two": (3, [*mesh(3), (0, 2)]),
    "ring of 5": (5, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 0)]),
    "ring of 6, two cables each": (6, _double([(i, (i + 1) % 6) for i in range(6)])),
    "mesh of 6": (6, mesh(6)),
}


@pytest.mark.parametrize("has_rdma", [True, False])
@pytest.mark.parametrize("name", WIRED)
def test_the_hostfile_is_that_of_mlx(monkeypatch, name, has_rdma):
    hosts = wired(*WIRED[name], has_rdma=has_rdma)
    mlx = Mlx(monkeypatch, hosts)
    ours = discovered(hosts)
    assert hostfile(ours.plan("thunderbolt", envs=["A=1"])) == mlx.hostfile("--env", "A=1")
    assert hostfile(ours.plan("thunderbolt", "ring")) == mlx.hostfile("--backend", "ring")
    assert hostfile(ours.plan("ethernet")) == mlx.hostfile("--over", "ethernet")
    if has_rdma:
        theirs = mlx.hostfile("--backend", "jaccl-ring")
        assert hostfile(ours.plan("thunderbolt", "jaccl-ring")) == theirs


@pytest.mark.parametrize("name", WIRED)
def test_dot_and_commands_are_those_of_mlx(monkeypatch, name):
    hosts = wired(*WIRED[name])
    mlx = Mlx(monkeypatch, hosts)
    ours = discovered(hosts)
    assert ours.dot("thunderbolt") + "\n" == mlx.said("--dot")
    theirs = mlx.said("--backend", "ring").split("Hostfile\n")[0]
    scripts = setup_scripts(ours.surveys, ours.cables)
    # MLX does not look at results: where there is no route yet, its change of one fails.
    told = "\n".join(
        f"Setup for {host.name}\n{'=' * (10 + len(host.name))}\n"
        + "".join(command.partition(" || ")[0] + "\n" for command in script.commands)
        + "\n"
        for host, script in zip(hosts, scripts, strict=True)
    )
    assert told.split() == theirs.split()


# -- where MLX fails -------------------------------------------------------------------------------


def test_a_hub_hides_no_cable():
    found = found_in("hub")
    assert [tuple(c.members) for c in found.cables] == [(0, 2), (0, 1), (1, 2)]
    assert found.plan("thunderbolt").hostfile.backend == "jaccl"
    commands = setup_scripts(found.surveys, found.cables)[0].commands
    assert commands[1].startswith("sudo ifconfig en2 inet")
    assert commands[3].endswith("alias")  # two cables through one socket


def test_all_missing_cables_of_a_mesh_are_named():
    with pytest.raises(DiscoveryError) as told:
        found_in("broken_mesh").plan("thunderbolt", "jaccl")
    assert "2 of its cables are missing: mac0 - mac1, mac2 - mac3" in str(told.value)


def test_what_would_make_a_ring_is_named():
    for backend in ("ring", "jaccl-ring", None):
        with pytest.raises(DiscoveryError) as told:
            found_in("broken_ring").plan("thunderbolt", backend)
        assert "mac0 and mac3 have one neighbour only" in str(told.value)
        assert "with cables mac0 - mac3" in str(told.value)


def test_without_rdma_it_is_a_ring_and_the_hosts_without_are_named():
    found = found_in("no_rdma")
    assert found.plan("thunderbolt").hostfile.backend == "ring"
    for backend in ("jaccl", "jaccl-ring"):
        with pytest.raises(DiscoveryError, match="mac0, mac1, mac2: no RDMA device"):
            found.plan("thunderbolt", backend)


def test_any_takes_the_network_where_cables_do_not_join_all():
    plan = found_in("broken_ring").plan("any")
    assert plan.over == "ethernet"
    assert [host.ips for host in plan.hostfile.hosts] == [(f"10.0.0.{i}",) for i in range(1, 5)]
    assert "mac0 - mac3" in plan.remarks[0]
    assert found_in("ring").plan("any").over == "thunderbolt"


def test_the_thinnest_place_of_the_ring_has_the_most_cables():
    hosts = wired(4, [*mesh(4), (0, 2), (2, 1), (1, 3), (3, 0)])
    plan = discovered(hosts).plan("thunderbolt", "ring")
    assert [host.ssh for host in plan.hostfile.hosts] == ["mac0", "mac2", "mac1", "mac3"]
    assert all(len(host.ips) == 2 for host in plan.hostfile.hosts)


def test_each_ring_host_listens_where_the_one_before_comes_in():
    found = found_in("ring")
    plan = found.plan("thunderbolt", "ring")
    ends = {}
    for cable in found.cables:
        for host, other in itertools.permutations(cable.members):
            ends.setdefault((host, other), set()).add(cable.members[host][1])
    order = [found.names.index(host.ssh) for host in plan.hostfile.hosts]
    for k, place in enumerate(order):
        assert set(plan.hostfile.hosts[k].ips) == ends[place, order[k - 1]]


def test_addresses_keep_off_networks_in_use():
    hosts = wired(2, [(0, 1)])
    hosts[1].address = "192.168.0.7"
    (cable,) = discovered(hosts).cables
    assert [address for _, address in cable.members.values()] == ["192.168.1.1", "192.168.1.2"]


def test_a_cable_seen_from_one_side_is_used_and_told():
    hosts = wired(2, [(0, 1)])
    del hosts[1].peers[1]
    plan = discovered(hosts).plan("thunderbolt", "ring")
    assert plan.cables[0].is_one_sided
    assert "one side only" in plan.remarks[0]


def test_an_unknown_socket_is_a_note_and_no_traceback():
    (said,) = [host.outputs() for host in wired(2, [(0, 1)])[:1]]
    said["networksetup"] = said["networksetup"].replace("Thunderbolt 1", "Thunderbolt X")
    survey = survey_of("a", said)
    assert "knows no interface 'Thunderbolt 1'" in survey.notes[0]
    assert len(survey.ports) == 2


def test_more_than_26_hosts_have_names_of_their_own_in_dot():
    hosts = wired(60, [(i, (i + 1) % 60) for i in range(60)])
    lines = discovered(hosts).dot("thunderbolt").splitlines()
    names = [line.split()[0] for line in lines if '[label="mac' in line]
    assert names[:2] + names[25:28] == ["a", "b", "z", "aa", "ab"]
    assert len(set(names)) == 60


def test_cables_to_hosts_that_are_not_asked_are_left_out():
    hosts = wired(3, mesh(3))
    assert len(discovered(hosts[:2]).cables) == 1


def test_what_is_saved_is_read_again(tmp_path):
    hosts = [Mac("me@b", 0), *macs(2)]
    plug(hosts[0], hosts[1])
    surveys = [host.survey(has_sudo=host is hosts[0]) for host in hosts]
    save_surveys(tmp_path, surveys)
    assert load_surveys(tmp_path) == surveys
    assert load_surveys(tmp_path, ["mac0", "me@b"]) == [surveys[1], surveys[0]]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[]", '[{"name": "a"}]', '[{"name": 1}]'])
def test_a_file_that_holds_no_surveys_is_named(tmp_path, text):
    (tmp_path / "surveys.json").write_text(text)
    with pytest.raises(ValueError, match=str(tmp_path / "surveys.json")):
        load_surveys(tmp_path)


@pytest.mark.parametrize("name", ["en0; reboot", "-x", "", "a b", "en0\n"])
def test_a_name_that_a_shell_would_read_is_left_out(name):
    answer = {
        "system": "Linux",
        "interfaces": [{"name": name, "kind": "ethernet", "is_up": True}],
        "ports": [{"interface": name, "domain": "A"}],
        "rdma": [{"name": name}],
    }
    assert read_survey("a", answer) == read_survey("a", {"system": "Linux"})


def test_every_number_of_cables_has_addresses_of_its_own():
    hosts = wired(12, mesh(12))
    found = discovered(hosts).cables
    given = [address for cable in found for _, address in cable.members.values()]
    assert len(given) == len(set(given)) == 132
    assert given[:4] == ["192.168.0.1", "192.168.0.2", "192.168.0.5", "192.168.0.6"]
    assert given[128] == "192.168.1.1"
