"""The native engine, as Python sees it. Only `phalanx.distributed` imports this module.

It moves bytes between descriptors and mappings it was handed; it opens no port and knows no name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

from numpy.typing import NDArray

from ._native_spans import SpanReader as SpanReader
from ._native_spans import entered as entered
from ._native_spans import late_ranks as late_ranks

# Why an epoch was given up (`AbortPage.abort`).
ABORT_RANK_FAILURE: int
ABORT_MISMATCH: int
ABORT_TIMEOUT: int
ABORT_INTERRUPTED: int
ABORT_ERROR: int
ABORT_CLOSED: int
ABORT_LINK_BROKEN: int  # its culprit is two ranks: the one lost << 16 | the one that says so

@final
class AbortPage:
    """Abort flags and doorbells that the supervisor and the ranks of one host share (a memory file).

    There are ``slots`` rank slots and one more author, number ``slots``: the supervisor.
    """

    @staticmethod
    def nbytes(slots: int, ranks: int = 0) -> int: ...
    @staticmethod
    def format(fd: int, slots: int, ranks: int = 0) -> None:
        """Size the file (if needed) and write an empty page; once, by its owner.

        ``ranks`` are those of the world; 0: as many as slots.
        """

    def __init__(self, fd: int, *, slots: int, author: int, wake_fds: Sequence[int] = ()) -> None:
        """Map the page (``fd`` stays the caller's); ``wake_fds[slot]`` are `make_wake`'s, duplicated."""

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> bool:
        """Free every rank of this host that waits in ``epoch`` or an older one.

        Lock-free and async: needs nothing of the ranks. True if this call was the first for the
        epoch. Text over 500 bytes is cut at a character.
        """

    def reason(self, epoch: int) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` if ``epoch`` was aborted, else None."""

    def activity(
        self, slot: int
    ) -> tuple[
        int,
        dict[int, tuple[str, int, int, int]],
        tuple[int, str, int, int],
        dict[tuple[int, int], tuple[int, int, bool, bool]],
    ]:
        """What the rank in ``slot`` is doing: ``(epoch, groups, pair, messages)``.

        ``groups`` is ``{tag: (op, seq, done, queued)}`` with one entry for each group it is in, by
        its tag (0: the world). ``op`` is empty between operations; ``done`` is the number of the
        last one completed (0: none), ``queued`` counts those that were submitted and are not over.
        ``pair`` is the message it waits for: ``(channel, "send" or "recv", peer, seq)``, with
        channel -1 where it waits for none. ``messages`` is ``{(tag, peer): (sent, received, sends,
        receives)}``: how many have passed with a rank of the world, and whether it waits for the
        next one to be taken, or to come.
        """

    def site(self, slot: int) -> tuple[int, int, str] | None:
        """Where the rank in ``slot`` has called the operation it is in, once it waits for 50 ms.

        ``(tag, seq, text)``: the group as in `activity`, the number of the operation (of a message
        that of the pair), and ``"train.py:31"`` or ``"cell line 2"``.
        """

    def trace(self, slot: int, since: int = 0) -> tuple[bytes, int]:
        """Return the flight recorder of the rank in ``slot`` as `Recorder.read` does: alive or not.

        With ``since`` only the records from that number on, and no count of those before; where
        there were not as many, another process is the rank: all of its.
        """

    def counters(self, slot: int) -> tuple[int, int, int, int, dict[int, tuple[int, int]]]:
        """What the rank in ``slot`` has moved: ``(operations, arena, inside, waiting, wires)``.

        Operations completed, messages among them; bytes of arrays that went through the arena;
        nanoseconds inside operations, and of those until the last rank had come. ``wires`` is
        ``{peer: (sent, received)}`` in bytes, headers among them. They grow from the slot's first
        process on, while an operation runs those of the wires only; no two are of one moment.
        """

    def beats(self, slot: int) -> int:
        """Return the sign of life of the process in ``slot``: it grows every 250 ms while that runs.

        A rank that has mapped the page with its own slot as ``author`` gives it, by a native
        thread, until it is stilled. 0: none is given.
        """

    def still(self, slot: int) -> None:
        """Expect no more signs of life: by the rank itself that leaves, or of one that is gone."""

    def close(self) -> None: ...

@final
class Recorder:
    """The flight recorder of one rank process, for all its groups: its last 4096 operations.

    It lies in ``page``, at the page's author, where the supervisor reads it as well; without one
    in own memory. An operation that runs is never overwritten.
    """

    def __init__(self, page: AbortPage | None = None) -> None: ...
    def read(self) -> tuple[bytes, int]:
        """Return the records, oldest first, and how many there were that are not among them.

        From any thread, at any time. A record is 8 words of 64 bits: ``number << 1 | runs``, then
        ``epoch << 40 | seq``, bytes, tag of the group, times entered, arrived and ended
        (CLOCK_MONOTONIC in ns, 0 where not known), ``op | algorithm << 8 | dtype << 16 | channel <<
        24 | failure << 32 | peer << 40``; failure is an ``ABORT_...``, peer a rank of the world.
        """

def trace_names() -> dict[str, dict[int, str]]:
    """Names of the numbers in records, by field: "op", "algorithm", "dtype"."""

@final
class Arena:
    """The memory that the ranks of one host share: one region (memfd) per slot.

    The own region is mapped read-write, the others read-only.
    """

    DEFAULT_NBYTES: int  # of a region: room for the staging memory of all channels
    @staticmethod
    def format(fd: int, nbytes: int) -> None:
        """Size a region and write its empty header; once, by its owner (the supervisor)."""

    @staticmethod
    def give_back(fd: int) -> None:
        """Return the memory of a region to the system; its rank is dead, its epoch aborted."""

    def __init__(self, fds: Sequence[int], *, own: int) -> None:
        """Map all regions (``fds`` stay the caller's); ``own`` is this rank's slot."""

    @property
    def nbytes(self) -> int: ...
    def close(self) -> None: ...

@final
class Group:
    """One epoch of one group: ranks ``0..size-1`` of which this process is ``rank``.

    Parameters: ``hosts[r]`` is the host index of rank r; ``slots[r]`` its arena slot where it is
    on this rank's host, else -1; ``links`` maps a peer to connected stream sockets whose
    ownership passes to the group, in the same order at both ends: one stream is divided among
    them. Ranks without a common arena need a link. ``pair_links`` are for messages, one socket for
    any two ranks without a common arena.
    ``channel`` picks the part of each region that this group uses (0 .. CHANNELS-1). Of a split
    ``members[r]`` is the world's number of rank r, by which errors call it, and ``tag`` a number
    of its own, the same on all its ranks. ``ranks_here`` counts the ranks on this machine where
    some of them share no arena: more than cores, and none spins while it waits. ``page_slots[r]``
    is the slot of rank r on the page, -1 where it is on another host's (default: ``slots``). A link
    whose other end does not answer the kernel for ``silence_s`` seconds is broken. ``recorder`` is
    this process's; without one the group has its own. ``selector`` has thresholds, in bytes, up to
    which an algorithm is taken, the same on all ranks; those that are not named are the default.
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
        page: AbortPage | None = None,
        wake_fd: int = -1,
        pair_links: Mapping[int, int] = ...,
        ranks_here: int = 0,
        page_slots: Sequence[int] = (),
        silence_s: float | None = None,
        recorder: Recorder | None = None,
        selector: Mapping[str, int] = ...,
    ) -> None: ...
    timeout: float | None  # of calls that give none
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
        """``(kind, culprit, message)`` once the group was aborted; None while it is good."""

    # x and out: C-contiguous numpy arrays of the same supported dtype. ``dtype`` says how their
    # bytes are to be read where numpy has no name for it (uint16 as "bfloat16").
    # out has the size of x and may be x, unless said otherwise.
    def all_sum(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_max(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_min(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    # out: size times as large; x may be the own block of it
    def all_gather(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    # x: one block for each rank; out, of the size of one block, apart from x
    def sum_scatter(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    # x: one block for each rank; out apart from x
    def all_to_all(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def broadcast(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        root: int,
        timeout: float | None = None,
        dtype: str = "",
    ) -> None: ...
    def send(
        self, x: NDArray[Any], dst: int, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Send to one rank; up to 64 KiB do not wait for the receiver.

        ``dtype`` says how the bytes are read where numpy has no name for it.
        """

    def recv(
        self, out: NDArray[Any], src: int, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def barrier(self, timeout: float | None = None) -> None: ...
    def split(
        self, x: NDArray[Any], out: NDArray[Any], timeout: float | None = None, dtype: str = ""
    ) -> None:
        """As all_gather, for what ranks tell each other to split the group."""

    def submit(
        self,
        op: str,
        x: Any,
        out: Any,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> Work:
        """Hand an operation to the group's thread, which runs them in order.

        x and out are kept alive until it is over, also if nobody holds the Work. Operations that
        are called while any is queued wait for their turn behind it; 1024 may be queued, then
        this waits. ``timeout`` runs from here; while the operation is behind others it is
        watched by who waits. x and out are ignored for "barrier".
        """

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was submitted is still to be done."""

    def is_left_by_all(self) -> bool:
        """Whether this group was closed and no member reads its memory here any more."""

    def abort(self, kind: int, culprit: int, message: str) -> bool: ...
    def settle(self, timeout: float) -> bool:
        """Wait until no thread is inside a group that was aborted or closed.

        False if one still is. What a `close` that gave up has left to do is done here.
        """

    def close(self) -> None:
        """Leave the group. Operations that are queued or run fail, and end the epoch.

        It gives up after 5 s where a thread is stuck inside; see `settle`.
        """

    def describe(self, sizes: list[int] = []) -> dict[str, Any]:
        """Algorithms by operation and size (some, and ``sizes``), those of sums of halves apart; counts."""

@final
class Work:
    """An operation that was submitted; its result is in ``out`` once `wait` has returned.

    A failure that nobody waits for is not lost: every later operation of the group raises it.
    """

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is over and raise what it raised; may be called again.

        ``timeout`` ends this wait only, with a CollectiveTimeout: the operation is still under
        way, and x and out must be left alone. An interrupt ends the epoch, as in the operation.
        """

    @property
    def done(self) -> bool: ...

def supported_dtypes() -> tuple[str, ...]:
    """Names; all but bfloat16, which is that of ml_dtypes, are numpy's."""

def make_memory_file(name: str) -> int:
    """Make memory without a name in any file system; a descriptor that is the caller's."""

def keep_size(fd: int) -> None:
    """Let nobody shrink it from now on, where the system can see to that."""

def make_wake() -> int:
    """Make a descriptor by which a rank is woken out of a wait on its links; the caller's."""

def flag_latency_ns() -> float:
    """One-way latency of a flag between the two placements of the cores, measured in ~50 us."""

def is_cell_file(file: str, /) -> bool:
    """Whether a file's name is that of a notebook's cell: of a rank's, ipykernel's or IPython's."""

def short_way(
    op: str,
    engine: object,
    x: object,
    out: object,
    root: int,
    timeout: object,
    dtype: str,
    /,
) -> Any:
    """Carry out an operation on what is plainly right for a `Group`, and return its result.

    Of "send" that is ``x``; "recv" is of an array like ``x``, and ``root`` the other end.

    Right are C-contiguous arrays that are numpy's own, or of ml_dtypes' bfloat16, ``out`` of the
    result's shape or None; a timeout of None or a number of Python. ``dtype`` is "bfloat16" for
    such bits in uint16, else "". For all else NotImplemented, before anything has happened. Raises
    what the operation raises.
    """
