"""Start, watch and end the ranks of one machine.

`LocalHost` is the parent of the rank processes and owns their memory and channels. It takes the
messages and requests of the root and says what happens. The root calls it directly on its own
machine, and through a `HostAgent` on other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from phalanx import hosts
from phalanx.adapters import MLX_LIBRARY_VARIABLE, mlx_library
from phalanx.distributed.bootstrap.other_libraries import MASTER_VARIABLES, place_variables
from phalanx.distributed.bootstrap.stack_listener import STACKS_VARIABLE
from phalanx.protocol import (
    MOST_CONNECTIONS,
    USER_SIGNALS,
    EndRank,
    EpochAborted,
    GetOutput,
    HostInfo,
    OutputIs,
    ToRank,
    Welcome,
    WorldConfig,
)
from phalanx.protocol.host import (
    CommandInput,
    FromHost,
    GetTraces,
    GiveBack,
    HostAnswer,
    HostRequest,
    Look,
    Looked,
    OutputDone,
    RankGone,
    Refreshed,
    RunCommand,
    SampleRanks,
    SignalRank,
    Spawn,
    ToHost,
    ToRankEnvelope,
    Traces,
)
from phalanx.protocol.rank import RESTART_VARIABLES

from ..health.stack_reader import StackPipe
from ..processes.child import (
    OUT_OF_MEMORY,
    ChildProcess,
    Fork,
    OutOfMemory,
    exit_reason,
)
from ..processes.fork_server import ForkServer
from ..processes.pipes import ChildInput, ChildOutput
from ..processes.sweeper import Sweeper
from ..processes.system import THREADS_VARIABLE, can_adopt, threads_each, usable_cores
from .commands import HostCommands
from .local_rank import LocalRank, RankProcess, create_shown, read_shown
from .samples import SampleReader
from .shared_memory import HostMemory

# Between SIGTERM and SIGKILL where nobody waits for the ranks: their root or client is gone. Else the
# root has ended them before (`RankEnding`).
STOP_GRACE_S = 0.5
# Delay of a second return of a dead rank's memory. A survivor that was reading the memory during
# the first return has touched pages again.
TOUCHED_S = 0.25

# A rank's place under our names: rank and size in the world, then on its host.
_PLACE_VARIABLES = ("PHALANX_RANK", "PHALANX_SIZE", "PHALANX_LOCAL_RANK", "PHALANX_LOCAL_SIZE")

_ENGINE = (sys.executable, "-m", "phalanx.supervisor.engine.rank_main")


class LocalHost:
    """Start, watch, free and end the ranks of this host.

    A rank's slot is its place in ``ranks``. Without ``world`` these ranks are all. ``say`` gets each
    message for the root. The file ``socket_path`` is removed even if this process is killed. The
    ranks listen for links on ``addresses``; the user has named the first ``n_named`` of them, which
    are used at once, and the others are alternatives. Ranks that run cells have the variables
    ``env`` besides our own.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        say: Callable[[FromHost], None],
        *,
        socket_path: str = "",
        addresses: Sequence[str] = ("127.0.0.1",),
        n_named: int = 1,
        world: WorldConfig | None = None,
        cwd: str = "/",
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.listen_on(addresses)
        self._at_once = min(max(1, n_named), MOST_CONNECTIONS)
        self.ranks = tuple(ranks)
        self.size = len(self.ranks) if world is None else world.size
        self.memory = HostMemory(len(self.ranks), self.size)
        self._ranks = {
            rank: LocalRank(rank, slot, self.memory) for slot, rank in enumerate(self.ranks)
        }
        self._samples = SampleReader(self)
        self._say = say
        self._cwd = cwd
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._commands: HostCommands | None = None  # None if the ranks run cells
        self._sweeper = Sweeper(socket_path)
        if socket_path:  # this process may be killed before it starts a rank
            self._sweeper.start()
        self._forks: ForkServer | None = None  # of ranks that run cells
        self._to_spawn: list[int] = []  # ranks that wait for it
        self._to_call: list[Callable[[Fork | None], None]] = []  # who else waits for it
        self._oom = OutOfMemory()
        self._is_stopping = False

    @property
    def info(self) -> HostInfo:
        name, at = socket.gethostname(), self.addresses[0]
        return HostInfo(0, name, at, usable_cores(), self.device)

    def listen_on(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        # looked up once: `info` is called often
        self.device = hosts.interface_of(self.addresses[0])

    def report(self, rank: int) -> LocalRank:
        return self._ranks[rank]

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""
        return self.memory.page.reason(epoch)

    def take(self, message: ToHost) -> None:
        """Do what a message of the root says.

        Messages about the connection to the root concern the `HostAgent`.
        """
        match message:
            case ToRankEnvelope() if child := self._ranks[message.rank].child:
                child.send(self._complete(message.message))
            case EpochAborted():
                self.memory.abort(message)
            case Spawn():
                self._to_spawn.append(message.rank)
                self._spawn_all()
            case GiveBack():
                self._give_back(self._ranks[message.rank])
            case SignalRank(number=signal.SIGKILL) if message.rank in self._to_spawn:
                self._to_spawn.remove(message.rank)
                self._say(RankGone(message.rank, -9, exit_reason(-9), ""))
            case SignalRank() if child := self._ranks[message.rank].child:
                # A user signal would kill child processes without a handler.
                number = signal.Signals(message.number)
                is_alone = number in USER_SIGNALS
                (child.process.signal_child if is_alone else child.process.signal_all)(number)
            case RunCommand() | CommandInput() | OutputDone():
                if self._commands is None:
                    self._commands = HostCommands(self, self._say, self._cwd)
                self._commands.take(message)

    async def answer(self, request: HostRequest) -> HostAnswer:
        match request:
            case Look():
                child = self._ranks[request.rank].child
                return Looked(False, None) if child is None else await child.look()
            case GetOutput():
                fd = self._ranks[request.rank].shown_fd
                if fd < 0:
                    return OutputIs(b"", 0, 0, 0)
                # On another thread: counting lines in a large file must not delay the ranks.
                its = fd, request.since, request.max_lines
                return await self._loop.run_in_executor(None, read_shown, *its)
            case GetTraces():  # about 50 us per rank
                return Traces(tuple(its.trace() for its in self._ranks.values()))
            case SampleRanks():
                return self._samples.read()
            case _:
                return Refreshed()

    def clock(self) -> tuple[int, int]:
        return 0, 0

    def _complete(self, message: ToRank) -> ToRank:
        """Fill in a welcome's host fields: inherited descriptors and listening addresses."""
        if not isinstance(message, Welcome):
            return message
        return msgspec.structs.replace(
            message,
            addresses=self.addresses,
            page_fd=self.memory.page_fd,
            region_fds=self.memory.region_fds,
            wake_fds=self.memory.wake_fds,
            at_once=self._at_once,
        )

    def with_fork(self, start: Callable[[Fork | None], None]) -> None:
        """Call ``start`` with `ForkServer.fork`, after the ranks are started.

        ``start`` gets None where there is no fork server.
        """
        self._to_call.append(start)
        if not self._to_spawn:
            self._spawn_all()

    def _spawn_all(self) -> None:
        """Start the ranks that run cells, once the fork server is ready."""
        if can_adopt() and (self._forks is None or not self._forks.is_ready):
            try:
                self._forks = self._forks or self._start_forks()
            except OSError as error:
                self._refuse_all(1, f"could not be started: {error}")
            return
        while self._to_spawn and not self._is_stopping:
            rank = self._to_spawn.pop(0)
            try:
                self._spawn(rank)
            except OSError as error:
                self._say(RankGone(rank, 1, f"could not be started: {error}", ""))
        while self._to_call and not self._is_stopping:
            self._to_call.pop()(None if self._forks is None else self._forks.fork)

    def _refuse_all(self, status: int, reason: str, tail: str = "") -> None:
        """Say that the ranks which wait for the fork server have ended."""
        ranks, self._to_spawn = self._to_spawn, []
        for rank in ranks:
            self._say(RankGone(rank, status, reason, tail))

    def _start_forks(self) -> ForkServer:
        serial, mark = self._sweeper.mark()
        its = self._ranks[self.ranks[0]]
        forks = ForkServer(
            _ENGINE,
            env={**self._cell_environment(its), **mark},
            cwd=self._cwd,
            fds=self.memory.fds,
            on_ready=self._spawn_all,
            on_exit=self._on_forks_exit,
        )
        self._sweeper.started(forks.process.pid, serial)
        return forks

    def _on_forks_exit(self, status: int) -> None:
        assert self._forks is not None
        process, self._forks = self._forks.process, None  # the next spawn starts another
        self._sweeper.gone(process.pid)
        self._refuse_all(status, self._reason(status), process.tail)

    def _spawn(self, rank: int) -> None:
        """Start the process of a rank that runs cells; `OSError` on failure."""
        its = self._ranks[rank]
        if its.shown_fd < 0:
            its.shown_fd = create_shown()
        env = self._cell_environment(its)
        fork = None if self._forks is None else self._forks.fork
        with contextlib.ExitStack() as undo:
            stdout = ChildOutput()
            undo.callback(stdout.finish)
            stderr = ChildOutput()
            undo.callback(stderr.finish)
            own_fds = (stdout.read_fd, stderr.read_fd, its.shown_fd)
            command = list(map(str, own_fds))
            command = [f"rank-{rank}", *command] if fork else [*_ENGINE, str(os.getpid()), *command]
            self._start(
                its, command, env, stdout=stdout, stderr=stderr, pass_fds=own_fds, fork=fork
            )
            undo.pop_all()  # the pipes belong to the child now

    def spawn_command(
        self,
        rank: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: ChildInput | None,
        stdout: ChildOutput,
        stderr: ChildOutput,
    ) -> None:
        """Start a user's program as a rank; `OSError` on failure.

        ``env`` is added to our own environment.
        """
        its = self._ranks[rank]
        env = self._environment(its, env)
        self._start(its, command, env, stdin=stdin, stdout=stdout, stderr=stderr, tied=True)

    def _cell_environment(self, its: LocalRank) -> dict[str, str]:
        """Return the environment of a rank that runs cells."""
        env = self._environment(its, self._env)
        # An IPython kernel sets this variable for its own plots; a rank is a kernel without a front
        # end.
        env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        return env

    def _environment(self, its: LocalRank, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a rank.

        The result has our environment, the library that MLX loads as its MPI, the rank's variables
        as torchrun and JAX have them, ``given``, and the rank's variables under our names, which ``given``
        cannot change.
        """
        # Inherited variables may describe another world, e.g. if a rank of that world started this
        # one.
        others = {*MASTER_VARIABLES, *RESTART_VARIABLES}
        ours = {name: value for name, value in os.environ.items() if name not in others}
        slot, n_here = str(its.slot), str(len(self.ranks))
        place = {
            **place_variables(its.rank, self.size),
            "LOCAL_RANK": slot,
            "LOCAL_WORLD_SIZE": n_here,
        }
        values = str(its.rank), str(self.size), slot, n_here
        named = dict(zip(_PLACE_VARIABLES, values, strict=True))
        threads = threads_each(usable_cores(), len(self.ranks))
        default = {THREADS_VARIABLE: str(threads)} if threads else {}
        library = mlx_library()
        of_mlx = {} if library is None else {MLX_LIBRARY_VARIABLE: str(library)}
        return {**default, **ours, **of_mlx, **place, **given, **named}

    def _start(
        self,
        its: LocalRank,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: ChildOutput,
        stderr: ChildOutput,
        stdin: ChildInput | None = None,
        pass_fds: Sequence[int] = (),
        tied: bool = False,
        fork: Fork | None = None,
    ) -> RankProcess:
        """Start a rank's process with its channel and the host's memory."""
        serial, mark = self._sweeper.mark()
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
                process = ChildProcess(
                    command,
                    env={**env, **mark, **said},
                    cwd=self._cwd,
                    pass_fds=(*pass_fds, *fds, *(() if fork else self.memory.fds)),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    on_exit=lambda status: self._on_exit(its, child, status),
                    tied=tied,
                    fork=fork,
                )
        except BaseException:
            ours.close()
            if stacks is not None:
                stacks.close()
            raise
        stacks.child_started()
        # `_on_exit` gets this child, since a replacement may have the rank by then.
        child = RankProcess(its.rank, process, ours, stacks, self._say)
        its.begin(child)
        self._sweeper.started(process.pid, serial)
        return child

    def _on_exit(self, its: LocalRank, child: RankProcess, status: int) -> None:
        child.close()
        self._sweeper.gone(child.process.pid)
        its.end()
        if not self._is_stopping:
            reason, tail = child.nonsense or self._reason(status), child.process.tail
            if its.shown_fd >= 0 and tail:
                with contextlib.suppress(OSError):  # a full disk must not hide a rank's death
                    os.write(its.shown_fd, tail.encode(errors="replace"))
            self._say(RankGone(its.rank, status, reason, tail))

    def _reason(self, status: int) -> str:
        if status == -signal.SIGKILL and self._oom.explains():
            return OUT_OF_MEMORY
        return exit_reason(status)

    def _give_back(self, its: LocalRank) -> None:
        """Return a dead rank's memory to the system.

        The rank's epoch was aborted before. A survivor that still reads the memory sees zeros, and
        then the abort before it uses them.
        """
        child = its.child

        def give_back() -> None:
            if its.child is child:  # else a replacement uses the slot now
                self.memory.give_back(its.slot)

        give_back()
        self._loop.call_later(TOUCHED_S, give_back)

    async def stop(self) -> None:
        """End all ranks and free their memory.

        The ranks get SIGTERM, and after `STOP_GRACE_S` SIGKILL.
        """
        self._is_stopping = True
        self._sweeper.ending()
        children = [its.child for its in self._ranks.values() if its.child is not None]
        processes = [child.process for child in children]
        for child in children:
            child.send(EndRank())
        for process in processes:
            process.signal_child(signal.SIGTERM)
        exits = [asyncio.ensure_future(process.exited.wait()) for process in processes]
        if exits:
            await asyncio.wait(exits, timeout=STOP_GRACE_S)
            for process in processes:
                process.kill()
            await asyncio.wait(exits)
        if self._forks is not None:
            process = self._forks.process
            process.kill()
            await process.exited.wait()
        await self._sweeper.stop()
        self.memory.close()
        for its in self._ranks.values():
            if its.shown_fd >= 0:
                os.close(its.shown_fd)
                its.shown_fd = -1
