"""Start, watch and end the ranks of one machine.

`LocalHost` is the parent of the rank processes and owns their memory and channels. It reports
through `HostEvents` and executes commands. The root calls it directly on its own machine, and
through a `HostAgent` on other machines.
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

from phalanx import hosts
from phalanx.adapters import MLX_LIBRARY_VARIABLE, mlx_library
from phalanx.distributed import (
    MASTER_VARIABLES,
    RESTART_VARIABLES,
    STACKS_VARIABLE,
    place_variables,
)
from phalanx.protocol import (
    END_ASKED,
    MOST_CONNECTIONS,
    USER_SIGNALS,
    Activity,
    Complete,
    FrameReader,
    HostClock,
    HostInfo,
    Inspect,
    RankAnswer,
    ToRank,
    ToSupervisor,
    Welcome,
    WorldConfig,
    pack_frame,
)

from ..health.stacks import StackPipe
from ..processes.child import (
    OUT_OF_MEMORY,
    ChildInput,
    ChildOutput,
    ChildProcess,
    OutOfMemory,
    OutputPipe,
    exit_reason,
)
from ..processes.sweeper import Sweeper
from ..processes.system import THREADS_VARIABLE, is_stopped, rss_nbytes, threads_each, usable_cores
from .interface import HostEvents, Layout, Piece, create_shown, read_shown
from .shared_memory import HostMemory

log = logging.getLogger(__name__)

# Between SIGTERM and SIGKILL where nobody waits for the ranks: their root or client is gone. Else the
# root has ended them before (`RankEnding`).
STOP_GRACE_S = 0.5
# Delay of a second return of a dead rank's memory. A survivor that was reading the memory during
# the first return has touched pages again.
TOUCHED_S = 0.25

# A rank with more unread messages than this takes none. A correct rank waits for one answer at a
# time, and the largest (the shares of 1000 ranks) has about 0.5 MB.
MOST_UNSENT_NBYTES = 1 << 20

# A rank's place under our names: rank and size in the world, then on its host.
_PLACE_VARIABLES = ("PHALANX_RANK", "PHALANX_SIZE", "PHALANX_LOCAL_RANK", "PHALANX_LOCAL_SIZE")

# (environment, descriptors to inherit, on_exit) -> the child
_Make = Callable[[Mapping[str, str], Sequence[int], Callable[[int], None]], ChildProcess]


class _Rank:
    """Process of one rank, its channel and its stack pipe.

    ``pid`` is the process that speaks on the channel: the child or one of its descendants.
    """

    def __init__(self, process: ChildProcess, channel: socket.socket, stacks: StackPipe) -> None:
        self.process = process
        self.channel = channel
        self.stacks = stacks
        self.pid = process.pid
        self.reader = FrameReader()
        self.unsent = bytearray()  # waits until the channel takes more
        self.end_fd = -1  # writing end of the pipe that asks the rank to end by a byte
        self.nonsense = ""  # why the process was killed, if it broke the protocol
        self.reason = ""  # how the process ended


class LocalHost:
    """Start, watch, free and end the ranks of this host.

    Parameters
    ----------
    ranks : sequence of int
        Numbers of the ranks. A rank's slot is its place in this sequence.
    events : HostEvents
        Callbacks to the root.
    record_path : str
        A record of the runtime folder, to be removed even if this process is killed.
    addresses : sequence of str
        Addresses on which the ranks listen for links.
    world : WorldConfig, optional
        Options of the world; None: the ranks of this host are all.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        events: HostEvents,
        record_path: str = "",
        addresses: Sequence[str] = ("127.0.0.1",),
        world: WorldConfig | None = None,
    ) -> None:
        self.listen_on(addresses)
        self._at_once = 1
        self.ranks = tuple(ranks)
        self.size = len(self.ranks) if world is None else world.size
        self.memory = HostMemory(len(self.ranks), self.size)
        self._slots = {rank: slot for slot, rank in enumerate(self.ranks)}
        # descriptors of the ranks' output files, kept for replacements
        self._shown: dict[int, int] = {}
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, _Rank] = {}
        self._serials = itertools.count(1)
        self._sweeper = Sweeper(record_path)
        if record_path:  # this process may be killed before it starts a rank
            self._sweeper.start(os.environ)
        self._decoder = msgspec.msgpack.Decoder(ToSupervisor)
        self._oom = OutOfMemory()
        self._is_stopping = False
        self.env: Mapping[str, str] = {}  # environment variables of the ranks besides our own

    @property
    def layout(self) -> Layout:
        """Return the layout with all ranks on this machine."""
        return Layout.of_one(len(self.ranks))

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """Return this machine, for display."""
        name, at = socket.gethostname(), self.addresses[0]
        return (HostInfo(0, name, at, usable_cores(), self.device),)

    def listen_on(self, addresses: Sequence[str]) -> None:
        """Set the addresses on which ranks listen for links."""
        self.addresses = tuple(addresses)
        # looked up once: `infos` is called often
        self.device = hosts.interface_of(self.addresses[0])

    def use(self, n_named: int) -> None:
        """Set how many addresses ranks use at once.

        ``n_named`` addresses were named by the user and are used together. Further addresses are
        alternatives.
        """
        self._at_once = min(max(1, n_named), MOST_CONNECTIONS)

    def complete(self, welcome: Welcome) -> Welcome:
        """Fill in a welcome's host fields: inherited descriptors and listening addresses."""
        return msgspec.structs.replace(
            welcome,
            addresses=self.addresses,
            page_fd=self.memory.page_fd,
            region_fds=self.memory.region_fds,
            wake_fds=self.memory.wake_fds,
            at_once=self._at_once,
        )

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank that waits in ``epoch``, without the ranks' help."""
        self.memory.abort(epoch, kind, culprit, message)

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""
        return self.memory.reason(epoch)

    def activity(self, rank: int) -> Activity:
        """Return which operations a rank is in."""
        return self.memory.activity(self._slots[rank])

    def is_stuck(self, rank: int) -> bool:
        """Whether a rank's user code has waited 50 ms in one operation."""
        return self.memory.wait(self._slots[rank]) is not None

    def doing(self, rank: int) -> str:
        """Describe a rank's operation; "" for none.

        If the rank waits, the text has the place in the user's code.
        """
        return self.memory.doing(self._slots[rank])

    def beats(self, rank: int) -> int:
        """Return the count of a rank's heartbeats; 0 if it has none."""
        return self.memory.beats(self._slots[rank])

    def traces_here(self) -> tuple[tuple[bytes, int], ...]:
        """Return the flight recorder and number of lost records of each slot.

        Reading takes about 50 us per rank.
        """
        return tuple(self.memory.trace(slot) for slot in range(len(self.ranks)))

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """Return the clocks of all hosts, and `traces_here` by rank."""
        return (HostClock(socket.gethostname(), 0, 0),), self.traces_here()

    def shown_nbytes(self, rank: int) -> int:
        """Return how many bytes of output a rank has shown so far."""
        return os.fstat(self._shown[rank]).st_size if rank in self._shown else 0

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """Read a rank's output with `read_shown`; None for unknown ranks."""
        fd = self._shown.get(rank)
        if fd is None:
            return None
        # On another thread: counting lines in a large file must not delay the ranks.
        return await asyncio.get_running_loop().run_in_executor(
            None, read_shown, fd, since, max_lines
        )

    def rss_nbytes(self, rank: int) -> int:
        """Return a rank's memory in use, in bytes; 0 without a process."""
        return rss_nbytes(self.pid(rank))

    def watch(self, *, is_on: bool) -> None:
        """Do nothing: values of local ranks are always current."""

    async def refresh(self) -> bool:
        """Return True: values of local ranks are always current."""
        return True

    def spawn(self, rank: int, *, cwd: str) -> None:
        """Start the process of a rank that runs cells; `OSError` on failure."""
        if rank not in self._shown:
            self._shown[rank] = create_shown()
        command = [sys.executable, "-m", "phalanx.supervisor.engine.main", str(os.getpid())]
        env = self._environment(rank, self.env)
        # An IPython kernel sets this variable for its own plots; a rank is a kernel without a front
        # end.
        env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as once_started:
            end_fd, ask_fd = os.pipe()
            once_started.callback(os.close, end_fd)
            undo.callback(os.close, ask_fd)
            stdout = OutputPipe()
            undo.callback(stdout.finish)
            stderr = OutputPipe()
            undo.callback(stderr.finish)
            own_fds = (stdout.read_fd, stderr.read_fd, self._shown[rank], end_fd)
            self._start(
                rank,
                lambda env, fds, on_exit: ChildProcess(
                    [*command, *map(str, own_fds)],
                    env=env,
                    cwd=cwd,
                    pass_fds=(*own_fds, *fds),
                    stdout=stdout,
                    stderr=stderr,
                    on_exit=on_exit,
                ),
                env,
            )
            self._children[rank].end_fd = ask_fd
            undo.pop_all()  # the pipes belong to the child now

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
        """Start a user's program as a rank; `OSError` on failure.

        ``env`` is added to our own environment.
        """
        env = self._environment(rank, env)
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

    def _environment(self, rank: int, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a rank.

        The result has our environment, the library that MLX loads as its MPI, the rank's variables
        as torchrun and JAX have them, ``given``, and the rank's variables under our names, which ``given``
        cannot change.
        """
        # Inherited variables may describe another world, e.g. if a rank of that world started this
        # one.
        others = {*MASTER_VARIABLES, *RESTART_VARIABLES}
        ours = {name: value for name, value in os.environ.items() if name not in others}
        slot, n_here = str(self._slots[rank]), str(len(self.ranks))
        place = {
            **place_variables(rank, self.size),
            "LOCAL_RANK": slot,
            "LOCAL_WORLD_SIZE": n_here,
        }
        values = str(rank), str(self.size), slot, n_here
        named = dict(zip(_PLACE_VARIABLES, values, strict=True))
        threads = threads_each(usable_cores(), len(self.ranks))
        default = {THREADS_VARIABLE: str(threads)} if threads else {}
        library = mlx_library()
        of_mlx = {} if library is None else {MLX_LIBRARY_VARIABLE: str(library)}
        return {**default, **ours, **of_mlx, **place, **given, **named}

    def _start(self, rank: int, make: _Make, env: Mapping[str, str]) -> None:
        """Start a rank's process with its channel and the host's memory."""
        if not self._sweeper.has_started:
            self._sweeper.start(os.environ)
        serial = next(self._serials)
        mark = self._sweeper.mark(serial)
        ours, theirs = socket.socketpair()
        stacks: StackPipe | None = None
        try:
            with theirs:
                stacks = StackPipe()
                fds = theirs.fileno(), *stacks.rank_fds
                said = {
                    "PHALANX_CHANNEL": str(theirs.fileno()),
                    STACKS_VARIABLE: ",".join(map(str, stacks.rank_fds)),
                }
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
        # `_read` and `_on_exit` get this child, since a replacement may have the rank by then.
        child = self._children[rank] = _Rank(process, ours, stacks)
        self._loop.add_reader(ours, self._read, rank, child)
        self._sweeper.started(process.pid, serial)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank; 0 if never started."""
        child = self._children.get(rank)
        return child.process.pid if child else 0

    def speaks(self, rank: int, pid: int) -> None:
        """Record the pid of the process that joined as a rank.

        It may be a child of the started process: a shell may have started the program.
        """
        self._children[rank].pid = pid

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """Return whether a rank is stopped (frozen), and its Python stacks.

        The stacks are as `StackPipe.dump` returns them; "" for a stopped rank.
        """
        if is_stopped(self.pid(rank)):
            return True, ""
        child = self._children.get(rank)
        if child is None:
            return False, None
        try:
            # The child leads its own session. If ``getsid`` differs, the pid was reused by another
            # process.
            is_ours = os.getsid(child.pid) == child.process.pid
        except OSError:
            is_ours = False
        return False, await child.stacks.dump(child.pid) if is_ours else None

    def status(self, rank: int) -> int | None:
        """Return the exit status of a rank; None while it runs.

        The status is as `subprocess` gives it: -N for signal N.
        """
        return self._children[rank].process.status

    def reason(self, rank: int) -> str:
        """Return a text about how a rank ended."""
        return self._children[rank].reason

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and its process group.

        One of `USER_SIGNALS` goes to the rank only: it would kill child processes without a
        handler. The call does nothing if the rank is gone.
        """
        child = self._children.get(rank)
        if child is None:  # the rank could not be started
            return
        if number in USER_SIGNALS:
            child.process.signal_child(number)
        else:
            child.process.signal_all(number)

    def end(self, rank: int) -> None:
        """Ask a rank to interrupt its cell and to end.

        The request does not depend on signals, for which cells may have their own handlers.
        """
        child = self._children.get(rank)
        if child is not None and child.end_fd >= 0:
            with contextlib.suppress(BrokenPipeError):  # the rank has just ended
                os.write(child.end_fd, END_ASKED)
            os.close(child.end_fd)
            child.end_fd = -1

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """Kill a rank and its process group; wait until it is reaped.

        Returns False if this takes longer than ``timeout_s``.
        """
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
            # A rank runs our own code, so an invalid message means that the process is broken.
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
        """Send a message to a rank; dropped if the rank is gone."""
        child = self._children[rank]
        if child.nonsense or child.channel.fileno() < 0:  # the rank is being killed, or has ended
            return
        # A stopped rank asks for nothing, so its messages cannot become more and more. A rank that
        # cannot run its control thread takes no orders for a while, and needs no old questions then.
        is_full = len(child.unsent) > MOST_UNSENT_NBYTES
        if is_full and isinstance(message, Complete | Inspect):
            return
        if is_full and isinstance(message, RankAnswer) and not is_stopped(child.pid):
            child.nonsense = "did not take what its supervisor answered"
            child.process.kill()
            return
        if isinstance(message, Welcome):
            message = self.complete(message)
        child.unsent += pack_frame(message)
        self._write(rank, child)

    def _write(self, rank: int, child: _Rank) -> None:
        """Send what the rank's channel takes now; the rest follows."""
        try:
            while child.unsent:
                del child.unsent[: child.channel.send(child.unsent)]
        except BlockingIOError:
            self._loop.add_writer(child.channel, self._write, rank, child)
            return
        except OSError as error:  # the next read of the channel finds the cause
            log.info("rank %d did not take an answer: %s", rank, error)
            child.unsent.clear()
        self._loop.remove_writer(child.channel)

    def _on_exit(self, rank: int, child: _Rank, status: int) -> None:
        self._read(rank, child)  # last messages: aborted epochs, ended cells
        self._loop.remove_reader(child.channel)
        self._loop.remove_writer(child.channel)
        child.channel.close()
        child.stacks.close()
        if child.end_fd >= 0:
            os.close(child.end_fd)
            child.end_fd = -1
        self._sweeper.gone(child.process.pid)
        self.memory.mark_slot_dead(self._slots[rank])
        if not self._is_stopping:
            child.reason = child.nonsense or self._reason(status)
            if rank in self._shown and child.process.tail:
                with contextlib.suppress(OSError):  # a full disk must not hide a rank's death
                    os.write(self._shown[rank], child.process.tail.encode(errors="replace"))
            self._events.on_lost(rank, child.reason, child.process.tail)

    def _reason(self, status: int) -> str:
        if status == -signal.SIGKILL and self._oom.explains():
            return OUT_OF_MEMORY
        return exit_reason(status)

    def give_back(self, rank: int) -> None:
        """Return a dead rank's memory to the system.

        The rank's epoch was aborted before. A survivor that still reads the memory sees zeros, and
        then the abort before it uses them.
        """
        child = self._children[rank]
        slot = self._slots[rank]

        def give_back() -> None:
            if self._children[rank] is child:  # else a replacement uses the slot now
                self.memory.give_back(slot)

        give_back()
        self._loop.call_later(TOUCHED_S, give_back)

    def release_output(self, rank: int) -> None:
        """Leave a rank's output to its kernel, which is up now."""
        self._children[rank].process.release_output()

    async def stop(self) -> None:
        """End all ranks and free their memory.

        The ranks get SIGTERM, and after `STOP_GRACE_S` SIGKILL.
        """
        self._is_stopping = True
        self._sweeper.ending()
        processes = [child.process for child in self._children.values()]
        for rank in self._children:
            self.end(rank)
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
