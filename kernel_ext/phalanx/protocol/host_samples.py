"""What the supervisor of another host tells the root of its ranks while somebody watches.

The root asks for each look, so that nothing is read or sent when nobody watches, and one that is
slow is not asked again meanwhile. Times are of the host's own clock. All sizes are bounded here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ._bounds import Pid, Rank
from ._samples import RankSample, Span, Use

__all__ = ["MOST_SPANS_SAID", "HostSample", "HostSamples", "SampleRanks", "said_of"]

MOST_SPANS_SAID = 256  # of a rank for one look: a reader gives 64, and as many more as run at once
MOST_RANKS = 1 << 16
# 128 collectives of 32 bytes, as many as a reader gives; the root looks whether it can read them.
MOST_ENTRIES_NBYTES = 128 * 32
MOST_USES = 128  # 9 operations in a few ways each, by the world and by splits

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class SampleRanks(msgspec.Struct, frozen=True, tag="sample_ranks", forbid_unknown_fields=True):
    """Root: look at your ranks once, and say what they do."""


class HostSample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rank as its host's page has it; as `RankSample`, without what only the root knows."""

    rank: Rank
    pid: Pid
    operations: Count
    arena_nbytes: Count
    inside_ns: Count
    waiting_ns: Count
    wires: Annotated[dict[Rank, tuple[Count, Count]], msgspec.Meta(max_length=MOST_RANKS)]
    spans: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MOST_SPANS_SAID)]
    missed: Count
    entries: Annotated[bytes, msgspec.Meta(max_length=MOST_ENTRIES_NBYTES)]
    uses: Annotated[tuple[Use, ...], msgspec.Meta(max_length=MOST_USES)] = ()


class HostSamples(msgspec.Struct, frozen=True, tag="host_samples", forbid_unknown_fields=True):
    """Host: the answer to `SampleRanks`: what its ranks did since the one before."""

    ranks: Annotated[tuple[HostSample, ...], msgspec.Meta(max_length=MOST_RANKS)]


def said_of(its: RankSample) -> HostSample:
    """Return what is said of a rank; operations beyond what may be said are counted as missed."""
    spans, left_out = its.spans[:MOST_SPANS_SAID], its.spans[MOST_SPANS_SAID:]
    return HostSample(
        its.rank,
        its.pid,
        its.operations,
        its.arena_nbytes,
        its.inside_ns,
        its.waiting_ns,
        its.wires,
        spans,
        its.missed + sum(span.count for span in left_out),
        its.entries,
        its.uses[:MOST_USES],
    )
