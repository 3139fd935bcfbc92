"""Define the records of workspaces, samples and sweeps.

All records are immutable and typed. Records from another process are validated when decoded.
Sample times are CLOCK_MONOTONIC of the root's machine, in nanoseconds.
"""

from __future__ import annotations

import signal
from typing import Annotated, Literal

import msgspec

from .rank import MOST_RANKS, Message, Pid, Rank

# MIME types in which a rank publishes measurements to the client that runs the sweep.
MEASUREMENT_MIME = "application/vnd.phalanx.measurement+json"
LINKS_MIME = "application/vnd.phalanx.links+json"
LINKS_DONE_MIME = "application/vnd.phalanx.links-done+json"  # number of links measured so far

# In a rank's output record, marks the place of output that could not be written.
OUTPUT_GAP = bytes(64)

# A planned rank is in a hostfile of a world that was not started.
RankState = Literal["planned", "starting", "idle", "busy", "input", "dead"]

# Supervisors of other hosts send spans too: a message beyond these bounds is refused as a whole.
_Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Sum = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
_Small = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
# Per rank and sample: a reader returns 64 spans, and up to as many that still run.
MOST_SPANS = 256
MOST_ENTRIES_NBYTES = 128 * 32  # 128 collectives of 32 bytes, as many as a reader returns

# MIME type in which a rank publishes its limits to the client that runs the sweep.
LIMITS_MIME = "application/vnd.phalanx.limits+json"

SweepState = Literal["waiting", "measuring", "done", "stopped", "failed"]
# The launcher of scripts forwards these signals to the ranks; they do not end a launch. Schedulers
# announce the end of a job with one of the first five (Grid Engine's soft limits: SIGXCPU).
USER_SIGNALS = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGURG,
    signal.SIGXCPU,
    signal.SIGCONT,
    signal.SIGWINCH,
)
SHOWS_ERROR = "writing the traceback of an error"  # state of a rank after its code has ended


class HostInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine of a world.

    ``index`` is its place in the hostfile, ``cores`` the number of usable cores. ``device`` is the
    network card that has ``address``; "": unknown, or none.
    """

    index: int
    name: str
    address: str
    cores: int
    device: str = ""


class HostClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offset of a machine's clock from the root's clock, in nanoseconds.

    The root's time is the host's time plus ``offset_ns``, with an error of at most
    ``uncertainty_ns``. Both are 0 on the root's own machine, because all its processes share one
    clock.
    """

    name: str
    offset_ns: int
    uncertainty_ns: int


class RankInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank: its host index, process, engine uuid and state.

    ``detail`` is empty or one line for the user: why the rank is dead, or what it waits for.
    ``rss_nbytes`` is the memory in use, 0 if unknown. ``cell`` is the first line of the cell that
    the rank runs, and ``cell_s`` the seconds since the cell began.
    """

    rank: int
    host: int
    pid: int
    state: RankState
    engine: str = ""
    detail: str = ""
    rss_nbytes: int = 0
    cell: str = ""
    cell_s: float = 0.0


class LinkInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Path between ranks ``a < b``: shared memory of one host, or tcp."""

    a: int
    b: int
    transport: Literal["arena", "tcp"]


class LinkMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured speed of the path between two ranks, ``a < b``.

    Nothing else used the links meanwhile. ``latency_us`` is half the round-trip time of a small
    message. ``gbs`` is 1e9 bytes per second one way, with messages of ``nbytes``. ``n_wrong``
    counts bytes that came back changed.
    """

    a: int
    b: int
    latency_us: float
    gbs: float
    nbytes: int
    n_wrong: int


class WorldTopology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a world: hosts, ranks and the paths between them."""

    name: str
    epoch: int
    hosts: tuple[HostInfo, ...]
    ranks: tuple[RankInfo, ...]
    links: tuple[LinkInfo, ...]

    @property
    def size(self) -> int:
        """Return the number of ranks, dead ones included."""
        return len(self.ranks)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a bandwidth sweep, in the terms of nccl-tests.

    ``algbw_gbs = nbytes / seconds / 1e9``; ``busbw_gbs`` is ``algbw_gbs`` times the operation's
    factor. ``n_wrong`` counts wrong elements on all ranks (0 on a sound machine). Times are the
    median and 99th percentile over ``iterations`` on the slowest rank, in microseconds.
    """

    op: str
    algorithm: str
    transport: str
    dtype: str
    ranks: int
    count: int
    nbytes: int
    time_us: float
    p99_us: float
    algbw_gbs: float
    busbw_gbs: float
    n_wrong: int
    iterations: int


class WatchSamples(Message, frozen=True):
    """Client: send `Samples` for ``seconds`` from now; repeated meanwhile."""

    seconds: float  # 0: stop


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One operation of a rank, or ``count`` adjacent operations merged.

    ``number`` is the number of the (last) record: a span that still runs (``done_ns`` 0) is sent
    again. ``inside_ns`` and ``wait_ns`` are sums; ``wait_ns`` -1: the last rank has not entered
    the operation yet. ``seq`` is the number of the last operation. ``kinds`` counts the merged
    operations with another name than ``op``.
    """

    number: _Time
    op: _Word
    begun_ns: _Time
    done_ns: _Time
    inside_ns: _Sum
    wait_ns: _Sum
    nbytes: _Sum
    seq: _Sum
    group: Annotated[int, msgspec.Meta(ge=0)] = 0
    peer: _Small = -1
    count: _Small = 1
    kinds: _Small = 0
    failure: _Word = ""


