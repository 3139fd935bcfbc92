"""A supervisor that is refused something, or whose look fails: nothing is left open, and it goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from pathlib import Path

import pytest
from support.promise import PATIENCE_S
from support.ranks.loops import in_asyncio, run_jumping
from support.waiting import wait_until_async

from phalanx.protocol.host import RankGone, Spawn
from phalanx.supervisor.health.frozen_ranks import watch_heartbeats
from phalanx.supervisor.hosts.local_host import LocalHost
from phalanx.supervisor.processes.child import ChildProcess
from phalanx.supervisor.processes.pipes import ChildOutput
from phalanx.supervisor.tasks import poll

pytestmark = pytest.mark.slow


def say(message) -> None:
    """Tell nobody."""


def open_fds() -> set[int]:
    return {int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}


@in_asyncio
async def test_a_spawn_that_is_refused_descriptors_leaves_none_open(tmp_path):
    said = []
    host = LocalHost((0, 1), said.append, cwd=str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    host.take(Spawn(0))  # what is made once
    await wait_until_async(lambda: host.report(0).pid, "the fork server is ready")
    refused, is_up = 0, False
    try:
        while not is_up:
            # Each step of the start in turn finds no descriptor: numbers are given from below.
            before = open_fds()
            free = sorted(set(range(max(before) + 40)) - before)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[refused], limits[1]))
            said.clear()
            try:
                host.take(Spawn(1))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            is_up = not any(isinstance(its, RankGone) and its.rank == 1 for its in said)
            refused += not is_up
            # The file of what a rank shows stays for the next try.
            assert is_up or len(open_fds() - before) <= 1
    finally:
        await host.stop()
    assert refused > 5


@in_asyncio
async def test_a_stop_does_not_wait_for_what_is_over(tmp_path, caplog):
    host = LocalHost((0,), say, cwd=str(tmp_path))
    host.take(Spawn(0))
    await host.stop()
    assert caplog.text == ""


@in_asyncio
async def test_the_end_of_a_process_is_told_although_its_last_words_cannot_be_taken(
    tmp_path, caplog
):
    class Deaf(ChildOutput):
        def finish(self):
            super().finish()
            msg = "no room"
            raise OSError(msg)

    over = asyncio.get_running_loop().create_future()
    stdout, stderr = Deaf(), Deaf()
    ChildProcess(
        [sys.executable, "-c", "raise SystemExit(3)"],
        env=os.environ, cwd=str(tmp_path), pass_fds=(), stdout=stdout, stderr=stderr,
        on_exit=over.set_result,
    )  # fmt: skip
    assert await asyncio.wait_for(over, PATIENCE_S) == 3
    assert "last output of process" in caplog.text


def test_a_look_that_fails_is_told_once_and_is_not_the_last(caplog):
    looks = {"health": 0, "lookout": 0}

    def failing(what):
        def ranks():
            looks[what] += 1
            raise ValueError(what)

        return ranks

    async def main():
        host = LocalHost((0,), say)

        async def look():
            failing("lookout")()

        tasks = [
            asyncio.ensure_future(
                watch_heartbeats(host, 5.0, failing("health"), lambda rank, reason: None)
            ),
            asyncio.ensure_future(poll(0.1, "a look", look)),
        ]
        await asyncio.sleep(10.0)
        assert min(looks.values()) >= 3
        for task in tasks:
            task.cancel()
        await host.stop()

    with caplog.at_level(logging.ERROR):
        run_jumping(main)
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
