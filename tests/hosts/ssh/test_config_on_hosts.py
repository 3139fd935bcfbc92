"""`phalanx config` on hosts with networks, names and sshds of their own."""

from __future__ import annotations

import json
import sys

import pytest

from phalanx.hosts import read_hosts_text

pytestmark = pytest.mark.slow


def config(bed, *words, check=True):
    """Run it on host a."""
    return bed.run(0, [sys.executable, "-m", "phalanx", "config", *words], check=check)


def addresses(run):
    return {host["ssh"]: host["ips"] for host in json.loads(run.stdout)["hosts"]}


def test_all_hosts_are_asked_over_ssh_and_their_network_found(bed, tmp_path):
    run = config(bed, "--hosts", "a,b,c", "--save", tmp_path)
    assert addresses(run) == {host.name: [host.address] for host in bed.hosts}
    assert run.stderr == ""
    hostfile = read_hosts_text(run.stdout, "it")
    assert hostfile.backend == "ring"
    again = config(bed, "--from-saved", tmp_path, "--over", "ethernet", "--backend", "ring")
    assert again.stdout == run.stdout


def test_dot_shows_the_network(bed):
    out = config(bed, "--hosts", "a,b,c", "--over", "ethernet", "--dot").stdout
    assert '  net0 [shape=ellipse label="10.77.0.0/24"];' in out
    assert f'  b -- net0 [label="eth0 {bed.hosts[1].address}"]' in out


def test_a_host_that_cannot_be_reached_is_told_and_left_out_on_request(bed):
    bed.stop_sshd(1)
    try:
        run = config(bed, "--hosts", "a,b,c", check=False)
        assert run.returncode == 1
        assert "b: " in run.stderr
        assert "it refuses ssh at port 22: does sshd run there?" in run.stderr
        run = config(bed, "--hosts", "a,b,c", "--ignore-unreachable")
        assert list(addresses(run)) == ["a", "c"]
    finally:
        bed.restart_sshd(1)
