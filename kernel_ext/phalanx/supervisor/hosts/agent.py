"""Supervise one host of a world for a root on another machine.

If the root is silent for ``heartbeat_timeout_s``, the agent aborts the epoch so that waiting ranks
return, and ends them after ``linger_s`` more. It ends them at once if the root is known to be gone.

An error here is one line on the standard error. The process that started the agent shows the line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

import phalanx
from phalanx.distributed.bootstrap.other_libraries import free_port
from phalanx.distributed.control import AbortKind
from phalanx.errors import DistributedError
from phalanx.hosts import interface_addresses
from phalanx.protocol import EpochAborted, Welcome
from phalanx.protocol.host import (
    AskHost,
    CommandRuns,
    FromHost,
    FromRankEnvelope,
    HostAnswered,
    HostBoot,
    HostLeaving,
    HostPing,
    HostPong,
    HostReport,
    HostUp,
    RankFrozen,
    RankGone,
    RankReport,
    ReconnectAck,
    Refresh,
    Spawn,
    StopHost,
    ToHost,
    ToRankEnvelope,
    WatchRanks,
)
from phalanx.protocol.os_text import decode_options

from ..health.frozen_ranks import SilenceTimer, watch_heartbeats
from ..launchers.remote_command import BEGUN
from ..processes.system import (
    allow_descriptors,
    leave,
    save_address_space,
    stripe_sockets,
    usable_cores,
)
from ..tasks import TaskSet
from .addresses import PathDiagnosis, reach
from .connection import RootConnection
from .host_set import versions_here
from .local_host import LocalHost

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.05  # same as a root's poll of local ranks while a cell runs
SILENCE_LOOK_S = 0.2
FIRST_WORD_S = 10.0  # time limit for the root's first message, which usually takes milliseconds
REACH_S = 3.0  # for one of the root's addresses: a tcp handshake and one retransmission
# Prefixes of the variables that mpirun sets for its processes, and the variables that show that
# mpirun started this one.
_OF_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")

_IN_MPI = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


class RankReporter:
    """Make reports on the ranks of one host, with changes only.

    ``epoch`` is the newest epoch that the root announced to the ranks.
    """

    def __init__(self, host: LocalHost) -> None:
        self.epoch = 0
        self._host = host
        self._said: dict[int, RankReport] = {}
        self._aborted: EpochAborted | None = None

    def delta(self, ranks: Iterable[int], *, with_memory: bool = False) -> HostReport | None:
        """Report those of ``ranks`` that have changed; None if nothing changed.

        ``with_memory``: also measure each rank's memory, and count a difference in values that
        change all the time (memory in use, number of polls of a waiting rank) as a change.
        """
        changed = []
        for rank in ranks:
            before = self._said.get(rank)
            now = self._look(rank, 0 if before is None else before.rss_nbytes, with_memory)
            is_new = before is None or (now != before if with_memory else not _is_like(now, before))
            if is_new:
                self._said[rank] = now
                changed.append(now)
        reason = self._host.abort_reason(self.epoch) if self.epoch else None
        aborted = None if reason is None else EpochAborted(self.epoch, *reason)
        if not changed and aborted == self._aborted:
            return None
        self._aborted = aborted
        return HostReport(tuple(changed), aborted)

    def _look(self, rank: int, rss_nbytes: int, with_memory: bool) -> RankReport:
        its = self._host.report(rank)
        if with_memory:
            rss_nbytes = its.rss_nbytes
        return RankReport(rank, its.pid, its.activity, its.doing, rss_nbytes, its.shown_nbytes)


def _is_like(one: RankReport, other: RankReport) -> bool:
    """Whether two reports differ only in values that change all the time."""
    same_but_activity = msgspec.structs.replace(one, activity=other.activity) == other
    return same_but_activity and one.activity.is_like(other.activity)


class HostAgent:
    """Supervisor of one host, until the root stops it or is lost.

    The ranks listen for links on ``addresses`` and start in the folder ``cwd``.
    """

    def __init__(
        self, boot: HostBoot, root: RootConnection, addresses: tuple[str, ...], cwd: str
    ) -> None:
        self._boot = boot
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._host = LocalHost(
            boot.ranks,
            self._hear_host,
            addresses=addresses,
            n_named=len(boot.addresses),
            world=boot.world,
            cwd=cwd,
            env=boot.env,
        )
        self._reports = RankReporter(self._host)
        self._say = root.send
        self._silence = SilenceTimer(boot.world.heartbeat_timeout_s, self._loop.time())
        self._way: PathDiagnosis | None = None  # path to the root, while the root is silent
        self._asking: asyncio.Task[None] | None = None  # running ``_way.ask``
        self._clock: asyncio.TimerHandle | None = None
        self._watching = asyncio.Event()
        self._has_received = False
        self._tasks = TaskSet(self._on_task_failed)
        self.problem = ""  # why the agent could not serve, or stopped

    async def run(self) -> None:
        """Serve until `end` is called; then end the ranks."""
        limit_s = self._boot.world.heartbeat_timeout_s
        health = watch_heartbeats(
            self._host, limit_s, lambda: self._host.ranks, lambda *its: self._say(RankFrozen(*its))
        )
        name = socket.gethostname()
        at = self._host.addresses, self._root.address, self._host.device, free_port()
        its = usable_cores(), *at, versions_here()
        self._say(HostUp(phalanx.__version__, os.getpid(), name, *its))
        try:
            self._tasks.spawn(self._serve())
            self._tasks.spawn(self._watch_silence())
            self._tasks.spawn(self._watch_ranks())
            self._tasks.spawn(health)
            await self._over.wait()
        finally:
            self._tasks.cancel()
            if self._clock is not None:
                self._clock.cancel()
            await self._host.stop()
            self._say(HostLeaving())

    def end(self) -> None:
        self._over.set()

    def _on_task_failed(self, error: BaseException) -> None:
        self._end_for(f"a task of this host's supervisor failed: {error!r}")

    async def _serve(self) -> None:
        if await self._root.run(self._hear):
            self._free_ranks()
            self._give_up("does not listen there any more")
        else:
            self._give_up("has not let this host in (another job's?)")

    def _hear(self, message: ToHost) -> None:
        self._has_received = True
        self._silence.reset()
        self._way = None
        if self._clock is not None:  # the root was only silent for a while
            self._clock.cancel()
            self._clock = None
        self._take(message)

    def _take(self, message: ToHost) -> None:
        match message:
            case HostPing():
                self._root.send_unreliable(HostPong(message.sent_ns, time.monotonic_ns()))
            case WatchRanks():
                (self._watching.set if message.is_on else self._watching.clear)()
            case StopHost():
                self.end()
            case ReconnectAck():
                pass
            case AskHost():
                self._tasks.spawn(self._answer(message))
            case ToRankEnvelope(message=Welcome() as welcome):
                self._reports.epoch = welcome.epoch
                self._host.take(message)
            case Spawn():
                self._host.take(message)
                self._report(message.rank)
            case _:
                self._host.take(message)

    async def _answer(self, asked: AskHost) -> None:
        """Answer a request, after a report on its ranks."""
        answer = await self._host.answer(asked.request)
        # What the root knows of the ranks is as new as the answer.
        rank = getattr(asked.request, "rank", None)
        ranks = self._host.ranks if rank is None else (rank,)
        self._report(*ranks, with_memory=isinstance(asked.request, Refresh))
        self._say(HostAnswered(asked.id, answer))

    async def _watch_silence(self) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(SILENCE_LOOK_S)
            waited_s += SILENCE_LOOK_S
            if self._silence.is_over(self._loop.time()) and self._asking is not None:
                # on a busy machine the query may end after its timeout
                await asyncio.wait({self._asking})
            is_over = self._silence.lasts_s >= self._boot.world.heartbeat_timeout_s
            if not self._has_received:
                if waited_s > FIRST_WORD_S:
                    self._give_up(f"did not answer within {FIRST_WORD_S:g} s")
                continue
            if self._silence.lasts_s >= self._boot.world.heartbeat_timeout_s / 2:
                self._diagnose_path()
                self._root.doubt()  # A connection may break without an error: try a new one.
            if is_over and self._clock is None:
                self._free_ranks()
                self._clock = self._loop.call_later(self._boot.linger_s, self._give_up_silent)

    def _give_up_silent(self) -> None:
        self._give_up(f"has sent nothing for {self._silence.lasts_s:.0f} s")

    def _give_up(self, why: str) -> None:
        self._end_for(f"the supervisor at {', '.join(self._boot.endpoints)} {why}")

    def _end_for(self, problem: str) -> None:
        """End the agent and keep the reason for the exit message.

        With a reason the process exits with a status, so that the end does not look requested.
        """
        if not self._over.is_set():  # else the end was requested, or an earlier reason is kept
            self.problem = problem
        self.end()

    def _free_ranks(self) -> None:
        """Abort the epoch so that ranks stop waiting for others in vain."""
        if self._reports.epoch:
            self._host.take(EpochAborted(self._reports.epoch, *self._why_freed()))

    def _why_freed(self) -> tuple[AbortKind, int, str]:
        """Return kind, culprit and message of the abort that frees ranks.

        If the root's machine does not answer either, this host is cut off from the network. The
        other hosts then report a rank failure, so the abort has the same kind, with this host's
        first rank as the culprit.
        """
        root, heartbeat_timeout_s = self._boot.root_name, self._boot.world.heartbeat_timeout_s
        supervisor = f"the supervisor of this workspace, on {root},"
        if self._way is None or self._silence.lasts_s < heartbeat_timeout_s:
            return AbortKind.ERROR, -1, f"{supervisor} is gone"
        if self._way.is_cut:
            text = f"its host has received nothing from {root} for {heartbeat_timeout_s:g} s{self._way}"
            return AbortKind.RANK_FAILURE, min(self._boot.ranks), text
        text = f"{supervisor} has sent nothing for {heartbeat_timeout_s:g} s{self._way}"
        return AbortKind.ERROR, -1, text

    def _diagnose_path(self) -> None:
        """Ask, once per silence, whether the root's machine answers."""
        if self._way is None:
            root = self._root
            self._way = PathDiagnosis(root.own, root.address, port=root.port)
            self._asking = self._tasks.spawn(
                self._way.ask(self._boot.world.heartbeat_timeout_s / 4)
            )

    async def _watch_ranks(self) -> None:
        while True:
            await self._watching.wait()
            # While the root is not connected, skip the report: messages are kept until they are
            # acknowledged, and a later report tells all that this one would.
            if self._root.is_joined:
                self._report(*self._host.ranks)
            await asyncio.sleep(LOOK_EVERY_S)

    def _report(self, *ranks: int, with_memory: bool = False) -> None:
        report = self._reports.delta(ranks, with_memory=with_memory)
        if report is not None:
            self._say(report)

    def _hear_host(self, message: FromHost) -> None:
        """Report the state of the message's rank, then forward the message."""
        if isinstance(message, FromRankEnvelope | RankGone | CommandRuns):
            self._report(message.rank)
        self._say(message)


