"""All hosts of a world as one: whoever speaks of a rank need not know where it runs.

It hands on by rank, and gathers; how a host does it is that host's business.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

import phalanx
from phalanx.protocol import Activity, BootOptions, HostClock, HostInfo, HostPlan, ToRank
from phalanx.protocol.host_commands import FromCommand, RunCommand, ToCommand
from phalanx.protocol.hosts import HostBoot

from ._any_host import WorldEvents
from ._health import HealthWatch
from ._host import HostSupervisor
from ._layout import Layout
from ._process import ChildInput, ChildOutput
from ._shown import Piece

if TYPE_CHECKING:
    from ._far_samples import FarSamples
    from ._host_door import HostDoor
    from ._remote_host import RemoteHost

__all__ = ["Hosts"]


class Hosts:
    """The hosts of one world, by world rank; without a plan, this machine with all ranks.

    Ranks of this machine are children of this very process, so that a world of one host costs
    nothing more than that.
    """

    def __init__(self, options: BootOptions, events: WorldEvents) -> None:
        self._plans = options.hosts or (HostPlan("", options.ranks, is_local=True),)
        self.layout = Layout.of(self._plans)
        self.ranks = tuple(range(options.ranks))
        self._options = options
        self._events = events
        self._door: HostDoor | None = None  # where there is another host to come in
        self._opening = asyncio.Lock()
        self._addresses: tuple[str, ...] = ()
        self._local: list[HostSupervisor] = []
        self._remote: dict[int, RemoteHost] = {}
        self._take_command: Callable[[FromCommand], None] | None = None
        for index, (plan, name) in enumerate(zip(self._plans, self.layout.names, strict=True)):
            ranks = self.layout.ranks_of(index)
            if plan.is_local:
                # The first one sweeps the record up, in case that this process is killed.
                record = "" if self._local else options.record_path
                addresses = plan.addresses or ("127.0.0.1",)
                self._local.append(HostSupervisor(ranks, events, record, addresses, options.ranks))
                self._local[-1].env = options.remote.env
                self._local[-1].use(len(plan.addresses), options.remote.connections_per_ip)
            else:
                self._remote[index] = self._remote_host(index, plan, name, ranks)
        self._every: tuple[HostSupervisor | RemoteHost, ...] = (
            *self._local,
            *self._remote.values(),
        )
        its = {rank: host for host in self._every for rank in host.ranks}
        self._of = [its[rank] for rank in self.ranks]
        self._settled: dict[int, str] = {}  # by index of a remote host: why it is not up, or ""

    def _remote_host(
        self, index: int, plan: HostPlan, name: str, ranks: Sequence[int]
    ) -> RemoteHost:
        # Loaded only here: a world of one host does not wait for it.
        from ._host_door import HostDoor
        from ._remote_host import RemoteHost

        if self._door is None:
            self._door = HostDoor()
        size, remote, silence_s = self._options.ranks, self._options.remote, self._options.silence_s
        return RemoteHost(
            index, plan, name, ranks, size, remote, silence_s, self._door, self, self._events
        )

    # -- life ---------------------------------------------------------------------------------

    @property
    def here(self) -> tuple[HostSupervisor, ...]:
        """The hosts whose ranks are this process's children."""
        return tuple(self._local)

    @property
    def far_samples(self) -> tuple[FarSamples, ...]:
        """What the other hosts tell of their ranks while somebody watches."""
        return tuple(host.samples for host in self._remote.values())

    def root_address(self, rank: int) -> str:
        """Return where a rank reaches this machine: as its host has; "" if it runs here."""
        host = self._remote.get(self.layout.hosts[rank])
        if host is None:
            return ""
        is_ours = host.root_address in self._addresses
        return host.root_address if is_ours else self._addresses[0]

    def spawn(self, rank: int) -> None:
        """Start the process of a rank; `OSError` if this machine refuses it."""
        self._of[rank].spawn(rank, cwd=self._options.remote.cwd or self._options.cwd)

    async def boot(self) -> None:
        """Start the other hosts, before any rank; `WorldEvents.on_not_up` says which are not up."""
        await asyncio.gather(*(host.boot() for host in self._remote.values()))

    async def watch_health(self, watched: Callable[[], Collection[int]]) -> None:
        """Look after the ranks of this machine until cancelled; other hosts do so by themselves."""

        def among(host: HostSupervisor) -> Callable[[], Collection[int]]:
            return lambda: set(watched()).intersection(host.ranks)

        silence_s, on_frozen = self._options.silence_s, self._events.on_frozen
        await asyncio.gather(
            *(HealthWatch(host, silence_s, on_frozen).run(among(host)) for host in self._local)
        )

    async def stop(self) -> None:
        """End all ranks and all hosts' supervisors."""
        await asyncio.gather(*(host.stop() for host in self._every))
        if self._door is not None:
            self._door.close()

    async def reached_at(self) -> tuple[str, ...]:
        """Listen for other hosts, if there are any; the addresses at which they reach this one."""
        if self._door is None:
            return ()
        async with self._opening:
            if not self._addresses:
                from ._addresses import addresses_towards

                far = [plan for plan in self._plans if not plan.is_local]
                found = await addresses_towards(far, self._options.remote)
                self._addresses = self._door.open(found)
                for local in self._local:
                    if local.addresses == ("127.0.0.1",):
                        local.listen_on(self._addresses)
        return self._addresses

    # -- what remote hosts need (RemoteHosts) -------------------------------------------------

    async def first_line(self, host: int, public_key: bytes, secret_key: bytes) -> bytes:
        """Return what a host's supervisor is to read first; listens for it, too."""
        options, remote = self._options, self._options.remote
        await self.reached_at()
        assert self._door is not None
        here = next((i for i, plan in enumerate(self._plans) if plan.is_local), None)
        boot = HostBoot(
            version=phalanx.__version__,
            workspace=options.name,
            host=host,
            name=self.layout.names[host],
            ranks=self.layout.ranks_of(host),
            size=options.ranks,
            endpoints=self._door.endpoints,
            root_name=Layout.of_one(0).names[0] if here is None else self.layout.names[here],
            root_key=self._door.public_key,
            public_key=public_key,
            secret_key=secret_key,
            cwd=remote.cwd or options.cwd,
            is_cwd_asked=bool(remote.cwd),
            linger_s=options.linger_s,
            silence_s=options.silence_s,
            addresses=self._plans[host].addresses,
            interface=remote.interface,
            env=remote.env,
            connections_per_ip=remote.connections_per_ip,
        )
        return msgspec.json.encode(boot) + b"\n"

    def named(self, host: int, name: str) -> str:
        """Return what a host is called: by its own ``name``, where a job to come had none for it."""
        if self._options.remote.job.nodes:
            self.layout = self.layout.renamed(host, name)
        return self.layout.names[host]

    def on_settled(self, host: int, problem: str, ranks: Sequence[int]) -> None:
        """Learn that a host is up, or why it cannot be; ``ranks`` were to run there."""
        is_first = len(self._settled) < len(self._remote)
        self._settled[host] = problem
        if not is_first:
            if problem:
                for rank in ranks:
                    self._events.on_lost(rank, f"its host could not be started: {problem}", "")
        elif len(self._settled) == len(self._remote) and any(self._settled.values()):
            failed = sorted(index for index, why in self._settled.items() if why)
            self._events.on_not_up(
                [f"{self.layout.names[index]}: {self._settled[index]}" for index in failed]
            )

    # -- commands of scripts ------------------------------------------------------------------

    @property
    def remote(self) -> Collection[int]:
        """The hosts that are not this machine, by index."""
        return self._remote.keys()

    def take_commands(self, take: Callable[[FromCommand], None]) -> None:
        """Hand what other hosts say of commands to ``take``."""
        self._take_command = take

    def on_command(self, message: FromCommand) -> None:
        """Take what a host says of a rank's command; of cells' ranks there is none."""
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
        """Start a program as a rank of this machine; `OSError` if that cannot be."""
        host = self._of[rank]
        assert isinstance(host, HostSupervisor)
        host.spawn_command(
            rank, command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
        )

    def run_command(self, message: RunCommand) -> None:
        """Start a program as a rank of another host, which is up."""
        self._remote[self.layout.hosts[message.rank]].run_command(message)

    def command(self, host: int, message: ToCommand) -> None:
        """Say something of the commands that run on another host; nothing if it is lost."""
        self._remote[host].command(message)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and all it started; one that is gone gets none."""
        self._of[rank].signal(rank, number)

    # -- all of them --------------------------------------------------------------------------

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """As `Host.infos`."""
        local = iter(self._local)
        return tuple(
            self._remote[index].info
            if index in self._remote
            else msgspec.structs.replace(next(local).infos[0], index=index)
            for index in range(len(self._plans))
        )

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """As `Host.abort`."""
        for host in self._every:
            host.abort(epoch, kind, culprit, message)

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """As `Host.abort_reason`."""
        reasons = (host.abort_reason(epoch) for host in self._every)
        return next((reason for reason in reasons if reason is not None), None)

    def watch(self, *, is_on: bool) -> None:
        """As `Host.watch`."""
        for host in self._remote.values():
            host.watch(is_on=is_on)

    async def refresh(self) -> None:
        """As `Host.refresh`."""
        if self._remote:
            await asyncio.gather(*(host.refresh() for host in self._remote.values()))

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """As `Host.traces`."""
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

    # -- by rank ------------------------------------------------------------------------------

    def send(self, rank: int, message: ToRank) -> None:
        """As `Host.send`."""
        self._of[rank].send(rank, message)

    def speaks(self, rank: int, pid: int) -> None:
        """As `Host.speaks`."""
        self._of[rank].speaks(rank, pid)

    def pid(self, rank: int) -> int:
        """As `Host.pid`."""
        return self._of[rank].pid(rank)

    def status(self, rank: int) -> int | None:
        """As `Host.status`."""
        return self._of[rank].status(rank)

    def give_back(self, rank: int) -> None:
        """As `Host.give_back`."""
        self._of[rank].give_back(rank)

    def release_output(self, rank: int) -> None:
        """As `Host.release_output`."""
        self._of[rank].release_output(rank)

    def activity(self, rank: int) -> Activity:
        """As `Host.activity`."""
        return self._of[rank].activity(rank)

    def doing(self, rank: int) -> str:
        """As `Host.doing`."""
        return self._of[rank].doing(rank)

    def rss_nbytes(self, rank: int) -> int:
        """As `Host.rss_nbytes`."""
        return self._of[rank].rss_nbytes(rank)

    def shown_nbytes(self, rank: int) -> int:
        """As `Host.shown_nbytes`."""
        return self._of[rank].shown_nbytes(rank)

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """As `Host.kill`."""
        return await self._of[rank].kill(rank, timeout_s)

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """As `Host.look`."""
        return await self._of[rank].look(rank)

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """As `Host.read_shown`; None if there is no such rank."""
        if rank not in self.ranks:
            return None
        return await self._of[rank].read_shown(rank, since, max_lines)
