"""Join a world through the supervisor of this host.

The environment variable `PHALANX_CHANNEL` names a socket to the supervisor. This module handles
joining, recovery and notices of failures; package `rank` handles all other messages.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import phalanx
from phalanx.errors import CollectiveTimeout, DistributedError, RankFailure
from phalanx.protocol import (
    Channel,
    ChannelClosed,
    EpochAborted,
    Join,
    Recover,
    SplitClosed,
    SplitFormed,
    Welcome,
)
from phalanx.protocol.rank import RESTART_VARIABLES

from ..connect.endpoints import UNSTRIPED, StripeOptions
from ..connect.rendezvous import ChannelRendezvous, Unanswered, ask
from ..control import AbortKind, ControlPage, Deadline, seconds
from ..group.epoch import group_of_one, next_epoch
from ..group.group import Group
from ..world_spec import MappedHostMemory, WorldSpec, abort_error
from .other_libraries import free_port, place_variables, put_master
from .stack_listener import show_stacks
from .user_threads import UserThreads

CHANNEL_VARIABLE = "PHALANX_CHANNEL"
_log = logging.getLogger(__name__)


def open_channel(value: str) -> Channel:
    """Open the channel to the supervisor on descriptor ``value``."""
    try:
        sock = socket.socket(fileno=int(value))
        sock.set_inheritable(False)
        sock.setblocking(True)
    except (OSError, ValueError) as error:
        msg = (
            f"{CHANNEL_VARIABLE}={value!r} names no open socket: "
            "was this process started by a Phalanx supervisor?"
        )
        raise DistributedError(msg) from error
    return Channel(sock)


def spec_of_world(welcome: Welcome, addresses: tuple[str, ...] = ()) -> WorldSpec:
    """Describe the world of a welcome; ``addresses`` override the supervisor's."""
    members = welcome.members or tuple(range(welcome.world.size))
    return WorldSpec(
        rank=members.index(welcome.rank),
        members=members,
        epoch=welcome.epoch,
        workspace=welcome.world.name,
        key=welcome.key,
        hosts=tuple(welcome.hosts[member] for member in members),
        slots=tuple(welcome.slots[member] for member in members),
        host_names=tuple(welcome.host_names[host] for host in welcome.hosts),
        addresses=addresses or welcome.addresses,
        transport=welcome.world.transport,
        page_fd=welcome.page_fd,
        region_fds=welcome.region_fds,
        wake_fds=welcome.wake_fds,
        heartbeat_timeout_s=welcome.world.heartbeat_timeout_s,
        striping=UNSTRIPED
        if addresses
        else StripeOptions(welcome.at_once, welcome.world.connections_per_ip),
    )


