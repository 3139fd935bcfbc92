"""Ranks that are real processes, and the small supervisor that gives them worlds.

Processes cost a quarter of a second each, so they stay: every test gets a world of its own epoch
on them. It is to a test what the supervisor is to a user, and uses the same messages.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from distributed.cells import cells
from distributed.farm.farm_parts import CELL_S, Cells, Host, Plan
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.distributed.control import AbortKind, ControlPage
from phalanx.protocol import (
    Activity,
    EpochAborted,
    FrameReader,
    Gather,
    GroupProgress,
    Join,
    Passed,
    Recover,
    Refused,
    ToSupervisor,
    Welcome,
    Withdraw,
    WorldConfig,
    pack_frame,
)
from phalanx.supervisor.world.state import Answer, WorldState

HOSTS = 3
KEY = bytes(range(100, 132))


class Member(Cells):
    """One process of the farm."""

    def __init__(
        self, rank: int, fds: Sequence[int], enter: Callable[[], None] | None = None
    ) -> None:
        self.channel, channel = socket.socketpair()
        control, theirs = socket.socketpair()
        env = os.environ | {
            "PHALANX_CHANNEL": str(channel.fileno()),
            "FARM_CONTROL": str(theirs.fileno()),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distributed.farm.farm_rank"],
            env=env,
            pass_fds=[channel.fileno(), theirs.fileno(), *fds],
            preexec_fn=enter,  # noqa: PLW1509
        )
        channel.close()
        theirs.close()
        super().__init__(rank, Connection(control.detach()))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()
        self.channel.close()


class World:
    """The ranks of one epoch, as a test sees them."""

    def __init__(self, farm: Farm, plan: Plan) -> None:
        self.farm = farm
        self.plan = plan
        self.size = plan.size
        self.is_good = True

    @property
    def adds_in_rank_order(self) -> bool:
        """Whether sums have the bits of numpy's own: one host, and the additions numpy has there."""
        is_one_host = self.plan.transport == "any" and len(set(self.plan.hosts)) == 1
        return is_one_host and platform.machine() == "x86_64"

    def start(self, cell: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None):
        """Send a cell to ranks (all), without waiting; its first argument is the rank."""
        for rank in range(self.size) if ranks is None else ranks:
            self.farm.members[rank].send(cell, *args)

    def outcomes(self, ranks: Sequence[int] | None = None, timeout: float = CELL_S) -> list[Any]:
        """What each rank's cell returned, or the exception it raised."""
        chosen = range(self.size) if ranks is None else ranks
        outcomes = [self.farm.members[rank].receive(timeout) for rank in chosen]
        if any(isinstance(outcome, BaseException) for outcome in outcomes):
            self.is_good = False
        return outcomes

    def run(self, cell: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a cell on every rank and return what each returned; raises what one raised."""
        self.start(cell, *args)
        outcomes = self.outcomes()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def errors(self, cell: Callable[..., Any], *args: Any) -> list[BaseException]:
        """Run a cell that fails on every rank."""
        self.start(cell, *args)
        outcomes = self.outcomes()
        assert all(isinstance(outcome, BaseException) for outcome in outcomes), outcomes
        return outcomes

    def page_of(self, rank: int) -> ControlPage:
        """Return the control page of a rank's host."""
        return self.farm.host_of(self.plan.hosts[rank]).page

    def activity(self, rank: int) -> Activity:
        """Return what the control page says of a rank: its groups, its message, and how far it is."""
        page = self.page_of(rank)
        epoch, groups, _, messages = page.activity(self.plan.slots[rank])
        if epoch != self.plan.epoch:  # of an earlier world, or the rank has not joined yet
            return Activity(epoch, {})
        return Activity(
            epoch,
            {number: GroupProgress(*its[:4]) for number, its in groups.items()},
            {key: Passed(*its) for key, its in messages.items()},
        )

    def is_in(self, op: str, rank: int, *, n_queued: int = 0) -> bool:
        """Whether a rank waits in ``op`` now, with so many submitted operations not over."""
        now = self.activity(rank)
        seen = {its.op for its in now.operations()}
        queued = sum(its.queued for its in now.groups.values())
        return queued >= n_queued and (op in seen if op else any(seen))

    def wait_in(self, op: str, ranks: Sequence[int] | None = None, *, n_queued: int = 0) -> None:
        """Wait until each of these ranks (all) is seen in the operation ``op``; "": in any.

        A collective is seen from its begin on, a "send" or "recv" once it waits for its peer. With
        ``n_queued`` at least so many submitted operations, the current one among them, are not over.
        """
        for rank in range(self.size) if ranks is None else ranks:
            wait_until(
                lambda rank=rank: self.is_in(op, rank, n_queued=n_queued),
                f"rank {rank} in {op or 'any operation'} of epoch {self.plan.epoch}",
            )

    def progress(self, rank: int) -> int:
        """Return how many collectives and messages a rank has completed in this epoch."""
        now = self.activity(rank)
        n_messages = sum(its.sent + its.received for its in now.messages.values())
        return sum(its.done for its in now.groups.values()) + n_messages

    def wait_moved(self, rank: int, n: int = 3) -> None:
        """Wait until a rank has completed ``n`` more collectives and messages than now."""
        wanted = self.progress(rank) + n
        wait_until(
            lambda: self.progress(rank) >= wanted, f"rank {rank} has moved to number {wanted}"
        )

    def wait_asleep(self, rank: int) -> None:
        """Wait until a rank's main thread sleeps, as it does in a wait that lasts."""
        pid = self.pid(rank)
        status = Path(f"/proc/{pid}/task/{pid}/stat")
        wait_until(
            lambda: status.read_text().rpartition(") ")[2].startswith("S"),
            f"the main thread of rank {rank} sleeps",
        )

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self.farm.members[rank].process.pid

    def has_outcome(self, rank: int) -> bool:
        """Whether the cell of a rank is over."""
        return self.farm.members[rank].control.poll(0)

    def notices(self) -> list[tuple[int, EpochAborted]]:
        """Wait until as many notices of the epoch's end have come as there are ranks."""
        for _ in range(self.size):
            assert self.plan.told.acquire(timeout=PATIENCE_S), self.plan.aborts
        return list(self.plan.aborts)

    def give_up(self, culprit: int, why: str) -> None:
        """Free all ranks of this epoch, as the supervisor does when it takes one for lost."""
        self.is_good = False
        with self.farm._lock:
            self.farm._give_up(self.plan.epoch, AbortKind.RANK_FAILURE, culprit, why)

    def kill(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        self.is_good = False
        self.farm.members[rank].process.send_signal(number)


class Farm:
    """The processes and their supervisor; one lock guards the plan.

    ``enter``: by rank, the call that moves its process to a host of the bed.
    """

    def __init__(self, enter: Mapping[int, Callable[[], None]] | None = None) -> None:
        self._enter = enter or {}
        self._hosts = [Host() for _ in range(HOSTS)]
        self.members: dict[int, Member] = {}
        self._lock = threading.Lock()
        self._plan = Plan(0, (), "any", WorldState(0))
        self._world: World | None = None
        self._threads: list[threading.Thread] = []

    def world(
        self,
        size: int,
        hosts: Sequence[int] | None = None,
        transport: str = "any",
        *,
        with_memory: bool = True,
    ) -> World:
        """Return a world as described; one that still stands is used again."""
        places = tuple(hosts or (0,) * size)
        plan = self._plan
        wanted = (size, places, transport, with_memory)
        if (
            self._world is not None
            and self._world.is_good
            and (plan.size, plan.hosts, plan.transport, plan.with_memory) == wanted
            and not any(self.members[rank].is_busy for rank in range(size))
        ):
            return self._world
        self._world = self.unformed(size, places, transport, with_memory=with_memory)
        self._world.run(cells.join)
        self._world.is_good = True
        return self._world

    def unformed(
        self,
        size: int,
        hosts: Sequence[int],
        transport: str,
        *,
        with_memory: bool = True,
        reroute: Callable[[int, int, bytes], bytes] | None = None,
        **links: Any,
    ) -> World:
        """Return a new world that its ranks have not joined yet.

        ``reroute(round, rank, share)`` may change what ranks tell each other when they meet;
        ``links`` are the plan's ``addresses``, ``addresses_of``, ``connections_per_ip`` and
        ``silence_s``.
        """
        with self._lock:
            state = WorldState(size)
            state.epoch = self._plan.epoch + 1
            self._plan = Plan(size, tuple(hosts), transport, state, with_memory, **links)
            if reroute is not None:
                self._plan.reroute = reroute
        for rank in range(size):
            self._tend(rank)
        self._world = World(self, self._plan)
        self._world.is_good = False
        return self._world

    def _tend(self, rank: int) -> None:
        """Make sure that the rank's process is there and idle."""
        member = self.members.get(rank)
        if member is not None and (member.is_busy or member.process.poll() is not None):
            with self._lock:
                del self.members[rank]  # first: its end is no loss to the new world
            member.close()
            member = None
        if member is None:
            fds = [fd for host in self._hosts for fd in host.fds]
            member = self.members[rank] = Member(rank, fds, self._enter.get(rank))
            thread = threading.Thread(target=self._serve, args=(member,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, member: Member) -> None:
        reader = FrameReader()
        decoder = msgspec.msgpack.Decoder(ToSupervisor)
        with suppress(OSError):
            while data := member.channel.recv(1 << 16):
                for body in reader.feed(data):
                    self._hear(member, decoder.decode(body))
        self._lose(member)

    def _hear(self, member: Member, message: msgspec.Struct) -> None:
        with self._lock:
            if isinstance(message, Join):
                self._answer(member, self._welcome(member.rank, message.id))
            elif isinstance(message, Gather):
                plan = self._plan
                plan.rounds.setdefault(message.round, set()).add(member.rank)
                share = plan.reroute(message.round, member.rank, message.data)
                rerouted = msgspec.structs.replace(message, data=share)
                self._answer_all(plan.state.gather(member.rank, rerouted))
            elif isinstance(message, Recover):
                self._plan.state.ask(member.rank, message)
                if self._plan.state.is_unanimous:
                    self._begin_epoch()
            elif isinstance(message, Withdraw):
                missing = self._plan.state.withdraw(member.rank, message.of)
                who = ", ".join(f"rank {peer}" for peer in missing)
                self._answer(member, Refused(message.id, -1, who))
            elif isinstance(message, EpochAborted) and message.epoch == self._plan.epoch:
                self._plan.aborts.append((member.rank, message))
                self._plan.told.release()
                self._give_up(message.epoch, message.kind, message.culprit, message.message)

    def host_of(self, number: int) -> Host:
        """Return what the supervisor of a (pretended) host owns."""
        return self._hosts[number]

    def _begin_epoch(self) -> None:
        """All have asked: the next epoch of the same world, if anything is wrong with this one."""
        plan = self._plan
        if not plan.state.is_good:
            self._give_up(plan.epoch, AbortKind.ERROR, -1, "the group was formed anew")
            plan.state.begin_epoch()
            plan.rounds, plan.aborts = {}, []
        for rank, request_id in plan.state.take_asking():
            self._answer(self.members[rank], self._welcome(rank, request_id))

    def _welcome(self, rank: int, request: int) -> Welcome:
        plan = self._plan
        host = self._hosts[plan.hosts[rank]]
        return Welcome(
            id=request,
            rank=rank,
            world=WorldConfig(
                "farm", plan.size, plan.transport, plan.silence_s, plan.connections_per_ip
            ),
            epoch=plan.epoch,
            key=KEY,
            hosts=plan.hosts,
            slots=plan.slots,
            host_names=tuple(f"host{number}" for number in range(HOSTS)),
            addresses=plan.addresses_of.get(rank, plan.addresses),
            at_once=len(plan.addresses),
            page_fd=host.page_fd if plan.with_memory else -1,
            region_fds=host.region_fds if plan.with_memory else (),
            wake_fds=host.wake_fds if plan.with_memory else (),
        )

    def _answer_all(self, answers: Sequence[Answer]) -> None:
        for rank, answer in answers:
            self._answer(self.members[rank], answer)

    def _answer(self, member: Member, answer: msgspec.Struct) -> None:
        with suppress(OSError):
            member.channel.sendall(pack_frame(answer))

    def _lose(self, member: Member) -> None:
        """Tell everyone of a rank that died, as the parent that knows how."""
        with suppress(OSError):
            code = member.process.wait(PATIENCE_S)
        with self._lock:
            plan = self._plan
            if self.members.get(member.rank) is not member or member.rank >= plan.size:
                return
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            why = f"killed by signal {-code} ({name})" if code < 0 else name
            self._give_up(plan.epoch, AbortKind.RANK_FAILURE, member.rank, why)

    def _give_up(self, epoch: int, kind: int, culprit: int, why: str) -> None:
        """Free the ranks of every host, as the root supervisor does."""
        plan = self._plan
        if plan.state.is_aborted:
            return
        if plan.with_memory:
            for host in self._hosts:
                host.page.abort(epoch, kind, culprit, why)
        self._answer_all(plan.state.abort(epoch, why, culprit))

    def close(self) -> None:
        members, self.members = list(self.members.values()), {}
        for member in members:
            member.process.kill()
        for member in members:
            member.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for member in members:
            member.close()
        for host in self._hosts:
            host.close()
