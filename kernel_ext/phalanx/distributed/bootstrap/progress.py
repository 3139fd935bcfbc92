"""Hold this rank before an operation; report progress and last operations.

Package `phalanx.rank` uses this to stop all ranks at the same operation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.errors import NotSupported
from phalanx.protocol import say_message

from ..recorder import Records, records_of
from .supervised import current_page, world


class Called(NamedTuple):
    """Operation: name, number, and peer if it is a message (else -1)."""

    op: str
    peer: int
    number: int

    def __str__(self) -> str:
        """Name the operation as errors do.

        Examples
        --------
        >>> str(Called("all_sum", -1, 7)), str(Called("recv", 2, 3))
        ('all_sum #7', 'recv #3 from rank 2')
        """
        if self.peer < 0:
            return f"{self.op} #{self.number}"
        return say_message(self.op, self.peer, self.number)


class Progress(NamedTuple):
    """Progress of this rank in an epoch.

    ``begun`` has the numbers of the last operations that this rank has begun or submitted. The keys
    are ``(group, peer, is_recv)``, with peer -1 for collectives. ``is_open``: an operation is still
    running. For some microseconds between two submitted operations, the number of a group's last
    one is unknown: `begun` then has the last completed one, and the rank is not reported as held.
    ``held``: the group (0: the world) and operation at which the rank is held.
    """

    epoch: int
    begun: dict[tuple[int, int, bool], int]
    is_open: bool
    current: Called | None
    last: Called | None
    held: tuple[int, Called] | None


def progress() -> Progress | None:
    """Return this rank's progress; None without a supervisor's page."""
    found = current_page()
    if found is None:
        return None
    page, slot = found
    held = page.held(slot)
    epoch, groups, _, messages = page.activity(slot)
    is_exact = held == page.held(slot)  # else the rank was let in meanwhile
    begun: dict[tuple[int, int, bool], int] = {}
    for group, (_, _, done, _, _, number) in groups.items():
        is_exact = is_exact and number is not None
        begun[group, -1, False] = done if number is None else number
    for (group, peer), (sent, received, sends, receives) in messages.items():
        begun[group, peer, False] = sent + sends
        begun[group, peer, True] = received + receives
    open_ones = [Called(op, -1, seq) for op, seq, *_ in groups.values() if seq]
    # Of several groups, take the one with the most operations: the training loop's.
    ended = (Called(op, -1, done) for _, _, done, _, op, _ in groups.values())
    last = max(ended, key=lambda it: it.number, default=None)
    return Progress(
        epoch,
        begun,
        any(seq or queued for _, seq, _, queued, *_ in groups.values()),
        open_ones[0] if open_ones else None,
        last if last is not None and last.number else None,
        (held[0], Called(*held[1:])) if held is not None and is_exact else None,
    )


def hold() -> None:
    """Hold the main thread before its next operation."""
    if found := current_page():
        page, slot = found
        page.hold(slot, threading.main_thread().native_id or 0)


def drop_hold() -> None:
    """Cancel the hold, except of a thread that is held now.

    Such a thread stays held until it is interrupted or released.
    """
    if found := current_page():
        page, slot = found
        page.drop_hold(slot)


def release() -> None:
    """Cancel the hold and let a held main thread continue."""
    if found := current_page():
        page, slot = found
        page.release(slot)


def let_in(epoch: int, begun: Iterable[tuple[int, int, bool, int]]) -> None:
    """Let a held rank run operations up to ``(group, peer, is_recv, number)``."""
    if found := current_page():
        page, slot = found
        for group, peer, is_recv, number in begun:
            page.let_in(slot, epoch, group, number, peer, is_recv)


def trace() -> Records:
    """Return the last operations of this rank from its flight recorder.

    The recorder is always on. Call this from any thread, also while an operation runs and after a
    failure. The recorder holds 4096 operations of all groups, including messages. New operations
    overwrite the oldest, but never one that still runs.

    Returns
    -------
    record array, oldest first, empty in a world of one
        ``number``: counts the operations of this rank process, including those overwritten.

        ``epoch``, ``seq``: epoch and number of the operation in its group, as in errors
        (``all_sum #12``). For a message: its number among those in this direction between the two
        ranks.

        ``op``, ``element`` (the dtype): names. ``algorithm``: on a host ``"inline"`` or
        ``"staged"``; between hosts ``"mesh"``, ``"direct"``, ``"ring"``, ``"chain"`` or
        ``"pairwise"``; or both (``"staged+ring"``). For a message ``"queue"`` (in shared memory) or
        ``"wire"``.

        ``bytes``: size of the array that this rank gave, or of the message.

        ``group``: 0 is the world; a split has a number of its own, the same on all its ranks.
        ``channel``: the part of the shared memory that the group uses.

        ``peer``: the root of a broadcast or the other rank of a message, as ranks of the world;
        else -1.

        ``entered_ns``: time at which this rank began the operation. ``arrived_ns``: time at which
        this rank knew that all ranks had begun it (for a message: that the sender had).
        ``done_ns``: time at which this rank finished it. All in nanoseconds of `time.monotonic_ns`,
        which all processes of a machine share; 0: unknown, or not yet.

        ``state``: ``"running"``, ``"done"`` or ``"failed"``. ``failure``: the cause of a failure,
        such as ``"timeout"``.

    Raises
    ------
    NotSupported
        The world is MPI's, which has tools of its own.

    Notes
    -----
    Cost of recording: three clock reads per operation.

    Examples
    --------
    >>> import phalanx as px
    >>> last = px.trace()
    >>> slow = last[last.done_ns - last.entered_ns > 1e6]
    >>> waits_ms = (last.arrived_ns - last.entered_ns) / 1e6
    """
    group = world()
    if group is None or group.size() == 1:
        return records_of(b"")
    registry = group._current.registry
    if registry is None:
        msg = "a world of MPI has no flight recorder; run it without --backend mpi to have one"
        raise NotSupported(msg)
    memory = registry.memory
    return records_of(b"" if memory.page is None else memory.page.trace(memory.slot)[0])
