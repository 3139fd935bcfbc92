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
from phalanx.protocol import EpochAborted, Register, Welcome
from phalanx.protocol.host import (
    AskHost,
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
    RankReport,
    StopHost,
    ToHost,
    ToRankEnvelope,
)
from phalanx.protocol.os_text import decode_options

from ..health.frozen_ranks import watch_heartbeats
from ..launchers.remote_command import BEGUN
from ..processes.system import (
    allow_descriptors,
    leave,
    save_address_space,
    stripe_sockets,
    usable_cores,
)
from ..tasks import TaskSet
from .addresses import PathReport, SilenceWatch, diagnose_path, reach
from .connection import RootConnection
from .host_set import versions_here
from .local_host import LocalHost

log = logging.getLogger(__name__)
SILENCE_LOOK_S = 0.2
FIRST_WORD_S = 10.0  # time limit for the root's first message, which usually takes milliseconds
REACH_S = 3.0  # for one of the root's addresses: a tcp handshake and one retransmission
# Prefixes of the variables that mpirun sets for its processes, and the variables that show that
# mpirun started this one.
_OF_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")

_IN_MPI = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


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
        self._epoch = 0  # the newest that the root has announced to ranks
        self._say = root.send
        self._tasks = TaskSet(self._on_task_failed)
        limit_s = boot.world.heartbeat_timeout_s
        self._silence = SilenceWatch(limit_s, self._diagnose, self._tasks.spawn)
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
            self._tasks.spawn(health)
            await self._over.wait()
        finally:
            self._tasks.cancel()
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
        self._silence.reset()
        self._take(message)

    def _take(self, message: ToHost) -> None:
        match message:
            case HostPing():
                self._root.send_unreliable(HostPong(message.sent_ns, time.monotonic_ns()))
            case StopHost():
                self.end()
            case AskHost():
                self._tasks.spawn(self._answer(message))
            case ToRankEnvelope(message=Welcome() as welcome):
                self._epoch = welcome.epoch
                self._host.take(message)
            case _:
                self._host.take(message)

    async def _answer(self, asked: AskHost) -> None:
        """Answer a request, after a report on all ranks."""
        answer = await self._host.answer(asked.request)
        self._report()
        self._say(HostAnswered(asked.id, answer))

    async def _watch_silence(self) -> None:
        limit_s, is_freed = self._boot.world.heartbeat_timeout_s, False
        while True:
            await asyncio.sleep(SILENCE_LOOK_S)
            is_over, lasts_s = await self._silence.look(), self._silence.lasts_s
            if not self._root.has_received:
                if lasts_s > FIRST_WORD_S:
                    self._give_up(f"did not answer within {FIRST_WORD_S:g} s")
                continue
            if is_over and not is_freed:
                self._free_ranks()
            is_freed = is_over
            if is_over and lasts_s >= limit_s + self._boot.linger_s:
                self._give_up(f"has sent nothing for {lasts_s:.0f} s")

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
        if self._epoch:
            self._host.take(EpochAborted(self._epoch, *self._why_freed()))

    def _why_freed(self) -> tuple[AbortKind, int, str]:
        """Return kind, culprit and message of the abort that frees ranks.

        If the root's machine does not answer either, this host is cut off from the network. The
        other hosts then report a rank failure, so the abort has the same kind, with this host's
        first rank as the culprit.
        """
        root, heartbeat_timeout_s = self._boot.root_name, self._boot.world.heartbeat_timeout_s
        supervisor = f"the supervisor of this workspace, on {root},"
        if self._silence.lasts_s < heartbeat_timeout_s:
            return AbortKind.ERROR, -1, f"{supervisor} is gone"
        path, is_cut = self._silence.path
        if is_cut:
            text = f"its host has received nothing from {root} for {heartbeat_timeout_s:g} s{path}"
            return AbortKind.RANK_FAILURE, min(self._boot.ranks), text
        text = f"{supervisor} has sent nothing for {heartbeat_timeout_s:g} s{path}"
        return AbortKind.ERROR, -1, text

    async def _diagnose(self, timeout_s: float) -> PathReport:
        here, there, port = self._root.own, self._root.address, self._root.port
        return await diagnose_path(here, there, port=port, timeout_s=timeout_s)

    def _report(self) -> None:
        """Say what all ranks do, and whether the newest epoch is aborted."""
        reason = self._host.abort_reason(self._epoch) if self._epoch else None
        ranks = tuple(
            RankReport(rank, its.pid, its.activity, its.doing, its.rss_nbytes, its.shown_nbytes)
            for rank in self._host.ranks
            for its in (self._host.report(rank),)
        )
        self._say(HostReport(ranks, reason and EpochAborted(self._epoch, *reason)))

    def _hear_host(self, message: FromHost) -> None:
        match message:
            case FromRankEnvelope(message=Register()):  # its process is known now
                self._report()
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
