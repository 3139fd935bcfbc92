"""Ranks that come from a fork server: what they share, what they must not share, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import psutil
import pytest
from support.inside import root_pid
from support.waiting import wait_until, wait_until_async

from phalanx.protocol.host import RankGone, SignalRank, Spawn
from phalanx.supervisor.hosts import local_host
from phalanx.supervisor.hosts.local_host import LocalHost
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

# What each rank must have of its own, and what ps, a sweep and a signal need to find it.
OWN = """
import os, random, threading, uuid
from pathlib import Path
mark = os.environ["PHALANX_WORLD"]
{
    "numbers": (random.random(), np.random.rand(), str(uuid.uuid4()), mark),
    "mark": f"PHALANX_WORLD={mark}".encode() in Path("/proc/self/environ").read_bytes().split(b"\\0"),
    "title": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0 ").endswith(b"rank-%d" % rank),
    "rank": os.environ["PHALANX_RANK"] == os.environ["RANK"] == str(rank),
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "thread": threading.main_thread().native_id == os.getpid(),
    "stdin": os.readlink("/proc/self/fd/0") == "/dev/null",
    "parent": os.getppid(),
}
"""


def fork_server_of(root: psutil.Process) -> psutil.Process:
    (found,) = (child for child in root.children() if "fork-server" in child.cmdline())
    return found


def test_forked_ranks_are_the_roots_children_and_draw_their_own_numbers():
    with Workspace.start(3) as ws:
        said = [eval(result.value) for result in ws.run(OWN)]
    for column in zip(*(one.pop("numbers") for one in said), strict=True):
        assert len(set(column)) == 3
    parents = {one.pop("parent") for one in said}
    assert len(parents) == 1
    assert [{name for name, holds in one.items() if not holds} for one in said] == [set()] * 3


def test_the_end_of_the_fork_server_ends_no_rank_and_the_next_rank_gets_another():
    """Nor the controller, which comes from it as well."""
    with Workspace.start(2) as ws:
        root = psutil.Process(root_pid(ws))
        assert [c.cmdline()[-1].strip() for c in root.children()].count("controller") == 1
        first = fork_server_of(root)
        first.kill()
        wait_until(lambda: not first.is_running(), "its end is noticed")
        assert [result.value for result in ws.run("px.all_sum(1)")] == ["2", "2"]
        os.kill(ws.topology().ranks[1].pid, signal.SIGKILL)
        wait_until(lambda: ws.topology().ranks[1].state == "dead", "the death is known")
        ws.restart(1)
        assert [result.value for result in ws.run("px.all_sum(1)")] == ["2", "2"]
        assert fork_server_of(root).pid != first.pid


def test_a_fork_server_that_cannot_start_is_the_end_of_each_rank_that_waits(monkeypatch):
    failing = (sys.executable, "-c", "raise SystemExit('no such library')")
    monkeypatch.setattr(local_host, "_ENGINE", failing)

    async def main():
        said = []
        host = LocalHost((0, 1), said.append)
        try:
            for rank in host.ranks:
                host.take(Spawn(rank))
            await wait_until_async(lambda: len(said) == 2, "both are told")
        finally:
            await host.stop()
        return said

    how = "exited with status 1", "no such library\n"
    assert asyncio.run(main()) == [RankGone(0, 1, *how), RankGone(1, 1, *how)]


def test_a_rank_that_is_killed_before_it_is_forked_never_starts(monkeypatch):
    async def main():
        said = []
        host = LocalHost((0, 1), said.append)
        try:
            for rank in host.ranks:
                host.take(Spawn(rank))
            host.take(SignalRank(1, signal.SIGKILL))
            await wait_until_async(lambda: host.report(0).pid, "the other is forked")
            return said, host.report(1).pid
        finally:
            await host.stop()

    gone = RankGone(1, -signal.SIGKILL, "killed by signal 9 (SIGKILL)", "")
    assert asyncio.run(main()) == ([gone], 0)


def test_a_fork_server_that_does_not_answer_is_killed_and_the_next_rank_gets_another(monkeypatch):
    monkeypatch.setattr("phalanx.supervisor.processes.fork_server._ANSWER_S", 0.2)

    async def main():
        said = []
        host = LocalHost((0, 1), said.append)
        try:
            host.take(Spawn(0))
            await wait_until_async(lambda: host.report(0).pid, "one is forked")
            first = fork_server_of(psutil.Process())
            first.suspend()
            host.take(Spawn(1))
            (gone,) = said
            assert gone.reason.startswith("could not be started: the process that forks ranks")
            await wait_until_async(lambda: not first.is_running(), "it is reaped")
            host.take(Spawn(1))
            await wait_until_async(lambda: host.report(1).pid, "another forks")
        finally:
            await host.stop()

    asyncio.run(main())
