"""What a supervisor tells of its ranks a few times a second, while somebody watches.

Records and messages only. Times are CLOCK_MONOTONIC of the root's machine, in nanoseconds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ._records import RankState

__all__ = [
    "CellTime",
    "LateRank",
    "RankSample",
    "Samples",
    "Span",
    "Use",
    "Waiting",
    "WatchSamples",
]


# A host's supervisor says spans, too: what is decoded beyond these bounds is refused as a whole.
_Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Sum = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
_Small = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]


class WatchSamples(msgspec.Struct, frozen=True, tag="watch_samples", forbid_unknown_fields=True):
    """Client: send `Samples` for so many seconds from now; 0: no more. Said again and again."""

    seconds: float


class Span(msgspec.Struct, frozen=True, array_like=True):
    """An operation of a rank, or ``count`` of them that lie close together.

    ``number`` is that of the (last) record: a span that still runs (``done_ns`` 0) comes again.
    ``inside_ns`` and ``wait_ns`` are sums; ``wait_ns`` -1: the last rank has not come yet.
    ``seq`` is that of the last one, ``kinds`` how many operations there are of other names.
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


class Use(msgspec.Struct, frozen=True, array_like=True):
    """A way that an operation was done, of messages of ``low`` to ``high`` bytes.

    ``algorithm`` as in `px.trace`; ``is_split``: by a group that is not the world.
    """

    op: _Word
    algorithm: _Word
    low: _Time
    high: _Time
    is_split: bool = False


class RankSample(msgspec.Struct, frozen=True, array_like=True):
    """A rank as it stands; sums grow from its slot's first process on.

    ``inside_ns`` and ``waiting_ns`` count also what still runs. ``wires`` is
    ``{peer: (sent, received)}`` in bytes. ``missed`` operations were over before anybody looked.
    ``uses`` are those of the operations that are new.
    ``entries`` are for whoever compares ranks: group, place, entered, ended (0) of the newest
    collectives, in words of 64 bits; not sent to clients.
    """

    rank: int
    pid: int
    state: RankState
    detail: str
    operations: int
    arena_nbytes: int
    inside_ns: int
    waiting_ns: int
    wires: dict[int, tuple[int, int]] = {}
    spans: tuple[Span, ...] = ()
    missed: int = 0
    entries: bytes = b""
    uses: tuple[Use, ...] = ()


class CellTime(msgspec.Struct, frozen=True, array_like=True):
    """A cell that runs or was over a moment ago; ``ended_ns`` has the ranks that are through."""

    cell: str
    begun_ns: int
    ranks: tuple[int, ...]
    ended_ns: dict[int, int]


class LateRank(msgspec.Struct, frozen=True, array_like=True):
    """A rank that came last to ``count`` collectives: by how much after the median of the others."""

    rank: int
    count: int
    late_ns: int
    worst_ns: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """Ranks that are in an operation now, and those that they wait for."""

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    what: str
    since_ns: int


class Samples(msgspec.Struct, frozen=True, tag="samples", forbid_unknown_fields=True):
    """Root: all ranks as of ``now_ns``, and what they did since the sample before.

    ``time`` is the same moment as of `time.time`. ``compared`` collectives were looked at for who
    came last; ``late`` has the ranks that did, where the hosts' clocks leave no doubt of it. They
    leave it of ``unsure`` collectives, being wrong by up to ``unsure_ns``.
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
