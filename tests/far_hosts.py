"""Hosts whose supervisors are tests: what such a one says over its line, and what a root is told.

There is no socket: the root's end of the line is the real one, but what carries the messages is a
queue. So a scene runs on a loop whose clock jumps, and its times are exact.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from support.loops import run_jumping
from support.waiting import wait_until_async

import phalanx
from phalanx.protocol import BootOptions, HostPlan, RemoteOptions
from phalanx.protocol.host_letters import ToHostLetter
from phalanx.protocol.hosts import HostBoot, HostUp, Rejoin
from phalanx.supervisor import _host_door, _host_line
from phalanx.supervisor._host_door import HostDoor
from phalanx.supervisor._hosts import Hosts
from phalanx.supervisor._letters import Letters

__all__ = ["OPTIONS", "Events", "play", "until"]

OPTIONS = BootOptions(
    "test", 2, 0, b"", "any", 0.0, 1.0, "/",
    hosts=(HostPlan("b", 1), HostPlan("c", 1)),
    remote=RemoteOptions(launcher="local", timeout_s=5.0),
)  # fmt: skip


class Events:
    """What a root is told."""

    def __init__(self):
        self.lost, self.said, self.frozen, self.news, self.not_up = [], [], [], [], []

    def on_message(self, rank, message):
        self.said.append((rank, message))

    def on_lost(self, rank, reason, tail):
        self.lost.append((rank, reason))

    def on_frozen(self, rank, reason):
        self.frozen.append((rank, reason))

    def on_news(self, message):
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

    async def ended(self):
        return await asyncio.shield(self.over)

    def look(self):
        pass

    def farewell(self):
        pass

    def kill(self):
        self.is_killed = True
        if not self.over.done():
            self.over.set_result("its supervisor was killed by signal 9 (SIGKILL)")


class Door(HostDoor):
    """A root's door without a socket: connections are `Far` ends, which it knows by identity."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[bytes, Far] = {}

    def open(self, addresses: Any) -> tuple[str, ...]:
        self.endpoints = ("tcp://127.0.0.1:1",)
        return tuple(addresses)

    def connect(self, far: Far) -> bytes:
        identity = b"connection %d" % len(self._ends)
        self._ends[identity] = far
        return identity

    def carry(self, far: Far, identity: bytes, bodies: tuple[bytes, ...]) -> None:
        """Bring what a host says; the socket would have read its key from the handshake."""
        asyncio.get_running_loop().call_soon(
            self._hear, far.boot.public_key, identity, "127.0.0.1", bodies
        )

    def _send(self, visitor: Any, identity: bytes, body: bytes) -> None:
        if not identity:
            return
        far = self._ends[identity]
        if identity == far.identity:
            far.came.put_nowait(body)
        elif identity == visitor.identity:  # a ROUTER says so of a connection that has broken
            visitor.identity = b""
            asyncio.get_running_loop().call_soon(visitor.fail, "")


class Far:
    """A host's end of the line."""

    def __init__(self, door: Door, process: Process) -> None:
        self._door, self.boot = door, process.boot
        self.letters = Letters()
        self.turn = 0
        self.connect()

    def connect(self) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.identity = self._door.connect(self)

    def close(self) -> None:
        """Break the connection, with what is on its way."""
        self.identity = b""

    def rejoin(self) -> None:
        """Come in by another connection."""
        self.close()
        self.connect()
        self.turn += 1
        self.say_bytes(self.letters.note(Rejoin(self.turn)))

    def rejoin_late(self, identity: bytes) -> None:
        """Say on the connection before this one, as if it came only now, that it is the newest."""
        self._door.carry(self, identity, (self.letters.note(Rejoin(self.turn - 1)),))

    def say(self, message: Any) -> None:
        self.say_bytes(self.letters.write(message))

    def say_bytes(self, *bodies: bytes) -> None:
        self._door.carry(self, self.identity, bodies)

    def come(self) -> None:
        self.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",)))

    async def hear(self, kind: type, timeout_s: float = 3.0) -> Any:
        """Return the next message of a kind."""

        async def wait() -> Any:
            while True:
                letter = msgspec.msgpack.decode(await self.came.get(), type=ToHostLetter)
                if self.letters.read(letter) and isinstance(letter.message, kind):
                    return letter.message

        return await asyncio.wait_for(wait(), timeout_s)


async def until(condition: Any) -> None:
    await wait_until_async(condition, "what the root is told", 5.0, 0.005)


def play(monkeypatch, scene):
    """Run a scene with two hosts, b with rank 0 and c with rank 1, that are about to come."""
    processes = []

    async def launch(wanted):
        processes.append(Process(wanted.first_line))
        return processes[-1]

    monkeypatch.setattr(_host_line, "launch_host", launch)
    monkeypatch.setattr(_host_door, "HostDoor", Door)

    async def main():
        events = Events()
        hosts = Hosts(OPTIONS, events)
        try:
            hosts.spawn(0)
            hosts.spawn(1)
            await until(lambda: len(processes) == 2)
            await scene(hosts, events, lambda process: Far(hosts._door, process), processes)
        finally:
            for process in processes:
                process.kill()
            await hosts.stop()

    run_jumping(main)
