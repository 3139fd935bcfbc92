"""Joining the world that this process was started in, through the supervisor of its host.

The supervisor is reached over the socket pair that `PHALANX_CHANNEL` names; whatever else it has
to say to a rank is the rank room's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import cast

import phalanx
from phalanx.errors import CollectiveTimeout, DistributedError, RankFailure
from phalanx.protocol import (
    Channel,
    ChannelClosed,
    EpochAborted,
    Join,
    Refused,
    SplitClosed,
    SplitFormed,
    ToRank,
    Welcome,
)

from ._control import AbortKind
from ._deadline import Deadline
from ._engine import Engine
from ._family import Family, Gone
from ._group import Group, group_of_one, seconds
from ._rendezvous import ChannelRendezvous, refusal
from ._stacks import show_stacks
from ._world import HostMemory, WorldSpec, form_group

__all__ = ["CHANNEL_VARIABLE", "adopt", "is_supervised", "join", "supervisor_channel", "world"]

CHANNEL_VARIABLE = "PHALANX_CHANNEL"
_log = logging.getLogger(__name__)


class _Process:
    """What this process is: a rank with a supervisor, or alone. One lock guards every field.

    The lock is held while a world is joined, so that two threads join once; `group` is written
    under it and read without: a reader sees None or a group that stands.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.channel: Channel | None = None
        self.memory: HostMemory | None = None
        self.group: Group | None = None
        self.pid = os.getpid()
        self.told_epoch = -1

    def forked(self) -> str:
        """Say why this process cannot communicate, if it is a child of fork."""
        return (
            f"this process is a fork of process {self.pid}, which is the rank; "
            "call collectives there"
        )

    def check_pid(self) -> None:
        """Refuse a child of fork: its parent is the rank, and owns channel and memory."""
        if self.pid != os.getpid():
            raise DistributedError(self.forked())

    def disarm(self) -> None:
        """In a child of fork: its copies of the groups must not touch what the rank shares."""
        if self.group is None:
            return
        if self.group._family is not None:
            self.group._family.disarm(self.forked())
            return
        # Of MPI, which a child must not touch. Never destroyed here: its end is the rank's.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group._engine))
        self.group._engine = cast("Engine", Gone(self.forked()))


# The one exception to "module state is only constants": a process has one world, and cells,
# libraries and the rank's machinery must all meet in it.
_PROCESS = _Process()


def is_supervised() -> bool:
    """Whether a supervisor started this process as a rank."""
    return _PROCESS.channel is not None or CHANNEL_VARIABLE in os.environ


def supervisor_channel() -> Channel:
    """Return the channel to the supervisor of this host; the same one each time.

    The environment variable is taken away with it: a process that this one starts is no rank.
    From then on the supervisor can see where this process's Python code is.

    Raises
    ------
    DistributedError
        No supervisor started this process, or its descriptor is not open.
    """
    with _PROCESS.lock:
        _PROCESS.check_pid()
        if _PROCESS.channel is None:
            _PROCESS.channel = _open_channel(os.environ.get(CHANNEL_VARIABLE, ""))
            del os.environ[CHANNEL_VARIABLE]
            show_stacks()
        return _PROCESS.channel


def _open_channel(value: str) -> Channel:
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


def world() -> Group | None:
    """Return the group this process has joined, if it has."""
    return _PROCESS.group


def join(timeout: float | None = 30.0) -> Group:
    """Join the world as it stands now; called again, the world of a new epoch.

    The public group stays one object: it is armed anew, so that variables and splits that hold it
    go on. A failed call leaves the old group as it was, failed or not, and may be repeated.

    Parameters
    ----------
    timeout : float, optional
        Seconds for all of it; ``None``: no limit.

    Returns
    -------
    Group
        Every rank of it has joined.

    Raises
    ------
    CollectiveTimeout
        Names the ranks that did not come in time.
    RankFailure, DistributedError
        A rank or the supervisor was lost, or the world cannot be formed.
    """
    deadline = Deadline(seconds(timeout))
    with _PROCESS.lock:
        channel = supervisor_channel()
        spec = _spec_of(_ask_for_world(channel, deadline))
        memory = _memory_for(spec)
        if _PROCESS.group is not None:
            # A thread that has not left the old epoch yet would write into the new one's memory.
            _PROCESS.group._engine.settle()
        rendezvous = ChannelRendezvous(
            channel,
            epoch=spec.epoch,
            rank=spec.rank,
            size=spec.size,
            host_names=spec.rank_host_names(),
        )
        try:
            engine = form_group(spec, rendezvous, memory, timeout=deadline.remaining())
        except BaseException as error:
            _give_up(spec, memory, error)
            raise
        if _PROCESS.group is None:
            os.register_at_fork(after_in_child=_PROCESS.disarm)
            _PROCESS.group = Group(
                engine, spec, _tell_supervisor, Family(spec, memory, _tell_of_split)
            )
        else:
            _PROCESS.group._rearm(engine, spec, Family(spec, memory, _tell_of_split))
        return _PROCESS.group


