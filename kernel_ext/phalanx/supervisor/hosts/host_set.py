"""Join the hosts of a world.

`HostSet` takes the messages that `LocalHost` and `RemoteHost` take. `Layout` says which rank runs where. `say_differing` compares the hosts'
versions of Python and of libraries. Versions of phalanx are compared earlier.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

import phalanx
from phalanx.distributed.bootstrap.other_libraries import free_port, master_variables
from phalanx.protocol import (
    Activity,
    BootOptions,
    GetOutput,
    HostClock,
    HostInfo,
    HostPlan,
    Notice,
    OutputIs,
    ToRank,
)
from phalanx.protocol.host import (
    FromCommand,
    FromHost,
    FromRankEnvelope,
    GetTraces,
    HostBoot,
    Look,
    Looked,
    RankFrozen,
    RankGone,
    RankReport,
    Refresh,
    Refreshed,
    RunCommand,
    SignalRank,
    Spawn,
    ToHost,
    ToRankEnvelope,
    Traces,
    Versions,
)
from phalanx.protocol.os_text import encode_options

from ..health.frozen_ranks import watch_heartbeats
from ..processes.sweeper import Sweeper
from .local_host import LocalHost
from .local_rank import LocalRank

if TYPE_CHECKING:
    from ..launchers.slurm_job import SlurmJobs
    from ..root.root import Root
    from .connection import HostServer
    from .remote_host import RemoteHost


_LIBRARIES = ("numpy", "torch", "mlx")  # of these, versions that differ are named


@dataclass(frozen=True)
class Layout:
    """Placement of ranks: ``hosts[r]`` is rank r's host, ``slots[r]`` its slot there.

    ``names`` are the names of the hosts, by index.
    """

    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, plans: Sequence[HostPlan]) -> Layout:
        """Number the ranks in the order of the hosts.

        Examples
        --------
        >>> layout = Layout.of([HostPlan("a", 2), HostPlan("me@b", 1)])
        >>> layout.hosts, layout.slots, layout.names
        ((0, 0, 1), (0, 1, 0), ('a', 'b'))
        """
        return cls(
            tuple(index for index, plan in enumerate(plans) for _ in range(plan.ranks)),
            tuple(slot for plan in plans for slot in range(plan.ranks)),
            # The name that the user gave; for this machine the name that its ranks report.
            tuple(
                socket.gethostname() if plan.is_local else plan.name.rpartition("@")[2]
                for plan in plans
            ),
        )

    def renamed(self, host: int, name: str) -> Layout:
        names = (*self.names[:host], name, *self.names[host + 1 :])
        return Layout(self.hosts, self.slots, names)

    def ranks_of(self, host: int) -> tuple[int, ...]:
        return tuple(rank for rank, its in enumerate(self.hosts) if its == host)

    def name_of(self, rank: int) -> str:
        return self.names[self.hosts[rank]]


class HostSet:
    """All hosts of one world.

    Without a plan the world has one host: this machine, with all ranks as children of this process.
    The ``on_`` methods of ``events`` are called on the event loop.
    """

    def __init__(self, options: BootOptions, events: Root) -> None:
        self._plans = options.hosts or (HostPlan("", options.world.size, is_local=True),)
        self.layout = Layout.of(self._plans)
        self.ranks = tuple(range(options.world.size))
        # By rank, as `subprocess` gives it (-N for signal N); None while the process runs.
        self.statuses: list[int | None] = [0] * options.world.size
        self._has_ended = asyncio.Event()  # one more of them
        self.events = events
        self._options = options
        self._server: HostServer | None = None  # None if all hosts are local
        self.slurm_jobs: SlurmJobs | None = None  # None if no job is submitted for the hosts
        if options.remote.job.nodes:
            from ..launchers.slurm_job import SlurmJobs

            self.slurm_jobs = SlurmJobs()
        self.addresses: tuple[str, ...] = ()
        self._remote: dict[int, RemoteHost] = {}  # by index
        self._lost: list[RemoteHost] = []
        self.every: list[LocalHost | RemoteHost] = []  # in the order of the plan
        for index, plan in enumerate(self._plans):
            self.every.append(self._local(index) if plan.is_local else self._far(index))
        self._sweeper: Sweeper | None = None
        if options.socket_path and not self.here:
            self._sweeper = Sweeper(options.socket_path)
            self._sweeper.start()

    def _local(self, index: int) -> LocalHost:
        options, addresses = self._options, self._plans[index].addresses
        # The first local host's sweeper removes the socket if this process is killed. If no rank
        # runs here, `self._sweeper` does so.
        return LocalHost(
            self.layout.ranks_of(index),
            self.hear,
            socket_path="" if self.here else options.socket_path,
            addresses=addresses or ("127.0.0.1",),
            n_named=len(addresses),
            world=options.world,
            cwd=options.remote.cwd or options.cwd,
            env=options.remote.env,
        )

    def _far(self, index: int) -> RemoteHost:
        # Import late: a world of one host does not pay for the import.
        from .connection import HostServer
        from .remote_host import RemoteHost

        if self._server is None:
            self._server = HostServer()
        self._remote[index] = RemoteHost(index, self._options, self._server, self)
        return self._remote[index]

    @property
    def here(self) -> tuple[LocalHost, ...]:
        """Return the hosts that have their ranks as children of this process."""
        return tuple(host for host in self.every if isinstance(host, LocalHost))

    def _of(self, rank: int) -> LocalHost | RemoteHost:
        return self.every[self.layout.hosts[rank]]

    def is_far(self, rank: int) -> bool:
        return self.layout.hosts[rank] in self._remote

    def is_up(self, rank: int) -> bool:
        """Whether the host of a rank is there to start commands."""
        host = self._of(rank)
        return isinstance(host, LocalHost) or host.is_up

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """Return the machines, for display."""
        return tuple(
            msgspec.structs.replace(host.info, index=index) for index, host in enumerate(self.every)
        )

    def root_address(self, rank: int) -> str:
        """Return the address at which a rank reaches this machine.

        It is the address that the rank's host uses, if this machine listens there. It is "" if the
        rank runs on this machine.
        """
        host = self._remote.get(self.layout.hosts[rank])
        if host is None:
            return ""
        theirs = host.up.root_address
        return theirs if theirs in self.addresses else self.addresses[0]

    def master(self) -> dict[str, str]:
        """Return `MASTER_ADDR` and `MASTER_PORT` for a new script, on rank 0's host."""
        far = self._remote.get(self.layout.hosts[0])
        port = free_port() if far is None else far.up.free_port
        return master_variables(self._of(0).info.address, port)

    # -- messages -----------------------------------------------------------------------------

    def take(self, message: ToHost) -> None:
        """Pass a message to the host of its rank, or to all."""
        rank = getattr(message, "rank", None)
        match message:
            case Spawn() | RunCommand():
                self.statuses[message.rank] = None
        for host in self.every if rank is None else (self._of(rank),):
            host.take(message)

    def send(self, rank: int, message: ToRank) -> None:
        self._of(rank).take(ToRankEnvelope(rank, message))

    def hear(self, message: FromHost) -> None:
        """Record what a host says of its ranks, and tell the root."""
        match message:
            case FromRankEnvelope() if self.statuses[message.rank] is None:
                self.events.on_message(message.rank, message.message)
            case RankGone() if self.statuses[message.rank] is None:
                self.statuses[message.rank] = message.status
                self._has_ended.set()
                self.events.on_lost(message.rank, message.reason, message.tail)
            case RankFrozen():
                self.events.on_frozen(message.rank, message.reason)
            case _ if isinstance(message, FromCommand):
                self.events.on_command(message)

    def report(self, rank: int) -> RankReport | LocalRank:
        return self._of(rank).report(rank)

    def activity(self, rank: int) -> Activity:
        return self.report(rank).activity

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""
        reasons = (host.abort_reason(epoch) for host in self.every)
        return next((reason for reason in reasons if reason is not None), None)

    async def refresh(self) -> bool:
        """Get new reports of remote hosts; False if one is late."""
        up = [host for host in self._remote.values() if host.is_up]
        answers = await asyncio.gather(*(host.answer(Refresh()) for host in up))
        return all(isinstance(answer, Refreshed) for answer in answers)

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """Kill a rank and wait until it is reaped; False after ``timeout_s``."""
        self.take(SignalRank(rank, signal.SIGKILL))
        return not await self.wait_ended((rank,), timeout_s)

    async def wait_ended(self, ranks: Collection[int], timeout_s: float) -> list[int]:
        """Wait until ranks have ended; return those that live."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + timeout_s
        while late := [rank for rank in sorted(ranks) if self.statuses[rank] is None]:
            if (left_s := until_s - now_s()) <= 0:
                break
            self._has_ended.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._has_ended.wait(), left_s)
        return late

    async def look(self, rank: int) -> Looked:
        """Return whether a rank is stopped (frozen), and its Python stacks."""
        answer = await self._of(rank).answer(Look(rank))
        return answer if isinstance(answer, Looked) else Looked(False, "")

    async def read_output(self, question: GetOutput) -> OutputIs:
        """Read a rank's output from byte ``since`` on."""
        answer = await self._of(question.rank).answer(question)
        return answer if isinstance(answer, OutputIs) else OutputIs(b"", question.since, 0, 0)

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """Return the clocks of all hosts and every rank's flight recorder.

        For each rank: the recorder's bytes and the number of lost records.
        """
        answers = await asyncio.gather(*(host.answer(GetTraces()) for host in self.every))
        clocks: list[HostClock] = []
        traces: list[tuple[bytes, int]] = []
        for index, (host, answer) in enumerate(zip(self.every, answers, strict=True)):
            nothing = ((b"", 0),) * len(host.ranks)
            clocks.append(HostClock(self.layout.names[index], *(host.clock() or (0, 0))))
            its = answer.traces if isinstance(answer, Traces) else ()
            traces.extend((*its, *nothing)[: len(nothing)])
        return tuple(clocks), tuple(traces)

    # -- begin and end ------------------------------------------------------------------------

    async def boot(self) -> None:
        """Start the remote hosts.

        `Root.on_not_up` gets those that are not up. Else a notice names the hosts with other
        versions of libraries.
        """
        hosts = self._remote.copy()
        problems = await asyncio.gather(*(host.boot() for host in hosts.values()))
        names = self.layout.names  # a scheduler may have chosen the hosts meanwhile
        said = zip(hosts, problems, strict=True)
        if failed := [f"{names[index]}: {problem}" for index, problem in said if problem]:
            self.events.on_not_up(failed)
        elif hosts:
            there = {names[index]: host.up.versions for index, host in hosts.items()}
            if text := say_differing(versions_here(), there):
                self.events.tell(Notice(text))

    async def boot_again(self, rank: int) -> str:
        """Start another supervisor of a rank's host if it is lost.

        The result is why the host is not up, or "".
        """
        index = self.layout.hosts[rank]
        if index not in self._remote:
            return ""
        if self._remote[index].is_over:
            self._lost.append(self._remote[index])
            self.every[index] = self._far(index)
        return await self._remote[index].boot()

    async def watch_health(self, watched: Callable[[], Collection[int]]) -> None:
        """Watch the health of this machine's ranks until cancelled.

        Remote hosts watch their own ranks.
        """
        limit_s, on_frozen = self._options.world.heartbeat_timeout_s, self.events.on_frozen
        await asyncio.gather(
            *(watch_heartbeats(host, limit_s, watched, on_frozen) for host in self.here)
        )

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in (*self.every, *self._lost)))
        if self._sweeper is not None:
            await self._sweeper.stop()
        if self._server is not None:
            self._server.close()

    async def open(self) -> None:
        """Listen for remote hosts, if there are any.

        ``addresses`` are this machine's towards them.
        """
        if self._server is None:
            return
        from .addresses import addresses_towards

        far = [plan for plan in self._plans if not plan.is_local]
        self.addresses = self._server.open(await addresses_towards(far, self._options.remote))
        for local in self.here:
            if local.addresses == ("127.0.0.1",):
                local.listen_on(self.addresses)

    def first_line(self, host: int, public_key: bytes, secret_key: bytes) -> bytes:
        """Return the first line for a host's supervisor: a `HostBoot` in JSON."""
        options, remote = self._options, self._options.remote
        assert self._server is not None
        here = next((i for i, plan in enumerate(self._plans) if plan.is_local), None)
        boot = HostBoot(
            version=phalanx.__version__,
            world=options.world,
            host=host,
            name=self.layout.names[host],
            ranks=self.layout.ranks_of(host),
            endpoints=self._server.endpoints,
            root_name=socket.gethostname() if here is None else self.layout.names[here],
            root_key=self._server.public_key,
            public_key=public_key,
            secret_key=secret_key,
            cwd=remote.cwd or options.cwd,
            is_cwd_asked=bool(remote.cwd),
            linger_s=options.linger_s,
            addresses=self._plans[host].addresses,
            interface=remote.interface,
            env=remote.env,
        )
        return encode_options(boot)

    def on_named(self, host: int, name: str) -> None:
        """Take the name of a host that the scheduler has chosen."""
        if self._options.remote.job.nodes:
            self.layout = self.layout.renamed(host, name)


