"""Setting cables up: what is run, checked and undone; and how hosts that cannot be asked are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import msgspec
import pytest
from hosts.discovery.macs import wired
from support.programs.commands import make_commands
from support.promise import ROOM_S

from phalanx.cli.config.networks import Network
from phalanx.cli.config.planner import Discovery
from phalanx.cli.config.setup import CableSetup, SetupError
from phalanx.cli.config.surveys import Survey, gather
from phalanx.cli.probe import probe_main
from phalanx.cli.probe.talk import HostProbes
from phalanx.hosts import Host
from phalanx.protocol import HostPlan, RemoteOptions

# One host after the other in one log: `ssh` runs the command here, with the host's name in HOST.
_SSH = """
for word; do host=$before; before=$last; last=$word; done
HOST=$before; export HOST
exec sh -c "$last"
"""
_LOGS = 'echo "$HOST ${0##*/} $*" >>"$LOG"'


def probes_of(*names, port=0):
    """Return what asks hosts with the Python of the PATH."""
    return HostProbes([HostPlan(name, 0, (), port) for name in names], RemoteOptions("python3"))


@pytest.fixture
def far(tmp_path, monkeypatch):
    """Hosts behind a made-up ssh; `far(ifconfig="...")` says what a command does after it logs."""
    log = tmp_path / "log"
    log.touch()

    def make(**commands):
        scripts = dict.fromkeys(("ifconfig", "route", "ping", "ip"), "")
        scripts = {name: f"{_LOGS}\n{text}" for name, text in {**scripts, **commands}.items()}
        scripts["ssh"] = commands.get("ssh", _SSH)
        scripts["sudo"] = commands.get("sudo", '[ "$1" = -n ] && shift; exec "$@"')
        # The probe puts the system's folders after: ours come first.
        monkeypatch.setenv("PATH", make_commands(tmp_path / "bin", **scripts))
        monkeypatch.setenv("LOG", str(log))
        return log.read_text

    return make


def pair(say=lambda _: None, **changes):
    """Return the setup of two Macs with one cable."""
    macs = wired(2, [(0, 1)])
    surveys = [msgspec.structs.replace(mac.survey(), **changes) for mac in macs]
    cables = Discovery([Host(mac.name) for mac in macs], surveys).cables
    return CableSetup(probes_of(*(mac.name for mac in macs)), surveys, cables, say)


def _by_host(log, name):
    return [
        line.removeprefix(f"{name} ") for line in log().splitlines() if line.startswith(f"{name} ")
    ]


def test_every_command_runs_on_its_host_and_cables_are_tried(far):
    log, said = far(), []
    pair(said.append).run()
    assert _by_host(log, "mac0") == [
        "ifconfig bridge0 down",
        "ifconfig en2 inet 192.168.0.1 netmask 255.255.255.252",
        "route change 192.168.0.2 -interface en2",
        "ping -c 1 -t 3 192.168.0.2",
    ]
    assert _by_host(log, "mac1")[1] == "ifconfig en2 inet 192.168.0.2 netmask 255.255.255.252"
    assert "mac0: sudo ifconfig bridge0 down || true" in said  # shown before it is run
    assert said[-1] == "1 of 1 cables have been tried and answer"


def test_a_missing_bridge_is_no_failure_and_a_missing_route_is_added(far):
    log = far(ifconfig='[ "$1" != bridge0 ]', route='[ "$1" != change ]')
    pair().run()
    assert "route add 192.168.0.2 -interface en2" in _by_host(log, "mac0")


def test_one_failure_undoes_everything_everywhere(far):
    fails = '[ "$HOST" != mac1 ] || [ "$1" != en2 ] || { echo "no such interface" >&2; exit 1; }'
    log = far(ifconfig=fails)
    with pytest.raises(SetupError) as told:
        pair().run()
    assert "mac1: 'sudo ifconfig en2 inet 192.168.0.2" in str(told.value)
    assert "no such interface" in str(told.value)
    assert _by_host(log, "mac0")[-3:] == [
        "route delete 192.168.0.2",
        "ifconfig en2 inet 192.168.0.1 delete",
        "ifconfig bridge0 up",
    ]
    assert _by_host(log, "mac1")[-1] == "ifconfig bridge0 up"
    assert "route change 192.168.0.1 -interface en2" not in _by_host(log, "mac1")  # it had ended


def test_cables_that_do_not_answer_are_all_named(far):
    far(ping="exit 1")
    with pytest.raises(SetupError, match="no answer over mac0 en2 - mac1 en2"):
        pair().run()


def test_what_was_set_up_can_be_taken_back(far):
    log = far()
    pair().undo()
    assert _by_host(log, "mac1") == [
        "route delete 192.168.0.1",
        "ifconfig en2 inet 192.168.0.2 delete",
        "ifconfig bridge0 up",
    ]


def test_hosts_without_sudo_are_all_named_before_anything_runs(far):
    log = far()
    with pytest.raises(SetupError, match="mac0, mac1: no sudo"):
        pair(has_sudo=False).run()
    assert log() == ""


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Permission denied (publickey,password).", "ssh-copy-id b"),
        ("something else", "ssh failed: something else (try: ssh b true)"),
    ],
)
def test_why_a_host_cannot_be_asked_is_said(far, said, hint):
    far(ssh=f"echo 'banner' >&2; echo '{said}' >&2; exit 255")
    surveys, failures = gather(probes_of("b"))
    assert not surveys
    assert hint in failures[0]


def test_a_host_that_says_nothing_has_a_limit_and_holds_nobody_up(far):
    far(ssh='case "$*" in *slow*) exec sleep 600;; esac\n' + _SSH)
    surveys, failures = gather(probes_of("slow", "b"), timeout_s=ROOM_S)
    assert failures == {0: f"ssh has not got in, after {ROOM_S:g} s"}
    assert surveys[1].system == "Linux"


def test_a_talkative_login_is_not_taken_for_an_answer(far):
    far(ssh="echo Welcome; printf 'You have mail'\n" + _SSH)
    assert gather(probes_of("b"))[0][0].system == "Linux"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"system": 1}', "Expected `str`, got `int` - at `$.system`"),
        ("[]", "missing required field `system`"),
        ("{", "line 1 column 2"),
    ],
)
def test_an_answer_that_is_no_survey_is_a_failure(far, answer, said):
    far(ssh=f"echo 'phalanx-host: in'; echo '{probe_main.MARK}{answer}'; exec sleep 1")
    surveys, failures = gather(probes_of("b"))
    assert not surveys
    assert said in failures[0]


def test_a_host_without_python_is_told(far):
    far()
    probes = HostProbes([HostPlan("b", 0)], RemoteOptions("/no/python"))
    assert "there is no /no/python there: say with --python" in gather(probes)[1][0]


def test_sudo_is_asked_only_for_a_setup(far, tmp_path, monkeypatch):
    """A host may write down each use of it."""
    asked = tmp_path / "asked"
    far(sudo=f"echo >> {asked}")
    monkeypatch.setattr(probe_main.os, "geteuid", lambda: 1000)
    assert not probe_main.survey({"asks_sudo": False})["has_sudo"]
    assert not asked.exists()
    assert probe_main.survey({"asks_sudo": True})["has_sudo"]
    assert asked.exists()


def test_ssh_never_asks_and_is_given_the_port(far, tmp_path):
    far(ssh=f'echo "$*" >{tmp_path}/words; exit 255')
    gather(probes_of("me@b", port=2222))
    said = (tmp_path / "words").read_text()
    assert "BatchMode=yes" in said
    assert " -p 2222 " in said
    assert " -- me@b" in said


_REFUSED = """
import socket, sys
with socket.socket() as s:
    s.settimeout(3)
    sys.exit(s.connect_ex((sys.argv[1], 9)) not in (0, 111))
