"""Starting hosts' supervisors by a scheduler's job: those that are wanted at once are one job.

It knows when a job is asked for and how long it may wait; the job is `_batch_job`'s.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from phalanx.protocol import RemoteOptions

from ._batch_job import BatchHost, BatchJob
from ._host_process import HostStart, HostUnreachable

__all__ = ["launch_as_job"]

GATHER_S = 0.1  # hosts of one start come within one turn of the loop, those of a restart as well


class _Gathering:
    """Hosts that wait for others to come, to be one job together."""

    def __init__(self) -> None:
        self._wanted: list[tuple[BatchHost, bytes]] = []
        self._submitting: asyncio.Future[None] | None = None

    async def join(self, host: BatchHost, first_line: bytes, remote: RemoteOptions) -> BatchJob:
        """Wait until the job of this host is submitted."""
        host.number = len(self._wanted)
        self._wanted.append((host, first_line))
        if self._submitting is None:
            self._submitting = asyncio.ensure_future(self._submit(remote))
        await asyncio.shield(self._submitting)
        assert host.job is not None
        return host.job

    async def _submit(self, remote: RemoteOptions) -> None:
        seen = 0
        while seen < len(self._wanted) < remote.job.nodes:  # no more of them, or all there are
            seen = len(self._wanted)
            await asyncio.sleep(GATHER_S)
        wanted, self._wanted, self._submitting = self._wanted, [], None
        hosts = [host for host, _ in wanted]
        try:
            job = BatchJob(remote, hosts, [line for _, line in wanted])
        except ValueError as error:
            raise HostUnreachable(hosts[0].plan.name, str(error)) from None
        for host in hosts:
            host.job = job
        await job.submit()


# A process has one world, on one loop; its hosts know nothing of each other.
_gatherings: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering] = WeakKeyDictionary()


async def launch_as_job(asked: HostStart) -> BatchHost:
    """Start the supervisor of a node by a job, and wait until that runs.

    Raises
    ------
    HostUnreachable
        It does not; the text says why, and what to do next.
    """
    gathering = _gatherings.setdefault(asyncio.get_running_loop(), _Gathering())
    host = BatchHost(0, asked.plan, asked.on_slow)
    try:
        job = await gathering.join(host, asked.first_line, asked.remote)
        await _wait_running(host, job, asked.remote.timeout_s)
    except HostUnreachable as error:
        host.kill()
        if host.number:  # one line is enough
            raise HostUnreachable(asked.plan.name, "the same job") from None
        raise HostUnreachable(asked.plan.name, error.text) from None
    except BaseException:
        host.kill()
        raise
    return host


async def _wait_running(host: BatchHost, job: BatchJob, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    told = ""
    while job.standing.state == "waits" and not host.over.done():
        text = job.waiting
        if text != told and not host.number:
            told = text
            host.on_slow(text)
        news: set[asyncio.Future[Any]] = {job.changed, host.over}
        left_s = max(0.0, until_s - loop.time())
        await asyncio.wait(news, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if loop.time() >= until_s and not host.over.done():
            why = (
                f"{text} after {timeout_s:g} s, and was cancelled: wait longer with --boot-timeout S, "
                "or ask for less, or another --queue"
            )
            raise HostUnreachable(host.plan.name, why)
    if host.over.done():
        raise HostUnreachable(host.plan.name, host.over.result())
    if told:
        host.on_slow(f"{job} runs; its supervisors have not answered yet")