def versions_here() -> Versions:
    """Return the versions on this host; the first call takes 30 ms.

    The libraries' metadata are read, and no library is imported: a supervisor needs none.

    Examples
    --------
    >>> versions_here().python == f"{sys.version_info.major}.{sys.version_info.minor}"
    True
    """
    from importlib import metadata  # imported late: a world of one host does not need it

    found = {}
    for name in _LIBRARIES:
        # A library that is not installed, or is installed without package metadata, is left out.
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]  # of any build
    return Versions(python=f"{sys.version_info.major}.{sys.version_info.minor}", **found)


def say_differing(here: Versions, there: Mapping[str, Versions]) -> str:
    """Return one line naming hosts with other versions, and the remedy.

    ``there`` has the versions of the other hosts, by host name. The line is empty if all known
    versions are the same.

    Notes
    -----
    Differing versions never refuse a start. Cells are sent as text. An array pickled by one version
    of numpy (1.26 or later) can be read by every other one. Functions and classes are sent as
    bytecode, which only the same minor version of Python can run.

    Examples
    --------
    >>> here = Versions("2.4.1", "3.11")
    >>> say_differing(here, {"b": Versions("1.26.4", "3.11"), "c": Versions("1.26.4", "3.11")})
    'numpy is 1.26.4 on b, c and 2.4.1 here: results may differ; there: python -m pip install numpy==2.4.1'
    >>> say_differing(Versions(torch="2.9"), {"b": Versions(torch="2.8"), "c": Versions()})
    'torch is 2.8 on b and 2.9 here: results may differ; there: python -m pip install torch==2.9'
    >>> say_differing(here, {"b": Versions("2.4.1", "3.12")})
    'Python is 3.12 on b and 3.11 here: functions and classes cannot be sent between them; name a Python 3.11 there with --python'
    >>> say_differing(here, {"b": here})
    ''
    """
    lines = []
    for library in _LIBRARIES:
        ours = getattr(here, library)
        if other := _others(ours, {name: getattr(its, library) for name, its in there.items()}):
            remedy = f"there: python -m pip install {library}=={ours}"
            lines.append(f"{library} is {other} and {ours} here: results may differ; {remedy}")
    if python := _others(here.python, {name: its.python for name, its in there.items()}):
        effect = "functions and classes cannot be sent between them"
        remedy = f"name a Python {here.python} there with --python"
        lines.append(f"Python is {python} and {here.python} here: {effect}; {remedy}")
    return ". ".join(lines)


def _others(here: str, there: Mapping[str, str]) -> str:
    """Return the versions that differ, each with its hosts; "" for none.

    An empty version is unknown and is skipped.
    """
    names: dict[str, list[str]] = {}
    for name, version in there.items():
        if here and version and version != here:
            names.setdefault(version, []).append(name)
    return ", ".join(f"{version} on {', '.join(its)}" for version, its in names.items())
