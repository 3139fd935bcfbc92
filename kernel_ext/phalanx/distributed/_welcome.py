"""Asking the supervisor of this host for a world, and what its answer says.

It knows the channel and its messages; how a world is formed, and what this process is, it does not.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from phalanx.errors import CollectiveTimeout, DistributedError
from phalanx.protocol import Channel, ChannelClosed, Join, Recover, Refused, ToRank, Welcome

from ._deadline import Deadline
from ._rendezvous import refusal
from ._stripes import ONE_WAY, Ways
from ._world import WorldSpec

__all__ = ["CHANNEL_VARIABLE", "ask_for_world", "open_channel", "spec_of_world"]

CHANNEL_VARIABLE = "PHALANX_CHANNEL"
_log = logging.getLogger(__name__)


def open_channel(value: str) -> Channel:
    """Return the channel to the supervisor, over the socket whose descriptor is ``value``."""
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
    """Ask, and wait for the answer.

    ``on_late`` is told of a welcome that came after the wait was interrupted; ``host_names`` (by
    rank) say where a rank that is missing runs.

    Raises
    ------
    CollectiveTimeout
        Names the ranks that have not asked, where the world waits for all.
    RankFailure, DistributedError
        The supervisor has refused it, or is gone.
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
) -> ToRank:
    try:
        return channel.request(ask, ask.id, timeout=deadline.remaining())
    except TimeoutError as error:
        late = _withdraw(channel, ask)
        if late is not None and late.id == ask.id:
            return late
        if isinstance(late, Refused) and late.message:
            msg = f"px.recover() timed out after {deadline}; missing: {late.message}"
        else:
            msg = f"the supervisor of this host did not name a world within {deadline}"
        raise CollectiveTimeout(msg) from error
    except KeyboardInterrupt as error:
        late = _withdraw(channel, ask)
        if isinstance(late, Welcome):
            on_late(late, error)
        raise


def _withdraw(channel: Channel, ask: Join | Recover) -> ToRank | None:
    try:
        return channel.withdraw(ask.id)
    except TimeoutError as error:
        _log.warning("request %d was given up: %s", ask.id, error)
        return None


def spec_of_world(welcome: Welcome, addresses: tuple[str, ...] = ()) -> WorldSpec:
    """Describe the world that a rank was welcomed to; ``addresses`` are its own choice of them."""
    return WorldSpec(
        rank=welcome.rank,
        size=welcome.size,
        epoch=welcome.epoch,
        workspace=welcome.workspace,
        key=welcome.key,
        hosts=welcome.hosts,
        slots=welcome.slots,
        host_names=welcome.host_names,
        addresses=addresses or welcome.addresses,
        transport=welcome.transport,
        page_fd=welcome.page_fd,
        region_fds=welcome.region_fds,
        wake_fds=welcome.wake_fds,
        silence_s=welcome.silence_s,
        ways=ONE_WAY if addresses else Ways(welcome.at_once, welcome.connections_per_ip),
    )
