"""Hosts whose supervisors are tests: what such a one says over its line, and what a root is told."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import zmq
import zmq.asyncio

import phalanx
from phalanx.protocol import BootOptions, HostPlan, RemoteOptions
from phalanx.protocol.host_letters import ToHostLetter
from phalanx.protocol.hosts import HostBoot, HostUp, Rejoin
from phalanx.supervisor import _host_line
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


class Far:
    """A host's end of the line, over a real socket."""

    def __init__(self, context, process, *, keys=None):
        self.context, self.boot = context, process.boot
        self.keys = keys or (self.boot.public_key, self.boot.secret_key)
        self.letters = Letters()
        self.turn = 0
        self.connect()

    def connect(self):
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_serverkey = self.boot.root_key
        self.socket.curve_publickey, self.socket.curve_secretkey = self.keys
        self.socket.connect(self.boot.endpoints[0])

    def close(self):
        self.socket.close()

    def rejoin(self):
        """Come in by another connection."""
        self.close()
        self.connect()
        self.turn += 1
        self.say_bytes(self.letters.note(Rejoin(self.turn)))

    def say(self, message):
        self.say_bytes(self.letters.write(message))

    def say_bytes(self, *bodies):
        self.socket.send_multipart(bodies)

    def come(self):
        self.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",)))

    async def hear(self, kind, timeout_s=3.0):
        """Return the next message of a kind."""

        async def wait():
            while True:
                (body,) = await self.socket.recv_multipart()
                letter = msgspec.msgpack.decode(body, type=ToHostLetter)
                if self.letters.read(letter) and isinstance(letter.message, kind):
                    return letter.message

        return await asyncio.wait_for(wait(), timeout_s)


async def until(condition, timeout_s=5.0):
    async def wait():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), timeout_s)


def play(monkeypatch, scene):
    """Run a scene with two hosts, b with rank 0 and c with rank 1, that are about to come."""
    processes = []

    async def launch(wanted):
        processes.append(Process(wanted.first_line))
        return processes[-1]

    monkeypatch.setattr(_host_line, "launch_host", launch)

    async def main():
        events = Events()
        hosts = Hosts(OPTIONS, events)
        try:
            hosts.spawn(0)
            hosts.spawn(1)
            await until(lambda: len(processes) == 2)
            with zmq.asyncio.Context() as context, contextlib.ExitStack() as undo:

                def visit(process, **options):
                    far = Far(context, process, **options)
                    undo.callback(far.close)
                    return far

                await scene(hosts, events, visit, processes)
        finally:
            for process in processes:
                process.kill()
            await hosts.stop()

    asyncio.run(main())