class _Process:
    """Role of this process: a rank with a supervisor, or alone.

    The lock guards every field. It is held while a world is joined, so that two threads join once.
    `group` is written under the lock and read without it: a reader sees None or a complete group.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.channel: Channel | None = None
        self.memory: MappedHostMemory | None = None
        self.group: Group | None = None
        self.pid = os.getpid()
        self.notified_epoch = -1
        self.addresses: tuple[str, ...] = ()  # to listen on; empty: the supervisor's choice
        self.threads = UserThreads((threading.main_thread(),))

    def forked(self) -> str:
        """Return the error text for a child of fork."""
        return (
            f"this process is a fork of process {self.pid}, which is the rank; "
            "call collectives there"
        )

    def check_pid(self) -> None:
        """Raise in a child of fork: the parent owns channel and memory."""
        if self.pid != os.getpid():
            raise DistributedError(self.forked())

    def leave(self) -> None:
        """Mark this rank as gone, so that no peer awaits its heartbeat."""
        if self.memory is not None and self.pid == os.getpid():
            self.memory.leave()

    def disarm(self) -> None:
        """Disable the groups in a child of fork.

        The child's copies must not touch the memory that the rank shares with its peers. Engines of
        MPI see the fork themselves.
        """
        registry = None if self.group is None else self.group._current.registry
        if registry is not None:
            registry.disarm(self.forked())


# The one exception to "module state is only constants": a process has one world, which cells,
# libraries and the rank's own code share.
PROCESS = _Process()


def is_supervised() -> bool:
    """Return whether a supervisor started this process as a rank."""
    return PROCESS.channel is not None or CHANNEL_VARIABLE in os.environ


def supervisor_channel(*, is_rank: bool = False) -> Channel:
    """Return the channel to this host's supervisor, always the same one.

    The first call removes the environment variable, because a process that this one starts is not a
    rank. From then on the supervisor can read this process's Python stacks. ``is_rank``: this
    process is the rank, although another may have imported this module and forked it.
    """
    with PROCESS.lock:
        if is_rank:
            PROCESS.pid = os.getpid()
        PROCESS.check_pid()
        if PROCESS.channel is None:
            PROCESS.channel = open_channel(os.environ.get(CHANNEL_VARIABLE, ""))
            del os.environ[CHANNEL_VARIABLE]
            show_stacks()
        return PROCESS.channel


def world() -> Group | None:
    """Return the group that this process has joined, or None."""
    return PROCESS.group


class Loss(NamedTuple):
    """Rank loss in this epoch; ``was_raised``: an operation raised it here."""

    error: RankFailure
    epoch: int
    was_raised: bool


def current_loss() -> Loss | None:
    """Return the rank loss that ended this epoch, or None.

    Waits that are not operations of the group call this.
    """
    group, memory = PROCESS.group, PROCESS.memory
    if group is None or memory is None or memory.page is None:
        return None
    spec = group._current.spec
    reason = memory.page.reason(spec.epoch)
    error = None if reason is None else abort_error(spec, *reason)
    if not isinstance(error, RankFailure):
        return None
    return Loss(error, spec.epoch, PROCESS.notified_epoch >= spec.epoch)


def count_threads() -> UserThreads:
    """Count only threads started from now on as the user's.

    A script does not call this, so all of its threads count.
    """
    PROCESS.threads = UserThreads()
    return PROCESS.threads


def may_others_act() -> bool:
    """Return whether user threads may call the engine during a wait.

    The native engine calls this on the waiting main thread. An exception that a signal handler
    raises in here is the operation's exception.
    """
    return PROCESS.threads.may_act()


def current_page() -> tuple[ControlPage, int] | None:
    """Return the control page shared with the supervisor, and this rank's slot."""
    memory = PROCESS.memory
    if PROCESS.group is None or memory is None or memory.page is None:
        return None
    return memory.page, memory.slot


def join(
    timeout: float | None = 30.0, *, addresses: tuple[str, ...] = (), recovers: bool = False
) -> Group:
    """Join the current epoch of the world within ``timeout`` seconds.

    A second call joins the world of a new epoch: the public group stays one object and gets the new
    engine. A failed call leaves the old group as it was and may be repeated. ``addresses`` are
    those to listen on from now on; by default the supervisor's choice. A rank that was started
    again waits for the others without a limit: they may compute for long before they notice the
    failure and recover. Raises as `init`.

    ``recovers``: the new world is formed when each rank has called this, or, in a new process,
    without ``recovers``. If the group works on every rank, it stays as it is.
    """
    limit = seconds(timeout)
    deadline = Deadline(limit)
    with PROCESS.lock:
        channel = supervisor_channel()
        PROCESS.addresses = addresses or PROCESS.addresses
        while True:
            group, number = PROCESS.group, channel.next_id()
            if recovers:
                epoch = 0 if group is None else group._current.spec.epoch
                is_over = group is None or group._current.is_over
                request: Join | Recover = Recover(number, epoch, is_over, phalanx.__version__)
            else:
                request = Join(number, os.getpid(), phalanx.__version__)
            is_new = not recovers and group is None and _is_set(RESTART_VARIABLES[0])
            try:
                welcome = _welcome(channel, request, deadline)
            except CollectiveTimeout as error:
                if not is_new:
                    raise
                _log.warning("%s; this rank was started again and goes on waiting", error)
                deadline = Deadline(None)
                continue
            if is_new:
                deadline = Deadline(limit)
            if (
                group is not None
                and group._current.spec.epoch == welcome.epoch
                and (recovers or not group._current.is_over)
            ):
                return group  # no rank has to recover, or another thread of this rank has joined
            try:
                return _enter(channel, welcome, deadline)
            except RankFailure:
                # If the supervisor may start the lost rank again, this is no failure yet: the next
                # request waits for the rank, and is refused at once if the rank does not return.
                if not _is_set(RESTART_VARIABLES[1]) or deadline.is_over():
                    raise


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") != "0"


