"""Declare the native engine for type checkers.

Only `phalanx.distributed` imports the engine. The engine moves bytes between descriptors and
mappings that its caller has opened.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

# Kinds of an abort of an epoch (`ControlPage.abort`).
ABORT_RANK_FAILURE: int
ABORT_MISMATCH: int
ABORT_TIMEOUT: int
ABORT_INTERRUPTED: int
ABORT_ERROR: int
ABORT_CLOSED: int
ABORT_LINK_BROKEN: int  # the culprit is two ranks: the lost one << 16 | the one that reports it

@final
class ControlPage:
    """Abort flags and doorbells in shared memory of one host.

    The supervisor and the ranks of the host share this memory file. There are ``slots`` rank slots
    and one more author, number ``slots``: the supervisor.
    """

    @staticmethod
    def nbytes(slots: int, ranks: int = 0) -> int: ...
    @staticmethod
    def format(fd: int, slots: int, ranks: int = 0) -> None:
        """Size the file (if needed) and write an empty page.

        The owner calls this once. ``ranks`` is the number of ranks of the world; 0: as many as
        slots.
        """

    def __init__(self, fd: int, *, slots: int, author: int, wake_fds: Sequence[int] = ()) -> None:
        """Map the page; the caller keeps ``fd``.

        ``wake_fds[slot]`` are descriptors of `make_wake`; the page duplicates them.
        """

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> bool:
        """Abort ``epoch`` and all older epochs; wake their waiting ranks.

        Wakes the ranks of this host. Lock-free and async: works without action of the ranks. True
        if this call was the first for the epoch. Text over 500 bytes is cut at a character.
        """

    def reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted, else None."""

    def activity(
        self, slot: int
    ) -> tuple[
        int,
        dict[int, tuple[str, int, int, int, str, int | None]],
        tuple[int, str, int, int],
        dict[tuple[int, int], tuple[int, int, bool, bool]],
    ]:
        """Return the operations of the rank in ``slot``.

        The result is ``(epoch, groups, pair, messages)``. ``groups`` is ``{tag: (op, seq, done,
        queued, done_op, begun)}`` with one entry for each group of the rank, by the group's tag (0:
        the world). ``op`` is empty between operations; ``done`` is the number of the last one
        completed (0: none) and ``done_op`` its operation; ``queued`` counts the operations that
        were submitted and are not complete; ``begun`` is the number of the last one begun or
        submitted (None: unknown at this moment). ``pair``
        is the message that the rank waits for: ``(channel, "send" or "recv", peer, seq)``, with
        channel -1 for none. ``messages`` is ``{(tag, peer): (sent, received, sends, receives)}``:
        the number of messages that have passed with a rank of the world, and whether the rank waits
        to send or to receive the next one.
        """

    def wait(self, slot: int) -> tuple[int, int, str, int, int, int, bool, str] | None:
        """Return the long wait of user code in ``slot``, or None.

        A wait is long after 50 ms. The result is ``(number, tag, op, seq, peer, looks, has_others,
        text)``. ``number`` is unique among the waits in this slot. ``op`` is an operation,
        ``"send"`` or ``"recv"`` (with a ``peer``, else -1), or ``"work"`` for a wait until at most
        ``seq`` operations are queued in the group. ``looks`` counts the polls without success, one
        every 50 ms. ``has_others``: other threads of the rank may act for the user. ``text`` is as
        in `site`, "" if unknown.
        """

    def site(self, slot: int) -> tuple[int, int, str] | None:
        """Return the call site of the long wait of ``slot``.

        A wait is long after 50 ms. The result is ``(tag, seq, text)``: the group as in `activity`,
        the number of the operation (or of the message, as in ``pair``), and ``"train.py:31"`` or
        ``"cell line 2"``.
        """

    def trace(self, slot: int, since: int = 0) -> tuple[bytes, int]:
        """Return the records of ``slot`` and how many are lost.

        The flight recorder has the rank's last 4096 operations, oldest first, of all its groups. The record of an
        operation that runs is never overwritten. The rank may be dead. Safe from any thread, at any
        time. A record is 8 words of 64 bits: ``number << 1 | runs``, then ``epoch << 40 | seq``,
        bytes, tag of the group, times entered, arrived and ended (CLOCK_MONOTONIC in ns, 0 if
        unknown), ``op | algorithm << 8 | dtype << 16 | channel << 24 | failure << 32 | peer <<
        40``. ``failure`` is an ``ABORT_...``, ``peer`` a rank of the world.

        ``since``: return only the records from this number on, and no count of the records before.
        If the recorder has fewer records, another process is the rank now: return all its records.
        """

    def counters(self, slot: int) -> tuple[int, int, int, int, dict[int, tuple[int, int]]]:
        """Return ``(operations, arena, inside, waiting, wires)`` of the rank in ``slot``.

        ``operations`` counts completed operations and messages. ``arena`` is bytes of arrays that
        went through the arena. ``inside`` is nanoseconds inside operations, and ``waiting`` the
        part of it until the last rank had come. ``wires`` is ``{peer: (sent, received)}`` in bytes,
        with headers. The numbers grow from the slot's first process on; while an operation runs
        only ``wires`` does. The numbers are not of one moment.
        """

    def heartbeats(self, slot: int) -> int:
        """Return the heartbeat counter of the process in ``slot``.

        The counter grows every 250 ms while the process runs. A native thread advances it from the
        time the rank maps the page with its own slot as ``author``, until `mark_stopped`. 0: no heartbeat.
        """

    def mark_stopped(self, slot: int) -> None:
        """Expect no more heartbeats of a slot.

        A rank that leaves calls this for its own slot, the supervisor for a dead rank's.
        """

    def hold(self, slot: int, thread: int) -> None:
        """Hold a thread of the rank in ``slot`` before its next operation.

        ``thread`` is its ``native_id``. The thread waits there until it is let in or released, its
        group fails, or a signal's handler raises. After `release` or a raising
        handler the thread is not held any more.
        """

    def drop_hold(self, slot: int) -> bool:
        """Drop a hold; a held rank stays held: then return True."""

    def release(self, slot: int) -> None:
        """Release the rank from a hold."""

    def let_in(
        self,
        slot: int,
        epoch: int,
        group: int,
        number: int,
        peer: int = -1,
        is_recv: bool = False,
    ) -> None:
        """Let a held rank into a group's operations up to ``number``.

        With ``peer``: into the messages to, or from, this rank of the world.
        """

    def held(self, slot: int) -> tuple[int, str, int, int] | None:
        """Return the operation before which a rank is held.

        The result is ``(tag, op, peer, number)``, with peer -1 for a collective; None: not held.
        """

    def close(self) -> None: ...

