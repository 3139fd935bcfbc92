"""Worlds of two hosts: the second one's supervisor is a process of its own on this machine."""

from __future__ import annotations

import psutil
import pytest
from processes import wait_gone

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.workspace import Workspace

BOUND_S = 2.0  # design.md section 5: on one machine
HOSTS = (HostPlan("a", 2, is_local=True), HostPlan("me@b", 2))
LOCAL = RemoteOptions(launcher="local")


def start(**options):
    return Workspace.start(**{"hosts": HOSTS, "remote": LOCAL, "linger": 0, **options})


def family_of(ws) -> list[psutil.Process]:
    """All that a workspace has started, on all its hosts."""
    root = psutil.Process(ws._root.pid)
    return [root, *root.children(recursive=True)]


@pytest.fixture(scope="module")
def ws():
    with start() as workspace:
        yield workspace


def test_ranks_are_numbered_by_host_and_meet(ws):
    values = [result.value for result in ws.run("(rank, size, px.all_sum(rank + 1))")]
    assert values == [f"({rank}, 4, 10)" for rank in range(4)]
    topology = ws.topology()
    assert [info.host for info in topology.ranks] == [0, 0, 1, 1]
    assert topology.hosts[1].name == "b"
    assert topology.hosts[1].address == "127.0.0.1"
    assert topology.hosts[1].cores > 0
    assert all(info.pid > 0 and info.rss_nbytes > 1 << 20 for info in topology.ranks)
    assert [link.transport for link in topology.links] == ["arena", *["tcp"] * 4, "arena"]


def test_ranks_of_the_other_host_have_a_supervisor_there(ws):
    pids = [info.pid for info in ws.topology().ranks]
    parents = [psutil.Process(pid).ppid() for pid in pids]
    assert parents[0] == parents[1] == ws._root.pid
    assert parents[2] == parents[3] != ws._root.pid
    assert "phalanx.supervisor host" in " ".join(psutil.Process(parents[2]).cmdline())


def test_stop_leaves_nothing():
    progress = []
    ws = start(progress=progress.append)
    family = family_of(ws)
    ws.stop()
    assert wait_gone(family, BOUND_S) == []
    assert len(family) > 8
    assert [(its.host, its.name, its.state) for its in progress] == [
        (1, "b", "starting"),
        (1, "b", "up"),
    ]