def _welcome(channel: Channel, request: Join | Recover, deadline: Deadline) -> Welcome:
    """Ask the supervisor for a world."""
    names = () if PROCESS.group is None else PROCESS.group._current.spec.host_names
    try:
        answer = ask(channel, request, timeout=deadline.remaining(), host_names=names)
    except Unanswered as late:
        if late.missing:
            call = "px.init()" if isinstance(request, Join) else "px.recover()"
            msg = f"{call} timed out after {deadline}; missing: {late.missing}"
        else:
            msg = f"the supervisor of this host did not name a world within {deadline}"
        raise CollectiveTimeout(msg) from late
    except KeyboardInterrupt as error:
        # The other ranks may form a world already, which this rank will not join.
        with suppress(TimeoutError, ChannelClosed):
            answer = channel.withdraw(request.id)
            if isinstance(answer, Welcome):
                spec = spec_of_world(answer)
                _give_up(spec, _memory_for(spec), error)
        raise
    if not isinstance(answer, Welcome):
        msg = f"the supervisor answered a join with {type(answer).__name__}"
        raise DistributedError(msg)
    return answer


def _enter(channel: Channel, welcome: Welcome, deadline: Deadline) -> Group:
    """Form the epoch that the supervisor has named."""
    spec = spec_of_world(welcome, PROCESS.addresses)
    memory = _memory_for(spec)
    rendezvous = ChannelRendezvous(
        channel, epoch=spec.epoch, size=spec.size, host_names=spec.host_names
    )
    address = spec.addresses[0] if spec.addresses else "127.0.0.1"
    try:
        group, master = next_epoch(
            spec,
            rendezvous,
            memory,
            PROCESS.group,
            deadline=deadline,
            report=_report,
            master=f"{free_port()} {address}" if spec.rank == 0 else "",
        )
    except BaseException as error:
        _give_up(spec, memory, error)
        raise
    put_master(master, spec.epoch, welcome.kept)
    if welcome.members:
        os.environ.update(place_variables(spec.rank, spec.size))
    return _adopted(group)


def adopt(make: Callable[[], Group]) -> Group:
    """Return this process's group; create it on the first call.

    For worlds without a supervisor.
    """
    with PROCESS.lock:
        PROCESS.check_pid()
        return PROCESS.group or _adopted(make())


def _adopted(group: Group) -> Group:
    if PROCESS.group is None:
        os.register_at_fork(after_in_child=PROCESS.disarm)
        atexit.register(PROCESS.leave)
    PROCESS.group = group
    return group


def alone() -> Group:
    """Return the group of one for a process in no world.

    If that group is over, it gets a new engine.
    """
    with PROCESS.lock:
        if PROCESS.group is None:
            PROCESS.group = group_of_one()
        elif PROCESS.group._current.is_over:
            PROCESS.group._enter(group_of_one()._current)
        return PROCESS.group


def _memory_for(spec: WorldSpec) -> MappedHostMemory:
    """Map this host's memory; map again only if the supervisor changed it."""
    if PROCESS.memory is None or not PROCESS.memory.fits(spec):
        fresh = MappedHostMemory(spec)
        if PROCESS.memory is not None:
            if PROCESS.group is not None:
                PROCESS.group.close()
            PROCESS.memory.close()
        PROCESS.memory = fresh
    return PROCESS.memory


def _give_up(spec: WorldSpec, memory: MappedHostMemory, error: BaseException) -> None:
    """Abort the epoch at once if this rank cannot join it.

    The epoch can never be complete, so the other ranks must stop waiting.
    """
    if isinstance(error, RankFailure):
        kind, culprit, message = AbortKind.RANK_FAILURE, error.rank, error.reason
    elif isinstance(error, CollectiveTimeout):
        kind, culprit, message = AbortKind.TIMEOUT, -1, str(error)
    elif isinstance(error, KeyboardInterrupt):
        kind, culprit = AbortKind.INTERRUPTED, spec.me
        message = f"rank {spec.me} was interrupted while it joined"
    else:
        kind, culprit = AbortKind.ERROR, spec.me
        message = f"rank {spec.me} could not join: {error}"
    if memory.page is not None:
        memory.page.abort(spec.epoch, kind, culprit, message)
    _report(EpochAborted(spec.epoch, kind, culprit, message))


def _report(notice: EpochAborted | SplitFormed | SplitClosed) -> None:
    """Tell the supervisor of splits, and once of an aborted epoch."""
    if PROCESS.channel is None or PROCESS.pid != os.getpid():
        return
    if isinstance(notice, EpochAborted):
        if notice.epoch <= PROCESS.notified_epoch:
            return
        PROCESS.notified_epoch = notice.epoch
    try:
        PROCESS.channel.notify(notice)
    except ChannelClosed as error:
        # The error of the operation, if one has failed, is on its way to the user and says more.
        _log.warning("%s could not be reported: %s", type(notice).__name__, error)
