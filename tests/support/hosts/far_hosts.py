"""Hosts whose supervisors are tests: what such a one says over its line, and what a root is told.

There is no socket: the root's end of the line is the real one, but what carries the messages is a
queue. So a scene runs on a loop whose clock jumps, and its times are exact.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from support.ranks.loops import as_test, run_jumping
from support.waiting import wait_until_async

import phalanx
from phalanx.protocol import BootOptions, HostPlan, RemoteOptions, WorldConfig
from phalanx.protocol.host import Envelope, HostBoot, HostUp, Resend, Spawn, ToHost
from phalanx.supervisor.hosts import connection as connection_module
from phalanx.supervisor.hosts import remote_host as remote_host_module
from phalanx.supervisor.hosts.connection import HostServer, ReliableSession
from phalanx.supervisor.hosts.host_set import HostSet

OPTIONS = BootOptions(
    WorldConfig("test", 2, heartbeat_timeout_s=1.0), 0.0, "/",
    hosts=(HostPlan("b", 1), HostPlan("c", 1)),
    remote=RemoteOptions(launcher="local", timeout_s=5.0),
)  # fmt: skip


class Events:
    """What a root is told."""

    def __init__(self):
        self.lost, self.said, self.frozen, self.news, self.not_up = [], [], [], [], []
        self.commands = []

    def on_message(self, rank, message):
        self.said.append((rank, message))

    def on_lost(self, rank, reason, tail):
        self.lost.append((rank, reason))

    def on_frozen(self, rank, reason):
        self.frozen.append((rank, reason))

    def on_command(self, message):
        self.commands.append(message)

    def tell(self, message):
        self.news.append(message)

    def on_not_up(self, reasons):
        self.not_up += reasons


class Process:
    """What has started a host; the host is the test."""

    def __init__(self, line):
        self.boot = msgspec.json.decode(line, type=HostBoot)
        self.over = asyncio.get_running_loop().create_future()
        self.is_killed = False
        self.is_over = True  # as soon as it has ended
        self.looked = ""  # what a look at it finds out, once that has ended

    async def ended(self):
        return await asyncio.shield(self.over)

    async def look(self, up):
        return self.looked if self.over.done() else ""

    def kill(self):
        self.is_killed = True
        if not self.over.done():
            self.over.set_result("its supervisor was killed by signal 9 (SIGKILL)")


class Door(HostServer):
    """A root's server without a socket: what is connected are `Far` ends, by public key."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[bytes, Far] = {}

    def open(self, addresses: Any) -> tuple[str, ...]:
        self.endpoints = ("tcp://127.0.0.1:1",)
        return tuple(addresses)

    def carry(self, far: Far, bodies: tuple[bytes, ...]) -> None:
        """Bring what a host says; the socket would have read its key from the handshake."""
        asyncio.get_running_loop().call_soon(self._hear, far.boot.public_key, "127.0.0.1", bodies)

    def transmit(self, session: Any, body: bytes) -> None:
        far = self.ends.get(session.keys[0])
        if far is None:  # a ROUTER says so
            asyncio.get_running_loop().call_soon(session.fail, "")
        else:
            far.came.put_nowait(body)


class Far:
    """A host's end of the line."""

    def __init__(self, door: Door, process: Process) -> None:
        self._server, self.boot = door, process.boot
        self.session = ReliableSession(self.say_bytes)
        self.connect()

    def connect(self) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self._server.ends[self.boot.public_key] = self

    def close(self) -> None:
        """Break the connection, with what is on its way."""
        del self._server.ends[self.boot.public_key]

    def rejoin(self) -> None:
        """Come in by another connection."""
        self.connect()
        self.session.send_unreliable(Resend())

    def say(self, message: Any) -> None:
        self.session.send(message)

    def say_bytes(self, *bodies: bytes) -> None:
        if self._server.ends.get(self.boot.public_key) is self:
            self._server.carry(self, bodies)

    def come(self) -> None:
        self.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",)))

    async def hear(self, kind: type, timeout_s: float = 3.0) -> Any:
        """Return the next message of a kind."""

        async def wait() -> Any:
            while True:
                envelope = msgspec.msgpack.decode(await self.came.get(), type=Envelope[ToHost])
                if self.session.receive(envelope) and isinstance(envelope.message, kind):
                    return envelope.message

        return await asyncio.wait_for(wait(), timeout_s)


async def until(condition: Any) -> None:
    await wait_until_async(condition, "what the root is told", 5.0, 0.005)


def played(scene):
    """Run a test with two hosts, b with rank 0 and c with rank 1, that are about to come.

    It gets what it asks for of ``hosts``, which is the root's set of them, the root's ``events``,
    the ``processes`` that have started the hosts, ``visit(process)``, the host's end of the line,
    and ``far``: this end of host b, which is up.
    """
    given = ("hosts", "events", "processes", "visit", "far")
    return as_test(scene, lambda main: run_jumping(lambda: _play(main, given)), *given)


async def _play(main, given):
    asked, processes, events = inspect.signature(main).parameters, [], Events()

    async def launch(wanted):
        processes.append(Process(wanted.first_line))
        return processes[-1]

    def visit(process):
        return Far(hosts._server, process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_host_module, "launch_host", launch)
        patch.setattr(connection_module, "HostServer", Door)
        hosts = HostSet(OPTIONS, events)
        await hosts.open()

        async def start(rank):
            if not await hosts.boot_again(rank):
                hosts.take(Spawn(rank))

        booting = asyncio.gather(hosts.boot(), start(0), start(1))
        try:
            await until(lambda: len(processes) == 2)
            have = {"hosts": hosts, "events": events, "processes": processes, "visit": visit}
            if "far" in asked:
                have["far"] = visit(processes[0])
                have["far"].come()
                await have["far"].hear(Spawn)
            await main(**{name: have[name] for name in given if name in asked})
        finally:
            for process in processes:
                process.kill()
            await hosts.stop()
            with suppress(asyncio.CancelledError):
                await booting
