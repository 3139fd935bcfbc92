"""`phalanx config` on hosts with networks, names and sshds of their own."""

from __future__ import annotations

import json
import sys

import pytest

from phalanx.hosts import read_hosts_text

pytestmark = pytest.mark.slow


def config(bed, *words):
    """Run it on host a."""
    return bed.run(0, [sys.executable, "-m", "phalanx", "config", *words])


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
