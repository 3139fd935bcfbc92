"""The host role: parent of the ranks of one machine, owner of their memory and channels.

It says what happens (`HostEvents`) and does as it is told; it decides nothing about the world,
so that the root can speak with it directly here, and over a socket when it is elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from phalanx.distributed import STACKS_VARIABLE
from phalanx.protocol import FrameReader, ToRank, ToSupervisor, Welcome, pack_frame

from ._any_host import HostEvents
from ._host_view import HostView
from ._oom import REASON as OUT_OF_MEMORY
from ._oom import OutOfMemory
from ._output import OutputPipe
from ._process import ChildInput, ChildOutput, ChildProcess, exit_reason
from ._shown import create_shown
from ._stack_pipe import StackPipe
from ._sweeper import Sweeper
from ._system import is_stopped

__all__ = ["HostEvents", "HostSupervisor"]

log = logging.getLogger(__name__)

STOP_GRACE_S = 0.5  # between SIGTERM and SIGKILL: enough for atexit, short enough to wait for
# A survivor that was reading a dead rank's memory as that was given back has touched pages anew.
TOUCHED_S = 0.25


# How long a rank may leave answers in its channel once that is full, which takes hundreds of them.
TAKEN_S = 1.0


# (environment, descriptors to inherit, on_exit) -> the child
_Make = Callable[[Mapping[str, str], Sequence[int], Callable[[int], None]], ChildProcess]


class _Rank:
    """One rank as its supervisor sees it: the process, the channel to it, the pipe of its stacks.

    ``pid`` is the process that speaks on the channel: the child, or one that it has started.
    """

    def __init__(self, process: ChildProcess, channel: socket.socket, stacks: StackPipe) -> None:
        self.process = process
        self.channel = channel
        self.stacks = stacks
        self.pid = process.pid
        self.reader = FrameReader()
        self.nonsense = ""  # why it was killed, if it said what cannot be understood
        self.reason = ""  # how it ended


class HostSupervisor(HostView):
    """Starts, watches, frees and ends the ranks of this host.

    Parameters
    ----------
    ranks : sequence of int
        Their numbers; a rank's slot is its place in this sequence.
    record_path : str
        A record of the runtime folder, to be removed even if this process is killed.
    addresses : sequence of str
        Those on which its ranks listen for links.
    size : int
        Number of ranks of the world; 0: those of this host.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        events: HostEvents,
        record_path: str = "",
        addresses: Sequence[str] = ("127.0.0.1",),
        size: int = 0,
    ) -> None:
        super().__init__(ranks, addresses, size)
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, _Rank] = {}
        self._serials = itertools.count(1)
        self._sweeper = Sweeper(record_path)
        self._decoder = msgspec.msgpack.Decoder(ToSupervisor)
        self._oom = OutOfMemory()
        self._is_stopping = False
        self.env: Mapping[str, str] = {}  # what its ranks get besides our own

    def spawn(self, rank: int, *, cwd: str) -> None:
        """Start the process of a rank that takes cells; `OSError` if that cannot be."""
        if rank not in self._shown:
            self._shown[rank] = create_shown()
        command = [sys.executable, "-m", "phalanx.supervisor._engine", str(os.getpid())]
        env = {**os.environ, **self.env}
        # What a kernel sets for its own plots; a rank is a kernel without a front end of its own.
        env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        with contextlib.ExitStack() as undo:
            stdout = OutputPipe()
            undo.callback(stdout.finish)
            stderr = OutputPipe()
            undo.callback(stderr.finish)
            output_fds = (stdout.read_fd, stderr.read_fd, self._shown[rank])
            self._start(
                rank,
                lambda env, fds, on_exit: ChildProcess(
                    [*command, *map(str, output_fds)],
                    env=env,
                    cwd=cwd,
                    pass_fds=(*output_fds, *fds),
                    stdout=stdout,
                    stderr=stderr,
                    on_exit=on_exit,
                ),
                env,
            )
            undo.pop_all()  # they are the child's now

    def spawn_command(
        self,
        rank: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: ChildInput,
        stdout: ChildOutput,
        stderr: ChildOutput,
    ) -> None:
        """Start a program of the user's as a rank; `OSError` if that cannot be."""
        self._start(
            rank,
            lambda env, fds, on_exit: ChildProcess(
                command,
                env=env,
                cwd=cwd,
                pass_fds=fds,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                on_exit=on_exit,
                tied=True,
            ),
            env,
        )

    def _start(self, rank: int, make: _Make, env: Mapping[str, str]) -> None:
        """Make the process of a rank, with a channel to it and this host's memory."""
        if not self._children:
            self._sweeper.start(os.environ)
        serial = next(self._serials)
        mark = self._sweeper.mark(serial)
        ours, theirs = socket.socketpair()
        stacks: StackPipe | None = None
        try:
            with theirs:
                stacks = StackPipe()
                fds = theirs.fileno(), stacks.write_fd
                said = dict(zip(("PHALANX_CHANNEL", STACKS_VARIABLE), map(str, fds), strict=True))
                process = make(
                    {**env, **mark, **said},
                    (*fds, *self.memory.fds),
                    lambda status: self._on_exit(rank, child, status),
                )
        except BaseException:
            ours.close()
            if stacks is not None:
                stacks.close()
            raise
        stacks.child_started()
        ours.setblocking(False)
        if rank in self._children:
            self.memory.vacate(self._slots[rank])
        # What comes of it is this process's, whoever has its rank by then.
        child = self._children[rank] = _Rank(process, ours, stacks)
        self._loop.add_reader(ours, self._read, rank, child)
        self._sweeper.started(process.pid, serial)
        self._oom.look(process.pid, self._loop.time())

    def pid(self, rank: int) -> int:
        """Process id of a rank; 0 if it was never started."""
        child = self._children.get(rank)
        return child.process.pid if child else 0

    def speaks(self, rank: int, pid: int) -> None:
        """Learn which process speaks for a rank: a shell may have started the program."""
        self._children[rank].pid = pid

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """Whether a rank is stopped (frozen), and else its Python stacks, as `StackPipe.dump` does."""
        if is_stopped(self.pid(rank)):
            return True, ""
        child = self._children.get(rank)
        if child is None:
            return False, None
        try:
            # The child leads a session of its own; a number may have come to somebody else.
            is_ours = os.getsid(child.pid) == child.process.pid
        except OSError:
            is_ours = False
        return False, await child.stacks.dump(child.pid) if is_ours else None

    def status(self, rank: int) -> int | None:
        """How a rank ended, as `subprocess` gives it; None while it runs."""
        return self._children[rank].process.status

    def reason(self, rank: int) -> str:
        """Say in words how a rank ended."""
        return self._children[rank].reason

    def look_at_memory(self) -> None:
        """Note what the kernel counts of processes that it killed because memory had run out."""
        for child in self._children.values():
            if child.process.status is None:
                self._oom.look(child.process.pid, self._loop.time())

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and all it started; one that is gone gets none."""
        child = self._children.get(rank)
        if child is not None:  # else it could not be started
            child.process.signal_all(number)

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """End a rank and all it started and wait until it is reaped; False if that takes longer."""
        process = self._children[rank].process
        process.kill()
        try:
            await asyncio.wait_for(process.exited.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def _read(self, rank: int, child: _Rank) -> None:
        try:
            data = child.channel.recv(1 << 16)
            bodies = child.reader.feed(data)
            messages = [self._decoder.decode(body) for body in bodies]
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            # A rank is our own process: nonsense from it means it is broken beyond talking to.
            log.warning("rank %d: its channel failed: %s", rank, error)
            data, messages = b"", []
            if isinstance(error, ValueError):
                child.nonsense = "said what its supervisor cannot understand (another phalanx?)"
            child.process.kill()
        for message in messages:
            self._events.on_message(rank, message)
        if not data:
            self._loop.remove_reader(child.channel)

    def send(self, rank: int, message: ToRank) -> None:
        """Answer a rank; nothing is lost by answering one that is gone."""
        child = self._children[rank]
        if child.nonsense:  # it is being ended
            return
        if isinstance(message, Welcome):
            message = self.complete(message)
        try:
            child.channel.settimeout(TAKEN_S)
            child.channel.sendall(pack_frame(message))
            child.channel.setblocking(False)
        except TimeoutError:  # and all others wait for us meanwhile
            child.nonsense = "did not take what its supervisor answered"
            child.process.kill()
        except OSError as error:  # the next read of the channel finds out what is wrong
            log.info("rank %d did not take an answer: %s", rank, error)
            with contextlib.suppress(OSError):  # it was closed with its rank
                child.channel.setblocking(False)

    def _on_exit(self, rank: int, child: _Rank, status: int) -> None:
        self._read(rank, child)  # its last words: what it aborted, which cell it ended
        self._loop.remove_reader(child.channel)
        child.channel.close()
        child.stacks.close()
        self._sweeper.gone(child.process.pid)
        self.memory.still(self._slots[rank])
        if not self._is_stopping:
            child.reason = child.nonsense or self._reason(child.process.pid, status)
            if rank in self._shown and child.process.tail:
                with contextlib.suppress(OSError):  # a full disk must not hide a death
                    os.write(self._shown[rank], child.process.tail.encode(errors="replace"))
            self._events.on_lost(rank, child.reason, child.process.tail)

    def _reason(self, pid: int, status: int) -> str:
        is_explained = self._oom.explains(pid, self._loop.time())
        return OUT_OF_MEMORY if status == -signal.SIGKILL and is_explained else exit_reason(status)

    def give_back(self, rank: int) -> None:
        """Return a dead rank's memory to the system; its epoch was aborted before.

        A survivor that still reads there sees zeros, and then the abort, before it believes them.
        """
        child = self._children[rank]
        slot = self._slots[rank]

        def give_back() -> None:
            if self._children[rank] is child:  # and not a replacement, which has the same slot
                self.memory.give_back(slot)

        give_back()
        self._loop.call_later(TOUCHED_S, give_back)

    def release_output(self, rank: int) -> None:
        """Leave a rank's output to its kernel, which is up now."""
        self._children[rank].process.release_output()

    async def stop(self) -> None:
        """End all ranks: SIGTERM, a moment, SIGKILL; then free their memory."""
        self._is_stopping = True
        self._sweeper.ending()
        processes = [child.process for child in self._children.values()]
        for process in processes:
            process.terminate()
        exits = [asyncio.ensure_future(process.exited.wait()) for process in processes]
        if exits:
            await asyncio.wait(exits, timeout=STOP_GRACE_S)
            for process in processes:
                process.kill()
            await asyncio.wait(exits)
        await self._sweeper.stop()
        self.memory.close()
        for fd in self._shown.values():
            os.close(fd)
        self._shown.clear()