class RankSample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Present state of a rank, read from its host's control page.

    The root fills in ``state`` and ``detail``. Sums count from the slot's first process on. ``inside_ns`` and ``waiting_ns`` include operations
    that still run. ``wires`` is ``{peer: (sent, received)}`` in bytes. ``missed`` operations ended
    and were overwritten before a sample had them. ``entries`` compare ranks and are not sent to
    clients: group, place, entered, ended (0: not yet) of the newest collectives, in words of 64
    bits.
    """

    rank: Rank
    pid: Pid
    state: RankState
    detail: str
    operations: _Count
    arena_nbytes: _Count
    inside_ns: _Count
    waiting_ns: _Count
    wires: Annotated[dict[Rank, tuple[_Count, _Count]], msgspec.Meta(max_length=MOST_RANKS)] = {}
    spans: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MOST_SPANS)] = ()
    missed: _Count = 0
    entries: Annotated[bytes, msgspec.Meta(max_length=MOST_ENTRIES_NBYTES)] = b""


class CellTime(msgspec.Struct, frozen=True, array_like=True):
    """A cell that runs or has just ended."""

    cell: str
    begun_ns: int
    ranks: tuple[int, ...]
    ended_ns: dict[int, int]  # by rank
    title: str = ""  # first line of its code


class LateRank(msgspec.Struct, frozen=True, array_like=True):
    """A rank that was the last to enter ``count`` collectives.

    ``late_ns`` and ``worst_ns`` are its delay after the median of the other ranks.
    """

    rank: int
    count: int
    late_ns: int
    worst_ns: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """Ranks that are in an operation now, and the missing ranks."""

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    what: str
    since_ns: int


class Samples(Message, frozen=True):
    """Root: a sample of all ranks at ``now_ns``.

    The sample has the operations since the sample before. ``time`` is the same moment on the clock
    of `time.time`. ``compared`` collectives were searched for the last rank to enter. ``late`` has
    these ranks if the delay is larger than the error of the hosts' clocks. For ``unsure``
    collectives the delay is smaller than this error, which is at most ``unsure_ns``.
    """

    number: int
    now_ns: int
    time: float
    epoch: int
    ranks: tuple[RankSample, ...]
    cells: tuple[CellTime, ...]
    compared: int
    late: tuple[LateRank, ...]
    waits: tuple[Waiting, ...]
    unsure: int = 0
    unsure_ns: int = 0


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bandwidth of the ranks' machine without phalanx, over a transport's path.

    ``gbs`` is 1e9 bytes that arrive per second: a copy of n bytes counts n, though it reads n and
    writes n. ``nbytes`` were moved in ``seconds`` to measure ``gbs``; ``how`` describes the method.
    If the limit is unknown ``gbs`` is 0, and ``how`` says why.
    """

    name: str
    transport: Literal["arena", "tcp"]
    gbs: float
    nbytes: int
    seconds: float
    how: str


class SweepProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a sweep.

    ``n_done`` of ``n_points`` sizes are done; ``nbytes`` is the size that is measured now.
    ``left_s`` is an estimate from the sizes so far; None: no estimate yet.
    """

    state: SweepState
    n_done: int
    n_points: int
    nbytes: int
    elapsed_s: float
    left_s: float | None

    @property
    def text(self) -> str:
        """Return one line for the user.

        Examples
        --------
        >>> SweepProgress("measuring", 3, 11, 512, 1.0, 4.2).text
        '3 of 11 sizes, about 4 s left'
        """
        far = f"{self.n_done} of {self.n_points} size{'' if self.n_points == 1 else 's'}"
        if self.state == "waiting":
            return "waiting for the ranks"
        if self.state != "measuring":
            return f"{self.state} after {far}, {self.elapsed_s:.1f} s"
        if self.left_s is None:
            return far
        return f"{far}, {_about(self.left_s)} left"


class LinksProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a measurement of the links between ranks."""

    n_done: int
    n_links: int
    elapsed_s: float

    @property
    def text(self) -> str:
        """Return one line for the user.

        Examples
        --------
        >>> LinksProgress(504, 2016, 8.0).text
        '504 of 2016 links, about 24 s left'
        >>> LinksProgress(0, 2016, 0.1).text
        '0 of 2016 links'
        """
        far = f"{self.n_done} of {self.n_links} link{'' if self.n_links == 1 else 's'}"
        if not self.n_done:
            return far
        left_s = self.elapsed_s / self.n_done * (self.n_links - self.n_done)
        return f"{far}, {_about(left_s)} left"


class SweepRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished sweep: its options, its measurements and its end."""

    op: str
    dtype: str
    ranks: int
    state: SweepState
    started: str
    points: tuple[Measurement, ...]
    limits: tuple[Limit, ...] = ()


def _about(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
