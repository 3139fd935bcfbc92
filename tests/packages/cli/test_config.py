"""`phalanx config`: what it prints where, its exit status, and that it asks nobody when it need not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest
from hosts.discovery.macs import worlds
from support.programs.commands import make_commands
from support.programs.launching import wait_gone
from support.promise import BOUND_S, PATIENCE_S
from support.waiting import wait_until

from phalanx.cli import main
from phalanx.cli.config import command
from phalanx.cli.config.setup import CableSetup
from phalanx.errors import DistributedError
from phalanx.hosts import read_hostfile, read_hosts_text


def config(capsys, *words):
    """Return exit status, standard output and standard error."""
    try:
        status = main(["config", *map(str, words)])
    except SystemExit as leaving:
        status = leaving.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def deaf(monkeypatch):
    """No host may be asked."""

    def ask(*_args, **_options):
        pytest.fail("a host was asked")

    monkeypatch.setattr(command, "gather", ask)
    monkeypatch.setattr(CableSetup, "run", ask)


@pytest.mark.usefixtures("deaf")
class TestFromSaved:
    def test_output_is_the_hostfile_and_nothing_else(self, capsys, saved):
        status, out, err = config(capsys, "--from-saved", saved / "ring", "--env", "A=1")
        assert status == 0
        written = json.loads(out)
        assert written["backend"] == "jaccl-ring"
        assert written["envs"] == ["A=1"]
        assert [host["ssh"] for host in written["hosts"]] == ["mac0", "mac2", "mac1", "mac3"]
        assert "Setup for mac0\n==============\nsudo ifconfig bridge0 down || true\n" in err

    @pytest.mark.parametrize("option", ["--output", "--output-hostfile"])
    def test_a_hostfile_that_is_written_can_be_read(self, capsys, tmp_path, option, saved):
        path = tmp_path / "hosts.json"
        status, out, _ = config(capsys, "--from-saved", saved / "mesh", option, path)
        assert (status, out) == (0, "")
        read = read_hostfile(path)
        assert read.backend == "jaccl"
        assert read.hosts[1].rdma == ("rdma_en2", None, "rdma_en3", "rdma_en4")

    def test_dot_is_printed_and_nothing_else_done(self, capsys, tmp_path, saved):
        path = tmp_path / "hosts.json"
        status, out, err = config(
            capsys, "--from-saved", saved / "broken_ring", "--dot", "--output", path
        )
        assert (status, err) == (0, "")
        assert out.splitlines()[:3] == [
            "graph G {",
            "  node [shape=rectangle];",
            '  a [label="mac0"];',
        ]
        assert '  a -- b [label="en2/en2"]' in out
        assert not path.exists()

    def test_some_of_the_hosts_in_another_order(self, capsys, saved):
        status, out, _ = config(
            capsys, "--from-saved", saved / "mesh", "--hosts", "mac3,mac1", "--backend", "ring"
        )
        assert status == 0
        assert [h["ssh"] for h in json.loads(out)["hosts"]] == ["mac3", "mac1"]


def test_this_machine_alone(capsys, tmp_path):
    status, out, err = config(capsys, "--save", tmp_path)
    assert (status, err) == (0, "")
    (host,) = json.loads(out)["hosts"]
    assert host["ssh"] == "127.0.0.1"
    assert len(host["ips"]) == 1
    assert config(capsys, "--from-saved", tmp_path)[1] == out


def test_all_hosts_that_cannot_be_asked_are_told(capsys):
    status, out, err = config(capsys, "--hosts", "127.0.0.1,a.invalid,b.invalid")
    assert (status, out) == (1, "")
    assert "2 of 3 hosts cannot be asked" in err
    assert "a.invalid" in err
    assert "b.invalid" in err
    assert len(err.splitlines()) == 1


def test_unreachable_hosts_are_left_out_on_request(capsys):
    status, out, err = config(capsys, "--hosts", "a.invalid,127.0.0.1", "--ignore-unreachable")
    assert status == 0
    assert [host["ssh"] for host in json.loads(out)["hosts"]] == ["127.0.0.1"]
    assert "left out a.invalid" in err
    assert config(capsys, "--hosts", "a.invalid", "--ignore-unreachable")[0] == 1


def test_help_names_every_option(capsys):
    status, out, _ = config(capsys, "--help")
    assert status == 0
    for option in (
        "--hosts", "--hostfile", "--over", "--backend", "--auto-setup", "--no-auto-setup", "--dot",
        "--output", "--output-hostfile", "--env", "--ignore-unreachable", "--from-saved",
        "--save", "--verbose", "--undo-setup", "--ssh-arg",
    ):  # fmt: skip
        assert option in out


def _answered(monkeypatch, world, *, has_sudo=True):
    """Hosts that say what was saved; of sudo, if they are asked."""
    surveys = [host.survey() for host in worlds()[world]]

    def gather(*_, asks_sudo, **__):
        said = [msgspec.structs.replace(its, has_sudo=has_sudo and asks_sudo) for its in surveys]
        return dict(enumerate(said)), {}

    monkeypatch.setattr(command, "gather", gather)
    return ",".join(survey.name for survey in surveys)


def _recorded(monkeypatch, method):
    """Return the setups of which a method is called, without running it."""
    found = []

    def record(setup):
        found.append(setup)

    monkeypatch.setattr(CableSetup, method, record)
    return found


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """An ssh that writes its words down and runs the command here."""
    runs = f'echo "$*" >>{tmp_path}/said\nfor last; do :; done\nexec sh -c "$last"'
    monkeypatch.setenv("PATH", make_commands(tmp_path, ssh=runs))
    return lambda: (tmp_path / "said").read_text().splitlines()


def test_words_for_ssh_reach_every_ssh(capsys, monkeypatch, ssh):
    status, _, _ = config(capsys, "--hosts", "a.invalid", "--ssh-arg=-F 'a b'", "--ssh-arg=-4")
    assert status == 0
    assert [" -F a b -4 -oConnectTimeout" in line for line in ssh()] == [True]
    # The setup and its undoing have them as well.
    hosts, seen = _answered(monkeypatch, "no_rdma"), []

    def fail(setup):
        seen.append(setup.probes.remote.ssh_args)
        raise DistributedError

    for name in ("run", "undo"):
        monkeypatch.setattr(CableSetup, name, fail)
    config(capsys, "--hosts", hosts, "--auto-setup", "--ssh-arg=-4")
    config(capsys, "--hosts", hosts, "--undo-setup", "--ssh-arg=-4")
    assert seen == [("-4",)] * 2


def test_auto_setup_runs_what_it_shows(capsys, monkeypatch):
    hosts = _answered(monkeypatch, "no_rdma")
    ran = _recorded(monkeypatch, "run")
    status, out, err = config(capsys, "--hosts", hosts, "--auto-setup")
    assert (status, err) == (0, "")
    assert json.loads(out)["backend"] == "ring"
    (setup,) = ran
    assert not any(plan.is_local for plan in setup.probes.plans)
    assert len(setup.cables) == 3


def test_auto_setup_without_sudo_shows_the_commands_and_fails(capsys, monkeypatch):
    hosts = _answered(monkeypatch, "no_rdma", has_sudo=False)
    monkeypatch.setattr(CableSetup, "run", lambda _: pytest.fail("it was run"))
    status, out, err = config(capsys, "--hosts", hosts, "--auto-setup")
    assert status == 1
    assert json.loads(out)["backend"] == "ring"
    assert "mac0, mac1, mac2: no sudo without a password" in err
    assert "sudo ifconfig en2 inet 192.168.0.1" in err


def test_undo_setup_takes_back_and_writes_nothing(capsys, monkeypatch):
    hosts = _answered(monkeypatch, "no_rdma")
    undone = _recorded(monkeypatch, "undo")
    assert config(capsys, "--hosts", hosts, "--undo-setup") == (0, "", "")
    assert len(undone[0].cables) == 3


@pytest.mark.slow
@pytest.mark.promise
def test_ctrl_c_ends_it_at_once_and_leaves_no_ssh(tmp_path):
    path = make_commands(tmp_path, ssh=f"echo $$ >> {tmp_path}/pids\nexec sleep 300")
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", "config", "--hosts", "a.invalid,b.invalid"],
        env={**os.environ, "PATH": path},
        stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        pids = tmp_path / "pids"
        wait_until(lambda: pids.exists() and pids.read_text().count("\n") == 2, "both are asked")
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert err == "phalanx config: interrupted\n"
    assert not wait_gone(started, BOUND_S)


@pytest.mark.slow
def test_all_hosts_are_asked_over_ssh_and_their_network_found(bed, tmp_path):
    command = [sys.executable, "-m", "phalanx", "config"]
    run = bed.run(0, [*command, "--hosts", "a,b,c", "--save", tmp_path])
    hostfile = read_hosts_text(run.stdout, "it")
    assert [(its.ssh, its.ips) for its in hostfile.hosts] == [
        (host.name, (host.address,)) for host in bed.hosts
    ]
    assert (hostfile.backend, run.stderr) == ("ring", "")
    words = ["--from-saved", tmp_path, "--over", "ethernet", "--backend", "ring"]
    assert bed.run(0, [*command, *words]).stdout == run.stdout