def trace_names() -> dict[str, dict[int, str]]:
    """Return the names for numbers in records, by field: "op", "algorithm", "dtype"."""

@final
class TraceSummarizer:
    """Read the new records of one recorder; one thread at a time."""

    def __init__(self) -> None: ...
    @property
    def has_open(self) -> bool:
        """Whether an operation ran at the last read."""

    @property
    def since(self) -> int:
        """Return the number of the oldest record that the next read needs."""

    def read(
        self, packed: bytes
    ) -> tuple[
        list[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]],
        int,
        bytes,
    ]:
        """Return ``(spans, missed, entries)`` of records as `ControlPage.trace` packs them.

        Spans have the fields of `phalanx.protocol`'s, with numbers (0 to 255) for names. At most 16
        spans are of finished operations (64 after a pause); each running operation has its own
        span. ``missed`` operations began, ended and were overwritten since the last read.
        ``entries`` are group, place, entered and ended (0: it runs) of the 128 newest collectives,
        in words of 64 bits.
        """

@final
class Arena:
    """Shared memory of one host's ranks: one region (memfd) per slot.

    A rank maps its own region read-write and the other regions read-only.
    """

    DEFAULT_NBYTES: int  # size of a region: staging memory of all channels
    @staticmethod
    def format(fd: int, nbytes: int) -> None:
        """Size a region and write its header; called once, by the supervisor."""

    @staticmethod
    def give_back(fd: int) -> None:
        """Return a dead rank's region to the system after its epoch's abort."""

    def __init__(self, fds: Sequence[int], *, own: int) -> None:
        """Map all regions; the caller keeps ``fds``; ``own`` is this rank's slot."""

    @property
    def nbytes(self) -> int: ...
    def close(self) -> None: ...

