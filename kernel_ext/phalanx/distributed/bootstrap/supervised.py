"""Join a world through the supervisor of this host.

The environment variable `PHALANX_CHANNEL` names a socket to the supervisor. This module handles
joining, recovery and notices of failures; package `rank` handles all other messages.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import phalanx
from phalanx.errors import CollectiveTimeout, DistributedError, RankFailure
from phalanx.protocol import (
    Channel,
    ChannelClosed,
    EpochAborted,
    Join,
    RankAnswer,
    Recover,
    Refused,
    SplitClosed,
    SplitFormed,
    Welcome,
)

from ..connect.endpoints import UNSTRIPED, StripeOptions
from ..connect.rendezvous import ChannelRendezvous, Rendezvous, refusal
from ..control import AbortKind, ControlPage, Deadline, seconds
from ..group.engine import EngineInterface
from ..group.group import Group
from ..group.registry import RetiredEngine
from ..world_spec import MappedHostMemory, WorldSpec, abort_error
from .epoch import group_of_one, is_over, next_epoch
from .other_libraries import agree_on_master, put_master, put_place
from .stacks import show_stacks
from .user_code import UserThreads

CHANNEL_VARIABLE = "PHALANX_CHANNEL"
# Set for the ranks of a script: how often this rank was started again, and how often ranks of the
# script may be started again in all.
RESTART_VARIABLES = ("PHALANX_RESTART_COUNT", "PHALANX_MAX_RESTARTS")
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


def ask_for_world(
    channel: Channel,
    ask: Join | Recover,
    deadline: Deadline,
    on_late: Callable[[Welcome, BaseException], None],
    host_names: Sequence[str] = (),
) -> Welcome:
    """Send a request for a world and wait for the answer.

    ``on_late`` is called with a welcome that arrived after the wait was interrupted. ``host_names``
    (by rank) are the hosts of missing ranks, for error texts. Raises `CollectiveTimeout` (which
    names the missing ranks, if known), `RankFailure` or `DistributedError`.
    """
    try:
        answer = _answer_to(channel, ask, deadline, on_late)
    except ChannelClosed as error:
        raise DistributedError(str(error)) from error
    if isinstance(answer, Refused):
        raise refusal(answer, host_names)
    if not isinstance(answer, Welcome):
        msg = f"the supervisor answered a join with {type(answer).__name__}"
        raise DistributedError(msg)
    return answer


def _answer_to(
    channel: Channel,
    ask: Join | Recover,
    deadline: Deadline,
    on_late: Callable[[Welcome, BaseException], None],
) -> RankAnswer:
    try:
        return channel.request(ask, ask.id, timeout=deadline.remaining())
    except TimeoutError as error:
        late = _withdraw(channel, ask)
        if late is not None and late.id == ask.id:
            return late
        if isinstance(late, Refused) and late.message:
            call = "px.init()" if isinstance(ask, Join) else "px.recover()"
            msg = f"{call} timed out after {deadline}; missing: {late.message}"
        else:
            msg = f"the supervisor of this host did not name a world within {deadline}"
        raise CollectiveTimeout(msg) from error
    except KeyboardInterrupt as error:
        late = _withdraw(channel, ask)
        if isinstance(late, Welcome):
            on_late(late, error)
        raise


def _withdraw(channel: Channel, ask: Join | Recover) -> RankAnswer | None:
    try:
        return channel.withdraw(ask.id)
    except TimeoutError as error:
        _log.warning("request %d was given up: %s", ask.id, error)
        return None


def spec_of_world(welcome: Welcome, addresses: tuple[str, ...] = ()) -> WorldSpec:
    """Describe the world of a welcome; ``addresses`` override the supervisor's."""
    spec = WorldSpec(
        rank=welcome.rank,
        size=welcome.world.size,
        epoch=welcome.epoch,
        workspace=welcome.world.name,
        key=welcome.key,
        hosts=welcome.hosts,
        slots=welcome.slots,
        host_names=welcome.host_names,
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
    return spec.part(welcome.members) if welcome.members else spec


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

        The child's copies must not touch the memory that the rank shares with its peers.
        """
        if self.group is None:
            return
        if self.group._registry is not None:
            self.group._registry.disarm(self.forked())
            return
        # An MPI group: a child must not touch MPI. The extra reference keeps the engine from
        # being destroyed here, because only the rank may end it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group._engine))
        self.group._engine = cast("EngineInterface", RetiredEngine(self.forked()))


# The one exception to "module state is only constants": a process has one world, which cells,
# libraries and the rank's own code share.
_PROCESS = _Process()


def is_supervised() -> bool:
    """Return whether a supervisor started this process as a rank."""
    return _PROCESS.channel is not None or CHANNEL_VARIABLE in os.environ


def supervisor_channel() -> Channel:
    """Return the channel to this host's supervisor, always the same one.

    The first call removes the environment variable, because a process that this one starts is not a
    rank. From then on the supervisor can read this process's Python stacks.
    """
    with _PROCESS.lock:
        _PROCESS.check_pid()
        if _PROCESS.channel is None:
            _PROCESS.channel = open_channel(os.environ.get(CHANNEL_VARIABLE, ""))
            del os.environ[CHANNEL_VARIABLE]
            show_stacks()
        return _PROCESS.channel


def world() -> Group | None:
    """Return the group that this process has joined, or None."""
    return _PROCESS.group


class Loss(NamedTuple):
    """Rank loss in this epoch; ``was_raised``: an operation raised it here."""

    error: RankFailure
    epoch: int
    was_raised: bool


def current_loss() -> Loss | None:
    """Return the rank loss that ended this epoch, or None.

    Waits that are not operations of the group call this.
    """
    group, memory = _PROCESS.group, _PROCESS.memory
    if group is None or memory is None or memory.page is None:
        return None
    spec = group._spec
    reason = memory.page.reason(spec.epoch)
    error = None if reason is None else abort_error(spec, *reason)
    if not isinstance(error, RankFailure):
        return None
    return Loss(error, spec.epoch, _PROCESS.notified_epoch >= spec.epoch)


def count_threads() -> UserThreads:
    """Count only threads started from now on as the user's.

    A script does not call this, so all of its threads count.
    """
    _PROCESS.threads = UserThreads()
    return _PROCESS.threads


def may_others_act() -> bool:
    """Return whether user threads may call the engine during a wait.

    The native engine calls this on the waiting main thread. An exception that a signal handler
    raises in here is the operation's exception.
    """
    return _PROCESS.threads.may_act()


def current_page() -> tuple[ControlPage, int] | None:
    """Return the control page shared with the supervisor, and this rank's slot."""
    memory = _PROCESS.memory
    if _PROCESS.group is None or memory is None or memory.page is None:
        return None
    return memory.page, memory.slot


def join(timeout: float | None = 30.0, *, addresses: tuple[str, ...] = ()) -> Group:
    """Join the current epoch of the world within ``timeout`` seconds.

    A second call joins the world of a new epoch: the public group stays one object and gets the new
    engine. A failed call leaves the old group as it was and may be repeated. ``addresses`` are
    those to listen on from now on; by default the supervisor's choice. A rank that was started
    again waits for the others without a limit: they may compute for long before they notice the
    failure and recover. Raises as `init`.
    """
    limit = seconds(timeout)
    deadline = Deadline(limit)
    with _PROCESS.lock:
        channel = supervisor_channel()
        _PROCESS.addresses = addresses or _PROCESS.addresses
        is_new = _PROCESS.group is None and _was_restarted()
        while True:
            ask = Join(channel.next_id(), os.getpid(), phalanx.__version__)
            try:
                welcome = ask_for_world(channel, ask, deadline, _late)
            except CollectiveTimeout as error:
                if not is_new:
                    raise
                _log.warning("%s; this rank was started again and goes on waiting", error)
                deadline = Deadline(None)
                continue
            if is_new:
                deadline = Deadline(limit)
            group = _PROCESS.group
            if group is not None and group._spec.epoch == welcome.epoch and not is_over(group):
                return group  # another thread of this rank has joined meanwhile
            try:
                return _enter(channel, welcome, deadline)
            except RankFailure:
                if not _are_replaced() or deadline.is_over():
                    raise


def join_anew(timeout: float | None = 30.0) -> Group:
    """Join the world that all ranks form again together.

    The new world is formed when each rank has called this, or `join` in a new process. If the group
    works on every rank, it stays as it is. Raises as `recover`.
    """
    deadline = Deadline(seconds(timeout))
    with _PROCESS.lock:
        channel = supervisor_channel()
        group = _PROCESS.group
        epoch = 0 if group is None else group._spec.epoch
        names = () if group is None else group._spec.every_host_name()
        while True:
            ask = Recover(channel.next_id(), epoch, is_over(group), phalanx.__version__)
            welcome = ask_for_world(channel, ask, deadline, _late, names)
            if group is not None and welcome.epoch == epoch:
                return group
            try:
                return _enter(channel, welcome, deadline)
            except RankFailure:
                if not _are_replaced() or deadline.is_over():
                    raise


def _was_restarted() -> bool:
    """Whether this process replaces one of the same rank, in a script."""
    return os.environ.get(RESTART_VARIABLES[0], "0") != "0"


def _are_replaced() -> bool:
    """Whether the supervisor may start a lost rank again.

    Then a rank that is lost while a world is formed is no failure yet: the next request waits for
    the rank. The supervisor refuses that request at once if the rank does not return.
    """
    return os.environ.get(RESTART_VARIABLES[1], "0") != "0"


def _enter(channel: Channel, welcome: Welcome, deadline: Deadline) -> Group:
    """Form the epoch that the supervisor has named."""
    spec = spec_of_world(welcome, _PROCESS.addresses)
    memory = _memory_for(spec)
    rendezvous = ChannelRendezvous(
        channel,
        epoch=spec.epoch,
        rank=spec.rank,
        size=spec.size,
        host_names=spec.every_host_name(),
    )
    try:
        master = _master_of(spec, rendezvous, deadline)
        group = next_epoch(
            spec,
            rendezvous,
            memory,
            _PROCESS.group,
            deadline=deadline,
            notify=_tell_of_split,
            on_failure=_tell_supervisor,
        )
    except BaseException as error:
        _give_up(spec, memory, error)
        raise
    put_master(master, spec.epoch, welcome.kept)
    if spec.members:
        put_place(spec.rank, spec.size)
    return _adopted(group)


def _master_of(spec: WorldSpec, rendezvous: Rendezvous, deadline: Deadline) -> dict[str, str]:
    """Agree on MASTER_ADDR and MASTER_PORT of this epoch."""
    address = spec.addresses[0] if spec.addresses else "127.0.0.1"
    try:
        return agree_on_master(rendezvous, address, timeout=deadline.remaining())
    except TimeoutError as error:
        raise CollectiveTimeout(str(error)) from error


def _late(welcome: Welcome, error: BaseException) -> None:
    """Abort the epoch of a welcome that arrived after an interrupted wait.

    The other ranks form a world that this rank will not join.
    """
    spec = spec_of_world(welcome)
    _give_up(spec, _memory_for(spec), error)


def adopt(make: Callable[[], Group]) -> Group:
    """Return this process's group; create it on the first call.

    For worlds without a supervisor.
    """
    with _PROCESS.lock:
        _PROCESS.check_pid()
        return _PROCESS.group or _adopted(make())


def _adopted(group: Group) -> Group:
    if _PROCESS.group is None:
        os.register_at_fork(after_in_child=_PROCESS.disarm)
        atexit.register(_PROCESS.leave)
    _PROCESS.group = group
    return group


def alone() -> Group:
    """Return the group of one for a process in no world.

    If that group is over, it gets a new engine.
    """
    with _PROCESS.lock:
        if _PROCESS.group is None:
            _PROCESS.group = group_of_one()
        elif is_over(_PROCESS.group):
            fresh = group_of_one()
            _PROCESS.group._rearm(fresh._engine, fresh._spec, None)
        return _PROCESS.group


def _memory_for(spec: WorldSpec) -> MappedHostMemory:
    """Map this host's memory; map again only if the supervisor changed it."""
    if _PROCESS.memory is None or not _PROCESS.memory.fits(spec):
        fresh = MappedHostMemory(spec)
        if _PROCESS.memory is not None:
            if _PROCESS.group is not None:
                _PROCESS.group.close()
            _PROCESS.memory.close()
        _PROCESS.memory = fresh
    return _PROCESS.memory


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
    _tell_supervisor(spec.epoch, kind, culprit, message)


def _tell_supervisor(epoch: int, kind: int, culprit: int, message: str) -> None:
    """Send the notice of an aborted epoch, once per epoch."""
    channel = _PROCESS.channel
    if channel is None or epoch <= _PROCESS.notified_epoch or _PROCESS.pid != os.getpid():
        return
    _PROCESS.notified_epoch = epoch
    try:
        channel.notify(EpochAborted(epoch, kind, culprit, message))
    except ChannelClosed as error:
        # The operation's own error is on its way to the user and says more.
        _log.warning("epoch %d was aborted, but %s", epoch, error)


def _tell_of_split(notice: SplitFormed | SplitClosed) -> None:
    """Tell the supervisor which ranks form a split.

    With this the supervisor finds deadlocks.
    """
    channel = _PROCESS.channel
    if channel is None or _PROCESS.pid != os.getpid():
        return
    try:
        channel.notify(notice)
    except ChannelClosed as error:
        _log.warning("a split is unknown to the supervisor: %s", error)
