"""Forward calls about a rank to the rank's host.

`HostSet` is the `HostInterface` of the whole world: calls by rank are forwarded, calls about the
world are gathered from all hosts. `say_differing` compares the hosts' versions of Python and of
libraries. Versions of phalanx are compared earlier.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

import phalanx
from phalanx.distributed import free_port, master_variables
from phalanx.protocol import Activity, BootOptions, HostClock, HostInfo, HostPlan, Notice, ToRank
from phalanx.protocol.host import FromCommand, HostBoot, RunCommand, ToCommand, Versions
from phalanx.protocol.os_text import encode_options

from ..health.liveness import HealthWatch
from ..processes.child import ChildInput, ChildOutput
from ..processes.sweeper import Sweeper
from .interface import Layout, Piece, WorldEvents
from .local_host import LocalHost

if TYPE_CHECKING:
    from ..launchers.batch import JobGathering
    from .remote_host import RemoteHost
    from .samples import RemoteSampler
    from .session import HostServer

_LIBRARIES = ("numpy", "torch", "mlx")  # of these, versions that differ are named


class HostSet:
    """All hosts of one world.

    Without a plan the world has one host: this machine, with all ranks as children of this process.
    """

    def __init__(self, options: BootOptions, events: WorldEvents) -> None:
        self._plans = options.hosts or (HostPlan("", options.world.size, is_local=True),)
        self.layout = Layout.of(self._plans)
        self.ranks = tuple(range(options.world.size))
        self._options = options
        self._events = events
        self._server: HostServer | None = None  # None if all hosts are local
        self.gathering: JobGathering | None = None  # None if no batch job starts the hosts
        if options.remote.job.nodes:
            from ..launchers.batch import JobGathering

            self.gathering = JobGathering()
        self._opening = asyncio.Lock()
        self._addresses: tuple[str, ...] = ()
        self._local: list[LocalHost] = []
        self._remote: dict[int, RemoteHost] = {}
        self._take_command: Callable[[FromCommand], None] | None = None
        for index, (plan, name) in enumerate(zip(self._plans, self.layout.names, strict=True)):
            ranks = self.layout.ranks_of(index)
            if plan.is_local:
                # The first local host's sweeper removes the record if this process is killed. If no
                # rank runs here, `self._sweeper` does so.
                record = "" if self._local else options.record_path
                addresses = plan.addresses or ("127.0.0.1",)
                self._local.append(LocalHost(ranks, events, record, addresses, options.world))
                self._local[-1].env = options.remote.env
                self._local[-1].use(len(plan.addresses))
            else:
                self._remote[index] = self._remote_host(index, plan, name, ranks)
        self._sweeper: Sweeper | None = None
        if options.record_path and not self._local:
            self._sweeper = Sweeper(options.record_path)
            self._sweeper.start(os.environ)
        self._every: tuple[LocalHost | RemoteHost, ...] = (
            *self._local,
            *self._remote.values(),
        )
        its = {rank: host for host in self._every for rank in host.ranks}
        self._of = [its[rank] for rank in self.ranks]
        self._settled: dict[int, str] = {}  # by index of a remote host: why it is not up, or ""

    def _remote_host(
        self, index: int, plan: HostPlan, name: str, ranks: Sequence[int]
    ) -> RemoteHost:
        # Import late: a world of one host does not pay for the import.
        from .remote_host import RemoteHost
        from .session import HostServer

        if self._server is None:
            self._server = HostServer()
        size, remote, heartbeat_timeout_s = (
            self._options.world.size,
            self._options.remote,
            self._options.world.heartbeat_timeout_s,
        )
        return RemoteHost(
            index,
            plan,
            name,
            ranks,
            size,
            remote,
            heartbeat_timeout_s,
            self._server,
            self,
            self._events,
        )

    @property
    def here(self) -> tuple[LocalHost, ...]:
        """Return the hosts that have their ranks as children of this process."""
        return tuple(self._local)

    @property
    def far_samples(self) -> tuple[RemoteSampler, ...]:
        """Return the samplers of the remote hosts."""
        return tuple(host.samples for host in self._remote.values())

    def root_address(self, rank: int) -> str:
        """Return the address at which a rank reaches this machine.

        It is the address that the rank's host uses, if this machine listens there. It is "" if the
        rank runs on this machine.
        """
        host = self._remote.get(self.layout.hosts[rank])
        if host is None:
            return ""
        is_ours = host.root_address in self._addresses
        return host.root_address if is_ours else self._addresses[0]

    def spawn(self, rank: int) -> None:
        """Start the process of a rank; `OSError` if this machine refuses it."""
        self._of[rank].spawn(rank, cwd=self._options.remote.cwd or self._options.cwd)

    async def boot(self) -> None:
        """Start the remote hosts, before any rank.

        `WorldEvents.on_not_up` gets the hosts that are not up.
        """
        await asyncio.gather(*(host.boot() for host in self._remote.values()))

    async def watch_health(self, watched: Callable[[], Collection[int]]) -> None:
        """Watch the health of this machine's ranks until cancelled.

        Remote hosts watch their own ranks.
        """

        def among(host: LocalHost) -> Callable[[], Collection[int]]:
            return lambda: set(watched()).intersection(host.ranks)

        heartbeat_timeout_s, on_frozen = (
            self._options.world.heartbeat_timeout_s,
            self._events.on_frozen,
        )
        await asyncio.gather(
            *(
                HealthWatch(host, heartbeat_timeout_s, on_frozen).run(among(host))
                for host in self._local
            )
        )

    async def stop(self) -> None:
        """End all ranks and all hosts' supervisors."""
        await asyncio.gather(*(host.stop() for host in self._every))
        if self._sweeper is not None:
            await self._sweeper.stop()
        if self._server is not None:
            self._server.close()

    async def reached_at(self) -> tuple[str, ...]:
        """Listen for remote hosts; return this machine's addresses towards them.

        Without remote hosts nothing is opened and the result is empty.
        """
        if self._server is None:
            return ()
        async with self._opening:
            if not self._addresses:
                from .addresses import addresses_towards

                far = [plan for plan in self._plans if not plan.is_local]
                found = await addresses_towards(far, self._options.remote)
                self._addresses = self._server.open(found)
                for local in self._local:
                    if local.addresses == ("127.0.0.1",):
                        local.listen_on(self._addresses)
        return self._addresses

    async def first_line(self, host: int, public_key: bytes, secret_key: bytes) -> bytes:
        """Return the first line for a host's supervisor, and start listening.

        The line is a `HostBoot` in JSON.
        """
        options, remote = self._options, self._options.remote
        await self.reached_at()
        assert self._server is not None
        here = next((i for i, plan in enumerate(self._plans) if plan.is_local), None)
        boot = HostBoot(
            version=phalanx.__version__,
            world=options.world,
            host=host,
            name=self.layout.names[host],
            ranks=self.layout.ranks_of(host),
            endpoints=self._server.endpoints,
            root_name=Layout.of_one(0).names[0] if here is None else self.layout.names[here],
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

    def named(self, host: int, name: str) -> str:
        """Return the name of a host.

        ``name`` is its own name, used if the scheduler chose the host after the plan was made.
        """
        if self._options.remote.job.nodes:
            self.layout = self.layout.renamed(host, name)
        return self.layout.names[host]

    def on_settled(self, host: int, problem: str, ranks: Sequence[int]) -> None:
        """Record that a host is up, or why not (``problem``).

        ``ranks`` were to run there.
        """
        is_first = len(self._settled) < len(self._remote)
        self._settled[host] = problem
        if not is_first:
            if problem:
                for rank in ranks:
                    self._events.on_lost(rank, f"its host could not be started: {problem}", "")
        elif len(self._settled) == len(self._remote):
            self._on_all_settled()

    def _on_all_settled(self) -> None:
        """Report hosts that failed to start, else hosts with differing versions."""
        names = self.layout.names
        if failed := sorted(index for index, why in self._settled.items() if why):
            self._events.on_not_up([f"{names[index]}: {self._settled[index]}" for index in failed])
            return
        there = {names[index]: host.versions for index, host in self._remote.items()}
        if text := say_differing(versions_here(), there):
            self._events.on_news(Notice(text))

    @property
    def remote(self) -> Collection[int]:
        """Return the indices of the hosts that are not this machine."""
        return self._remote.keys()

    def take_commands(self, take: Callable[[FromCommand], None]) -> None:
        """Set the callback for messages of remote hosts about commands."""
        self._take_command = take

    def on_command(self, message: FromCommand) -> None:
        """Forward a remote host's message about a rank's command to the callback.

        Ranks that run cells have no command, and no callback is set for them.
        """
        if self._take_command is not None:
            self._take_command(message)

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
        """Start a program as a rank of this machine; see `LocalHost.spawn_command`."""
        host = self._of[rank]
        assert isinstance(host, LocalHost)
        host.spawn_command(
            rank, command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
        )

    def master(self) -> dict[str, str]:
        """Return `MASTER_ADDR` and `MASTER_PORT` for a new script, on rank 0's host."""
        first = self._of[0]
        if isinstance(first, LocalHost):
            return master_variables(first.addresses[0], free_port())
        return master_variables(first.info.address, first.free_port)

    def is_up(self, rank: int) -> bool:
        """Whether the host of a rank is there to start commands."""
        host = self._of[rank]
        return isinstance(host, LocalHost) or host.is_up

    def run_command(self, message: RunCommand) -> None:
        """Start a program as a rank of a remote host.

        The host is up.
        """
        self._remote[self.layout.hosts[message.rank]].run_command(message)

    def command(self, host: int, message: ToCommand) -> None:
        """Send a message about commands to a remote host.

        The message is dropped if the host is lost.
        """
        self._remote[host].command(message)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and its process group.

        The call does nothing if the rank is gone.
        """
        self._of[rank].signal(rank, number)

    def end(self, rank: int) -> None:
        """Ask a rank to interrupt its cell and to end; see `LocalHost.end`."""
        self._of[rank].end(rank)

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """See `HostInterface.infos`."""
        local = iter(self._local)
        return tuple(
            self._remote[index].info
            if index in self._remote
            else msgspec.structs.replace(next(local).infos[0], index=index)
            for index in range(len(self._plans))
        )

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """See `HostInterface.abort`."""
        for host in self._every:
            host.abort(epoch, kind, culprit, message)

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """See `HostInterface.abort_reason`."""
        reasons = (host.abort_reason(epoch) for host in self._every)
        return next((reason for reason in reasons if reason is not None), None)

    def watch(self, *, is_on: bool) -> None:
        """See `HostInterface.watch`."""
        for host in self._remote.values():
            host.watch(is_on=is_on)

    async def refresh(self) -> bool:
        """See `HostInterface.refresh`."""
        if not self._remote:
            return True
        return all(await asyncio.gather(*(host.refresh() for host in self._remote.values())))

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """See `HostInterface.traces`."""
        far = dict(
            zip(
                self._remote,
                await asyncio.gather(*(host.traces() for host in self._remote.values())),
                strict=True,
            )
        )
        local = iter(self._local)
        clocks: list[HostClock] = []
        traces: list[tuple[bytes, int]] = []
        for index, name in enumerate(self.layout.names):
            here = far.get(index) or (HostClock(name, 0, 0), next(local).traces_here())
            clocks.append(here[0])
            traces.extend(here[1])
        return tuple(clocks), tuple(traces)

    def send(self, rank: int, message: ToRank) -> None:
        """See `HostInterface.send`."""
        self._of[rank].send(rank, message)

    def speaks(self, rank: int, pid: int) -> None:
        """See `HostInterface.speaks`."""
        self._of[rank].speaks(rank, pid)

    def pid(self, rank: int) -> int:
        """See `HostInterface.pid`."""
        return self._of[rank].pid(rank)

    def status(self, rank: int) -> int | None:
        """See `HostInterface.status`."""
        return self._of[rank].status(rank)

    def give_back(self, rank: int) -> None:
        """See `HostInterface.give_back`."""
        self._of[rank].give_back(rank)

    def release_output(self, rank: int) -> None:
        """See `HostInterface.release_output`."""
        self._of[rank].release_output(rank)

    def activity(self, rank: int) -> Activity:
        """See `HostInterface.activity`."""
        return self._of[rank].activity(rank)

    def is_stuck(self, rank: int) -> bool:
        """See `HostInterface.is_stuck`."""
        return self._of[rank].is_stuck(rank)

    def doing(self, rank: int) -> str:
        """See `HostInterface.doing`."""
        return self._of[rank].doing(rank)

    def rss_nbytes(self, rank: int) -> int:
        """See `HostInterface.rss_nbytes`."""
        return self._of[rank].rss_nbytes(rank)

    def shown_nbytes(self, rank: int) -> int:
        """See `HostInterface.shown_nbytes`."""
        return self._of[rank].shown_nbytes(rank)

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """See `HostInterface.kill`."""
        return await self._of[rank].kill(rank, timeout_s)

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """See `HostInterface.look`."""
        return await self._of[rank].look(rank)

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """See `HostInterface.read_shown`; None if there is no such rank."""
        if rank not in self.ranks:
            return None
        return await self._of[rank].read_shown(rank, since, max_lines)


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

    Parameters
    ----------
    here : Versions
        Versions of this host.
    there : mapping of str to Versions
        Versions of the other hosts, by host name.

    Returns
    -------
    str
        Empty if all known versions are the same.

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