@final
class Group:
    """One group in one epoch; this process is ``rank`` of ``0..size-1``.

    Parameters of the constructor: ``hosts[r]`` is the host index of rank r. ``slots[r]`` is the
    arena slot of rank r if on this rank's host, else -1. ``links`` maps a peer to connected stream
    sockets, in the same order at both ends; the group takes ownership and divides one stream among
    them. Ranks without a common arena need a link. ``pair_links`` are for messages: one socket for
    any two ranks without a common arena. ``channel`` selects the part of each region that this
    group uses (0 .. CHANNELS-1). For a split, ``members[r]`` is rank r's number in the world, which
    error texts use, and ``tag`` is a number of the split, the same on all its ranks. ``ranks_here``
    counts the ranks on this machine, if some of them share no arena; if there are more ranks than
    cores, no rank spins while it waits. ``page_slots[r]`` is the slot of rank r on the page, -1 for
    a rank on another host (default: ``slots``). A link is broken if its other end does not answer
    the kernel for ``silence_s`` seconds. ``selector`` has the largest size in bytes for which each
    algorithm is used, the same on all ranks; sizes that are not given keep their default.
    """

    CHANNELS: int
    def __init__(
        self,
        *,
        rank: int,
        size: int,
        epoch: int,
        channel: int = 0,
        tag: int = 0,
        members: Sequence[int] = (),
        hosts: Sequence[int],
        slots: Sequence[int] = (),
        host_names: Sequence[str] = (),
        arena: Arena | None = None,
        links: Mapping[int, Sequence[int]] = ...,
        page: ControlPage | None = None,
        wake_fd: int = -1,
        pair_links: Mapping[int, int] = ...,
        ranks_here: int = 0,
        page_slots: Sequence[int] = (),
        silence_s: float | None = None,
        selector: Mapping[str, int] = ...,
    ) -> None: ...
    timeout: float | None  # default for calls without a timeout
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def failure(self) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` after an abort; None before."""

    def run(
        self,
        op: str,
        x: Any = None,
        out: Any = None,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> None:
        """Run an operation: a collective, "barrier", "split", "send" or "recv".

        x and out are C-contiguous, aligned numpy arrays of the same supported dtype. ``dtype`` is
        "bfloat16" for such bits in uint16, else "". The caller has checked them: other arrays raise
        a ValueError that does not say what is wrong.

        out has the size of x and may be x, with three exceptions. "all_gather" and "split": out is
        size times as large, and x may be this rank's block of out. "sum_scatter": x has one block
        for each rank, out is the size of a block and does not overlap x. "all_to_all": both have
        one block for each rank and do not overlap. "split" exchanges the data for a split of the
        group, as "all_gather" does.

        "send" has no out, "recv" no x, "barrier" neither. ``root`` is the root of a "broadcast", or
        the other rank of a message. Up to 64 KiB are sent without waiting.
        """

    def submit(
        self,
        op: str,
        x: Any,
        out: Any,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> Work:
        """Queue an operation for the group's thread, which runs all in order.

        x and out are kept alive until the operation is complete, even if nothing references the
        Work. While any operation is queued, a direct call waits for its turn behind it. 1024
        operations may be queued; then this call waits. ``timeout`` starts now; while the operation
        is queued behind others, the thread that waits for it checks the timeout. Messages are
        refused.
        """

    @property
    def is_idle(self) -> bool:
        """Whether all submitted operations are complete."""

    def all_members_left(self) -> bool:
        """Whether this group is closed and no member reads its memory here."""

    def abort(self, kind: int, culprit: int, message: str) -> bool: ...
    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no thread is inside an aborted or closed group.

        False if a thread still is. Completes the work of a `close` that gave up.
        """

    def close(self) -> None:
        """Leave the group, fail its open operations, and end the epoch.

        `close` gives up after 5 s if a thread is stuck inside; see `wait_until_idle`.
        """

    def describe(self, sizes: list[int] = []) -> dict[str, Any]:
        """Return the algorithms by operation and size, and counts.

        The sizes are some defaults and ``sizes``. Sums of half-precision arrays are listed
        separately.
        """

@final
class Work:
    """A submitted operation; `wait` returns when its result is in ``out``.

    If no `wait` raises a failure, every later operation of the group raises it.
    """

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the operation and raise its error; may be called again.

        ``timeout`` ends this wait only, with a CollectiveTimeout: the operation goes on, and x and
        out must not be touched. An interrupt ends the epoch, as in the operation itself.
        """

    @property
    def done(self) -> bool: ...

@final
class MlxCommunicator:
    """A group as MLX's MPI backend uses it, on MLX's threads.

    ``split(color, key)`` returns the communicator of a new group. ``report_failure(error)`` runs in
    the main thread after an operation has failed, and returns the error to raise there, if any.
    Keep the communicator until the process ends: MLX holds its address.
    """

    def __init__(
        self,
        *,
        group: Group,
        split: Callable[[int, int], MlxCommunicator],
        report_failure: Callable[[BaseException], BaseException | None],
    ) -> None: ...
    def renew(self, group: Group) -> None:
        """Use the group of a new epoch."""

    def end_script(self) -> None:
        """Tell the search for deadlocks that the main thread has ended."""

    def set_cut(self, is_cut: bool) -> None:
        """Interrupt operations that wait, now and until this is called with False."""

    def capsule(self) -> object:
        """Return the address for the library that MLX loads."""

def supported_dtypes() -> tuple[str, ...]:
    """Return dtype names: numpy's, and bfloat16 of ml_dtypes."""

def make_memory_file(name: str) -> int:
    """Make memory without a file system name; the caller owns the descriptor."""

def keep_size(fd: int) -> None:
    """Forbid all processes to shrink the file, if the system supports that."""

def make_wake() -> int:
    """Make a descriptor that wakes a rank from a wait on links.

    The caller owns the descriptor.
    """

def is_cell_file(file: str, /) -> bool:
    """Whether a file name is a notebook cell's.

    Known are the names that ranks, ipykernel and IPython give to cells.
    """

def fast_path(
    op: str,
    engine: object,
    x: object,
    out: object,
    root: int,
    timeout: object,
    dtype: str,
    /,
) -> Any:
    """Run an operation on a `Group` if its arguments need no conversion.

    Returns the result of the operation: ``x`` for "send", an array like ``x`` for "recv". For both,
    ``root`` is the other rank. "barrier" ignores the arrays and returns None.

    Arguments that need no conversion: C-contiguous arrays of numpy's own types or ml_dtypes'
    bfloat16, ``out`` None or of the result's shape, a timeout of None or a Python number.
    ``dtype`` is "bfloat16" for such bits in uint16, else "". For all other arguments returns
    NotImplemented without any effect. Raises the errors of the operation.
    """
