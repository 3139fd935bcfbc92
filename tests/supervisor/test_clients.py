"""The owner of a root that cannot see its process: that of another container."""

from __future__ import annotations

import asyncio
import os

import msgspec
from support.loops import run_jumping

import phalanx
from phalanx.protocol import BootOptions, Hello, RootAddress, WorldConfig
from phalanx.supervisor.processes.system import pid_namespace
from phalanx.supervisor.root.clients import Clients

NO_PID = (1 << 22) + 1  # Linux gives no higher number than 2**22
ELSEWHERE = pid_namespace() + 1
LINGER_S = 5.0


class Socket:
    def __init__(self):
        self.told = []

    def send_multipart(self, frames):
        self.told.append((frames[0], msgspec.msgpack.decode(frames[1])))


def hello(mode, pid, namespace=0):
    return Hello(phalanx.__version__, pid, mode, namespace)


def scene(play):
    """Run ``play(clients, socket, ended)``; ``ended`` gets what has come to an end, and when."""

    async def main():
        socket, ended, loop = Socket(), [], asyncio.get_running_loop()
        options = BootOptions(WorldConfig("test", 1), os.getpid(), b"", LINGER_S, "/")
        clients = Clients(
            options, socket, RootAddress("", b""), None,
            lambda: ended.append("owner"), lambda: ended.append("root"),
        )  # fmt: skip
        assert clients.greet(b"first", hello("own", os.getpid()))
        try:
            await play(clients, socket, ended, loop)
        finally:
            clients.close()

    run_jumping(main)


def test_an_owner_of_another_container_has_the_workspace_until_it_leaves():
    async def play(clients, socket, ended, loop):
        assert clients.greet(b"other", hello("take", NO_PID, ELSEWHERE))
        assert ended == ["owner"]  # the first one
        assert not clients.greet(b"third", hello("own", os.getpid()))
        assert "is used by a process of another pid namespace" in socket.told[-1][1]["message"]
        await asyncio.sleep(2 * LINGER_S)
        assert ended == ["owner"]
        clients.let_go(b"other")
        await asyncio.sleep(2 * LINGER_S)
        assert ended == ["owner", "owner", "root"]

    scene(play)