def adopt(make: Callable[[], Group]) -> Group:
    """Return this process's group; the first time, make it of a world without a supervisor."""
    with _PROCESS.lock:
        _PROCESS.check_pid()
        if _PROCESS.group is None:
            _PROCESS.group = make()
            os.register_at_fork(after_in_child=_PROCESS.disarm)
        return _PROCESS.group


def alone() -> Group:
    """Return the group of one of a process that is in no world; a closed one is made anew."""
    with _PROCESS.lock:
        if _PROCESS.group is None:
            _PROCESS.group = group_of_one()
        elif _PROCESS.group._engine.is_closed:
            fresh = group_of_one()
            _PROCESS.group._rearm(fresh._engine, fresh._spec, None)
        return _PROCESS.group


def _ask_for_world(channel: Channel, deadline: Deadline) -> Welcome:
    ask = Join(channel.next_id(), os.getpid(), phalanx.__version__)
    try:
        answer: ToRank = channel.request(ask, ask.id, timeout=deadline.remaining())
    except ChannelClosed as error:
        raise DistributedError(str(error)) from error
    except TimeoutError as error:
        msg = f"the supervisor of this host did not name a world within {deadline}"
        raise CollectiveTimeout(msg) from error
    if isinstance(answer, Refused):
        raise refusal(answer, ())
    if not isinstance(answer, Welcome):
        msg = f"the supervisor answered a join with {type(answer).__name__}"
        raise DistributedError(msg)
    return answer


def _spec_of(welcome: Welcome) -> WorldSpec:
    return WorldSpec(
        rank=welcome.rank,
        size=welcome.size,
        epoch=welcome.epoch,
        workspace=welcome.workspace,
        key=welcome.key,
        hosts=welcome.hosts,
        slots=welcome.slots,
        host_names=welcome.host_names,
        addresses=welcome.addresses,
        transport=welcome.transport,
        page_fd=welcome.page_fd,
        region_fds=welcome.region_fds,
        wake_fds=welcome.wake_fds,
    )


def _memory_for(spec: WorldSpec) -> HostMemory:
    """Map this host's memory once; again only if the supervisor speaks of another."""
    if _PROCESS.memory is None or not _PROCESS.memory.fits(spec):
        fresh = HostMemory(spec)
        if _PROCESS.memory is not None:
            if _PROCESS.group is not None:
                _PROCESS.group.close()
            _PROCESS.memory.close()
        _PROCESS.memory = fresh
    return _PROCESS.memory


def _give_up(spec: WorldSpec, memory: HostMemory, error: BaseException) -> None:
    """Free the others at once: an epoch that one rank could not join will never stand."""
    if isinstance(error, RankFailure):
        kind, culprit, message = AbortKind.RANK_FAILURE, error.rank, error.reason
    elif isinstance(error, CollectiveTimeout):
        kind, culprit, message = AbortKind.TIMEOUT, -1, str(error)
    elif isinstance(error, KeyboardInterrupt):
        kind, culprit = AbortKind.INTERRUPTED, spec.rank
        message = f"rank {spec.rank} was interrupted while it joined"
    else:
        kind, culprit = AbortKind.ERROR, spec.rank
        message = f"rank {spec.rank} could not join: {error}"
    if memory.page is not None:
        memory.page.abort(spec.epoch, kind, culprit, message)
    _tell_supervisor(spec.epoch, kind, culprit, message)


def _tell_supervisor(epoch: int, kind: int, culprit: int, message: str) -> None:
    """Send the notice of an aborted epoch, once per epoch."""
    channel = _PROCESS.channel
    if channel is None or epoch <= _PROCESS.told_epoch or _PROCESS.pid != os.getpid():
        return
    _PROCESS.told_epoch = epoch
    try:
        channel.notify(EpochAborted(epoch, kind, culprit, message))
    except ChannelClosed as error:
        # The operation's own error is on its way to the user and says more.
        _log.warning("epoch %d was aborted, but %s", epoch, error)


def _tell_of_split(notice: SplitFormed | SplitClosed) -> None:
    """Tell the supervisor who waits with whom, so that it can find waits that never end."""
    channel = _PROCESS.channel
    if channel is None or _PROCESS.pid != os.getpid():
        return
    try:
        channel.notify(notice)
    except ChannelClosed as error:
        _log.warning("a split is unknown to the supervisor: %s", error)