"""


@pytest.fixture
def two_hosts():
    """Two network namespaces, and a cable between them that is called as Thunderbolt's."""
    names = [f"phalanx-{os.getpid()}-{i}" for i in range(2)]

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    if shutil.which("ip") is None:
        pytest.skip("there is no ip")
    made = [ip("netns", "add", name, check=False) for name in names]
    try:
        if any(run.returncode for run in made):
            pytest.skip(f"no network namespaces here: {made[0].stderr.strip()}")
        ip("-n", names[0], "link", "add", "thunderbolt0", "type", "veth",
           "peer", "name", "thunderbolt0", "netns", names[1])  # fmt: skip
        yield names, ip
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def test_linux_cables_are_set_up_tried_and_taken_back(two_hosts, tmp_path, monkeypatch):
    names, ip = two_hosts
    ssh = (
        'for word; do last=$before; before=$word; done; exec ip netns exec "$last" sh -c "$before"'
    )
    # Machines for tests often have no ping: a port that refuses is an answer, too.
    ping = f'exec {sys.executable} -c "{_REFUSED}" "$5"'
    monkeypatch.setenv("PATH", make_commands(tmp_path / "bin", ssh=ssh, ping=ping))
    probes = probes_of(*names)
    surveys = [Survey(name, "Linux", has_sudo=True) for name in names]
    here = {0: ("thunderbolt0", "192.168.0.1")}
    cables = [Network("192.168.0.0/30", {**here, 1: ("thunderbolt0", "192.168.0.2")})]
    said = []
    CableSetup(probes, surveys, cables, said.append).run()
    assert said[-1] == "1 of 1 cables have been tried and answer"
    assert "192.168.0.2/30" in ip("-n", names[1], "addr").stdout
    nowhere = [Network("192.168.0.0/30", {**here, 1: ("lo", "192.168.0.3")})]
    with pytest.raises(SetupError, match=f"no answer over {names[0]} thunderbolt0"):
        CableSetup(probes, surveys, nowhere, lambda _: None).run()
    assert "192.168.0.3/30" in ip("-n", names[1], "addr").stdout
    CableSetup(probes, surveys, nowhere, lambda _: None).undo()
    CableSetup(probes, surveys, cables, lambda _: None).run()
    CableSetup(probes, surveys, cables, lambda _: None).undo()
    assert "192.168.0" not in ip("-n", names[1], "addr").stdout