class _Version(msgspec.Struct):
    version: str


def run_host(line: bytes) -> None:
    """Serve as the host that ``line`` describes; `SystemExit` on an error.

    ``line`` is a `HostBoot` in JSON. The `SystemExit` has a message of one line.
    """
    if not line:
        sys.exit("no instructions came: the process that started it is gone")
    theirs = decode_options(line, _Version).version
    if theirs != phalanx.__version__:
        text = f"its phalanx is {phalanx.__version__}, the one that starts it is {theirs}"
        sys.exit(f"{text}: there, {sys.executable} -m pip install phalanx=={theirs}")
    boot = decode_options(line, HostBoot)
    os.write(1, f"{BEGUN}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    _leave_mpi()
    os.environ.update(boot.env)
    try:
        elsewhere = boot.world.size - len(boot.ranks)
        sockets = stripe_sockets(elsewhere, len(boot.addresses), boot.world.connections_per_ip)
        allow_descriptors(len(boot.ranks), sockets)
        save_address_space()
        problem = asyncio.run(_serve(boot))
    except (DistributedError, OSError, MemoryError, zmq.ZMQError) as error:
        sys.exit(f"it cannot run there: {error}")
    if problem:
        sys.exit(problem)
    leave()


def _leave_mpi() -> None:
    """Delete mpirun's variables: ranks are not processes of its MPI world."""
    if not any(name in os.environ for name in _IN_MPI):
        return
    for name in [name for name in os.environ if name.startswith(_OF_MPI)]:
        del os.environ[name]


async def _serve(boot: HostBoot) -> str:
    found = await reach(boot.endpoints, REACH_S)
    if not found.endpoint:
        text = f"it cannot reach the supervisor at {found.why_not}"
        return f"{text}: phalanx doctor --hosts {boot.name} says what lets it through"
    addresses = boot.addresses or (found.own,)
    if boot.interface and not boot.addresses:
        try:
            addresses = interface_addresses(boot.interface)
        except ValueError as error:  # in the error text "this machine" is wrong: the root reads it
            return str(error).replace("this machine", "it", 1)
    # Use the root's folder if it exists on this host too; else the home folder.
    is_there = Path(boot.cwd).is_dir()
    if boot.is_cwd_asked and not is_there:
        return f"it has no folder {boot.cwd}: make it there, or name another with --cwd"
    cwd = boot.cwd if is_there else str(Path.home())
    with (
        zmq.asyncio.Context() as context,
        closing(RootConnection(context, boot, found.endpoint, found.own)) as root,
    ):
        role = HostAgent(boot, root, addresses, cwd)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, role.end)
        # Ignore the end of the process that started this one (e.g. ssh): only the root decides. Use
        # a handler, as ranks would inherit SIG_IGN.
        for number in (signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        await role.run()
        return role.problem
