"""Joining the world that this process was started in, through the supervisor of its host.

The supervisor is reached over the socket pair that `PHALANX_CHANNEL` names; whatever else it has
to say to a rank is the rank room's.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, cast

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

from ._control import AbortKind
from ._deadline import Deadline, seconds
from ._engine import Engine
from ._epoch import is_over, next_epoch
from ._family import Gone
from ._group import Group
from ._one import group_of_one
from ._rendezvous import ChannelRendezvous
from ._stacks import show_stacks
from ._welcome import CHANNEL_VARIABLE, ask_for_world, open_channel, spec_of_world
from ._world import HostMemory, WorldSpec, abort_error

__all__ = [
    "CHANNEL_VARIABLE",
    "Loss",
    "adopt",
    "alone",
    "current_loss",
    "is_supervised",
    "join",
    "join_anew",
    "supervisor_channel",
    "world",
]

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
        self.addresses: tuple[str, ...] = ()  # to listen on; empty: those the supervisor says

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

    def leave(self) -> None:
        """At the end of the interpreter: nobody is to wait for signs of life any more."""
        if self.memory is not None and self.pid == os.getpid():
            self.memory.leave()

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
            _PROCESS.channel = open_channel(os.environ.get(CHANNEL_VARIABLE, ""))
            del os.environ[CHANNEL_VARIABLE]
            show_stacks()
        return _PROCESS.channel


def world() -> Group | None:
    """Return the group this process has joined, if it has."""
    return _PROCESS.group


class Loss(NamedTuple):
    """A rank was lost in this epoch; ``is_told``: an operation has raised it here."""

    error: RankFailure
    epoch: int
    is_told: bool


def current_loss() -> Loss | None:
    """Return the loss that ended this epoch, for waits that are no operations; None while it stands."""
    group, memory = _PROCESS.group, _PROCESS.memory
    if group is None or memory is None or memory.page is None:
        return None
    spec = group._spec
    reason = memory.page.reason(spec.epoch)
    error = None if reason is None else abort_error(spec, *reason)
    if not isinstance(error, RankFailure):
        return None
    return Loss(error, spec.epoch, _PROCESS.told_epoch >= spec.epoch)


def join(timeout: float | None = 30.0, *, addresses: tuple[str, ...] = ()) -> Group:
    """Join the world as it stands now; called again, the world of a new epoch.

    The public group stays one object: it is armed anew, so that variables and splits that hold it
    go on. A failed call leaves the old group as it was, failed or not, and may be repeated.

    Parameters
    ----------
    timeout : float, optional
        Seconds for all of it; ``None``: no limit.
    addresses : tuple of str, optional
        To listen on from now on; by default those that the supervisor says.

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
        _PROCESS.addresses = addresses or _PROCESS.addresses
        ask = Join(channel.next_id(), os.getpid(), phalanx.__version__)
        welcome = ask_for_world(channel, ask, deadline, _late)
        group = _PROCESS.group
        if group is not None and group._spec.epoch == welcome.epoch and not is_over(group):
            return group  # another thread of this rank has joined with the others meanwhile
        return _enter(channel, welcome, deadline)


def join_anew(timeout: float | None = 30.0) -> Group:
    """Join the world that all ranks form anew when each of them has called this.

    Where the group is good on every rank, it is left as it is.

    Parameters
    ----------
    timeout : float, optional
        Seconds for all of it; ``None``: no limit.

    Returns
    -------
    Group
        As `join`.

    Raises
    ------
    CollectiveTimeout
        Names the ranks that did not call it in time.
    RankFailure, DistributedError
        A rank is dead or cannot call it any more, or the world cannot be formed.
    """
    deadline = Deadline(seconds(timeout))
    with _PROCESS.lock:
        channel = supervisor_channel()
        group = _PROCESS.group
        epoch = 0 if group is None else group._spec.epoch
        ask = Recover(channel.next_id(), epoch, is_over(group), phalanx.__version__)
        names = () if group is None else group._spec.rank_host_names()
        welcome = ask_for_world(channel, ask, deadline, _late, names)
        if group is not None and welcome.epoch == epoch:
            return group
        return _enter(channel, welcome, deadline)


def _enter(channel: Channel, welcome: Welcome, deadline: Deadline) -> Group:
    """Form the epoch that the supervisor has named."""
    spec = spec_of_world(welcome, _PROCESS.addresses)
    memory = _memory_for(spec)
    rendezvous = ChannelRendezvous(
        channel,
        epoch=spec.epoch,
        rank=spec.rank,
        size=spec.size,
        host_names=spec.rank_host_names(),
    )
    try:
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
    return _adopted(group)


def _late(welcome: Welcome, error: BaseException) -> None:
    """After a wait for it was interrupted: the others form a world, and this rank will not come."""
    spec = spec_of_world(welcome)
    _give_up(spec, _memory_for(spec), error)


def adopt(make: Callable[[Group | None], Group], *, is_anew: bool = False) -> Group:
    """Return this process's group; the first time, make it of a world without a supervisor.

    ``is_anew``: make it again, of what it was before.
    """
    with _PROCESS.lock:
        _PROCESS.check_pid()
        if _PROCESS.group is None or is_anew:
            return _adopted(make(_PROCESS.group))
        return _PROCESS.group


def _adopted(group: Group) -> Group:
    if _PROCESS.group is None:
        os.register_at_fork(after_in_child=_PROCESS.disarm)
        atexit.register(_PROCESS.leave)
    _PROCESS.group = group
    return group


def alone() -> Group:
    """Return the group of one of a process that is in no world; one that is over is made anew."""
    with _PROCESS.lock:
        if _PROCESS.group is None:
            _PROCESS.group = group_of_one()
        elif is_over(_PROCESS.group):
            fresh = group_of_one()
            _PROCESS.group._rearm(fresh._engine, fresh._spec, None)
        return _PROCESS.group


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
