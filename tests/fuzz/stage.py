"""A root supervisor on a stage: its own code and memory, in a loop whose clock jumps, without processes.

Ranks are the ends of their channels, clients keep what they are told. It knows what a root starts
(ranks, the controller, the sweeper) and puts something quiet in the place of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import msgspec

from phalanx.protocol import FrameReader, pack_frame
from phalanx.supervisor.hosts import host_set, local_host
from phalanx.supervisor.hosts.local_rank import LocalRank, RankProcess
from phalanx.supervisor.root import workspace_root as workspace_root_module

_NO_PID = (1 << 22) + 1  # Linux gives no higher number than 2**22: signals to it go nowhere
CONNECTION = {"engine": {"key": "k"}, "client": {"key": "k"}, "remote": {"127.0.0.1": {"key": "k"}}}


class Actor:
    """A child process as the host supervisor knows it; its end of the channel is `sock`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        pass_fds: Sequence[int],
        stdout: Any,
        stderr: Any,
        on_exit: Callable[[int], None],
        stdin: Any = None,
        tied: bool = False,
        fork: None = None,
    ) -> None:
        self.pid = _NO_PID
        self.status: int | None = None
        self._has_ended = False
        self.exited = asyncio.Event()
        self._on_exit = on_exit
        self._input = stdin
        self._pipes = (stdout, stderr)
        for pipe in (*self._pipes, *([stdin] if stdin is not None else [])):
            pipe.child_started()
        self.sock = socket.socket(fileno=os.dup(int(env["PHALANX_CHANNEL"])))
        self.sock.setblocking(False)
        self.stacks = os.dup(int(env[local_host.STACKS_VARIABLE].split(",")[1]))

    @property
    def tail(self) -> str:
        return "".join(pipe.tail for pipe in self._pipes)

    def release_output(self) -> None:
        for pipe in self._pipes:
            pipe.release()

    def say(self, data: bytes) -> None:
        """Send bytes on the channel, as far as it takes them."""
        with contextlib.suppress(OSError):
            self.sock.send(data)

    def hear(self) -> bytes:
        with contextlib.suppress(OSError):
            return self.sock.recv(1 << 20)
        return b""

    def end(self, status: int) -> None:
        """End the process; its supervisor learns it a moment later, and all of it at once."""
        if not self._has_ended:
            self._has_ended = True
            asyncio.get_running_loop().call_soon(self._forget_child, status)

    def _forget_child(self, status: int) -> None:
        self.status = status
        self.sock.close()
        os.close(self.stacks)
        if self._input is not None:
            self._input.close()
        for pipe in self._pipes:
            pipe.finish()
        self.exited.set()
        self._on_exit(status)

    def kill(self) -> None:
        self.end(-signal.SIGKILL)

    def signal_all(self, number: signal.Signals) -> None:
        self.end(-number)

    signal_child = signal_all


class _Controller:
    def __init__(self, on_up: Callable[[Any], None], on_lost: Callable[[str, str], None]) -> None:
        self._on_up = on_up

    def start(self, cwd: str, addresses: Any, fork: Any) -> None:
        self._on_up(CONNECTION)

    async def stop(self) -> None:
        pass


class _Sweeper:
    def __init__(self, socket_path: str) -> None:
        pass

    def start(self) -> None:
        pass

    def mark(self) -> tuple[int, dict[str, str]]:
        return 0, {}

    def started(self, pid: int, serial: int) -> None:
        pass

    def gone(self, pid: int) -> None:
        pass

    def ending(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class StageClient:
    """A client as the root knows it; what clients are told is kept in ``told``."""

    pid = _NO_PID
    is_overdue = False

    def __init__(self, told: list[Any]) -> None:
        self._told = told
        self.ended = asyncio.get_running_loop().create_future()

    def tell(self, message: msgspec.Struct) -> None:
        # As it comes out at the other end.
        self._told.append(msgspec.msgpack.decode(FrameReader().feed(pack_frame(message))[0]))

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


# By rank; of the play that runs.
actors: dict[int, Actor] = {}


class _Host(local_host.LocalHost):
    """A host that tells which actor is which rank."""

    def _start(self, its: LocalRank, *args: Any, **named: Any) -> RankProcess:
        child = super()._start(its, *args, **named)
        actors[its.rank] = child.process
        return child


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """Put actors in the place of processes."""
    with (
        mock.patch.object(host_set, "LocalHost", _Host),
        mock.patch.object(local_host, "ChildProcess", Actor),
        mock.patch.object(local_host, "can_adopt", return_value=False),  # no fork server
        mock.patch.object(local_host, "Sweeper", _Sweeper),
        mock.patch.object(host_set, "Sweeper", _Sweeper),
        mock.patch.object(workspace_root_module, "ControllerProcess", _Controller),
    ):
        yield
