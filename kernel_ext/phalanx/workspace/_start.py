"""What a workspace is started with, and the wait until its ranks answer.

It checks a user's options and pings ranks; it starts nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import zmq

from phalanx.errors import DistributedError
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor import check_name

from ._cell import Cell
from ._checks import checked_seconds, checked_text, checked_whole
from ._dispatch import Dispatch
from ._ranks import name_ranks

__all__ = [
    "HERE",
    "LINGER_S",
    "SILENCE_S",
    "StartOptions",
    "checked_options",
    "starting",
    "wait_answering",
]

PING_INTERVAL_S = 0.1
LINGER_S = 600.0  # design.md section 2: long enough to come back after a restart
HERE = RemoteOptions()  # nothing is far
SILENCE_S = 5.0  # the longest that a frozen rank stays unnamed, unless asked otherwise


@dataclass(frozen=True)
class StartOptions:
    """The options of `Workspace.start`, checked.

    An operation that lasts for ``quiet_s`` is told of in one line (design.md section 5). A name
    that was given (``is_named``) is taken or refused, another gets a number if need be. ``hosts``
    are empty where all ranks run on this machine.
    """

    name: str
    ranks: int
    linger_s: float
    silence_s: float
    transport: str
    quiet_s: float = 10.0
    is_named: bool = False
    auto_restart: bool = False
    hosts: tuple[HostPlan, ...] = ()
    remote: RemoteOptions = HERE


def checked_options(
    ranks: int,
    name: str | None,
    linger_s: float,
    silence_s: float,
    transport: str,
    *,
    auto_restart: bool = False,
    hosts: tuple[HostPlan, ...] = (),
    remote: RemoteOptions = HERE,
) -> StartOptions:
    """Check a user's options; `ValueError` in one line where one is out of range."""
    if hosts:
        ranks = sum(plan.ranks for plan in hosts)
    ranks = checked_whole("the number of ranks", ranks, 1)
    checked_seconds("linger", linger_s)
    checked_seconds("silence", silence_s, is_above_0=True)
    transport = os.environ.get("PHALANX_TRANSPORT", transport)
    if transport not in ("any", "tcp"):
        msg = f"transport is {transport!r}; it must be 'any' or 'tcp'"
        raise ValueError(msg)
    chosen = f"local-{os.getpid()}" if name is None else check_name(checked_text("name", name))
    return StartOptions(
        chosen,
        ranks,
        linger_s,
        silence_s,
        transport,
        is_named=name is not None,
        auto_restart=bool(auto_restart),
        hosts=hosts,
        remote=remote,
    )


@contextmanager
def starting() -> Iterator[None]:
    """Say in one line what this machine refuses to a start: descriptors, memory, threads."""
    try:
        yield
    except DistributedError:  # some are OSErrors as well
        raise
    except (OSError, MemoryError, zmq.ZMQError, RuntimeError) as error:
        # "can't start new thread" is all that Python says of a refused thread.
        if type(error) is RuntimeError and "thread" not in str(error):
            raise
        msg = f"the ranks cannot be started from here: {getattr(error, 'strerror', '') or error}"
        raise DistributedError(msg) from error


def wait_answering(
    dispatch: Dispatch,
    name: str,
    size: int,
    timeout_s: float,
    *,
    ranks: Collection[int] | None = None,
    gone: Callable[[], Collection[int]] = tuple,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Repeat an empty cell until each rank's answer has come on both channels.

    A router drops what it has no route for yet (ipyparallel's issue 476), and a subscription
    takes a moment to arrive: before both have worked once, no cell is sent. ``ranks``: only of these;
    ``gone`` are those that have died meanwhile.

    Raises
    ------
    KeyboardInterrupt
        ``stopped`` says that a person does not want to wait.
    DistributedError
        Ranks did not answer within ``timeout_s``.
    """
    cell = Cell(name, tuple(range(size)) if ranks is None else tuple(sorted(ranks)))
    missing = set(cell.ranks)
    deadline_s = time.monotonic() + timeout_s
    try:
        while missing:
            if stopped():
                raise KeyboardInterrupt
            if time.monotonic() > deadline_s:
                msg = f"{name_ranks(missing)} started, but {_does(missing)} not answer"
                raise DistributedError(msg)
            for rank in missing:
                dispatch.execute(cell, rank, "", silent=True)
            missing -= cell.wait_ended(missing, PING_INTERVAL_S)
            missing.difference_update(gone())
    finally:
        dispatch.forget(cell)


def _does(ranks: Collection[int]) -> str:
    return "does" if len(ranks) == 1 else "do"
