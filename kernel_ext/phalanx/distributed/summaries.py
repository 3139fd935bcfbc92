"""Summarize flight recorders: new spans, and which ranks came last.

The engine does both (native/monitoring/trace_summary.hpp and stragglers.hpp); this module
translates numbers to names. A supervisor imports it, so it does without numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from phalanx import _native
from phalanx._native import TraceSummarizer
from phalanx.protocol import LateRank, Span

from .control import AbortKind

__all__ = [
    "ENTRY_NBYTES",
    "Lateness",
    "NewSpans",
    "StragglerReport",
    "TraceSummarizer",
    "find_stragglers",
    "new_spans",
]

ENTRY_NBYTES = 32  # four words: see `recorder.ENTRY`
LONGEST_LOOKS = 8  # most incomplete looks to keep while a slow host's entries are missing
# By number, as records have them: operations, algorithms and dtypes; failures.
NAMES = _native.trace_names()
FAILURES = {kind.value: kind.name.lower() for kind in AbortKind}


class NewSpans(NamedTuple):
    """Result of reading a recorder.

    ``spans``: at most 16 ended operations (64 in the first read and after a pause of a second), and
    all running ones. ``missed``: operations that began, ended and were overwritten since the last
    read. ``entries``: the newest collectives, as `ENTRY` words.
    """

    spans: tuple[Span, ...] = ()
    missed: int = 0
    entries: bytes = b""


def new_spans(reader: TraceSummarizer, packed: bytes) -> NewSpans:
    """Return what is new in the output of `ControlPage.trace`.

    ``packed`` must hold the records from ``reader.since`` on. Running operations are returned again
    by each read, until they have ended.
    """
    spans, missed, entries, *_ = reader.read(packed)
    return NewSpans(tuple(_span_of(*its) for its in spans), missed, entries)


def _span_of(number: int, op: int, *its: int) -> Span:
    *counts, failure = its
    fields: tuple[Any, ...] = (number, _name("op", op), *counts, FAILURES.get(failure, ""))
    return Span(*fields)


def _name(field: str, number: int) -> str:
    return NAMES[field].get(number, "")


class StragglerReport(NamedTuple):
    """Number of compared collectives, and the ranks that arrived last.

    For ``n_unsure`` of the collectives the last rank is unknown, because the clocks of different
    hosts may be wrong by more than the ranks differ. ``unsure_ns`` is the largest such uncertainty.
    """

    n_compared: int = 0
    late: tuple[LateRank, ...] = ()
    n_unsure: int = 0
    unsure_ns: int = 0


class Lateness:
    """Compares the ranks' entries of the last two looks.

    A look reads the recorders of all ranks. A collective is counted in the look after the one that
    has seen its end: by then the entries of all its ranks have been read.
    """

    def __init__(self) -> None:
        self._before = b""  # entries with rank and clock, like _kept
        self.restart(0)

    def restart(self, now_ns: int) -> None:
        """Compare only collectives that end from now on.

        Entries from before are missing.
        """
        self._kept: list[bytes] = []
        self._n_kept = 0
        self._from_ns = self._until_ns = now_ns

    def take(
        self,
        entries: Mapping[int, bytes],
        now_ns: int,
        *,
        clocks: Mapping[int, tuple[int, int]],
        members: Mapping[int, int],
        is_whole: bool = True,
    ) -> StragglerReport:
        """Add a look's entries and return which ranks arrived last.

        ``entries`` are `ENTRY` words by rank. ``now_ns`` is the start of this look: all ranks have
        entered the collectives that were over then. ``clocks`` are the host of each rank, and by
        how many ns its clock may differ from other hosts' clocks. ``members`` are as for
        `find_stragglers`. If not all ranks were read (``is_whole``), the entries are kept until all
        are.
        """
        for rank, packed in entries.items():
            self._kept.append(_native.entered(packed, rank, *clocks.get(rank, (0, 0))))
        if not is_whole:
            self._n_kept += 1
            if self._n_kept > LONGEST_LOOKS:
                self.restart(now_ns)
            return StragglerReport()
        now = b"".join(self._kept)
        self._kept, self._n_kept = [], 0
        found = find_stragglers(self._before + now, self._from_ns, self._until_ns, members)
        self._before, self._from_ns, self._until_ns = now, self._until_ns, now_ns
        return found


def find_stragglers(
    seen: bytes,
    from_ns: int = -1,
    until_ns: int = (1 << 63) - 1,
    members: Mapping[int, int] | None = None,
) -> StragglerReport:
    """Count the collectives in ``seen`` and find the ranks that arrived last.

    ``seen`` are words of `recorder.ENTERED` in any order; if a rank and collective occurs twice, the
    later end counts. Only collectives that the first rank finished after ``from_ns``, and not after
    ``until_ns``, are compared. ``members`` are the numbers of members by group: a collective with
    fewer entries is left out.

    ``unsure`` is the uncertainty of ``entered`` relative to other values of ``host``. Entries of
    one host share a clock. A rank counts as last only if the difference exceeds the uncertainty of
    both clocks, and the reported lateness is reduced by that uncertainty. Otherwise the collective
    counts in ``n_unsure``, and also in ``n_compared``.
    """
    n_compared, late, n_unsure, unsure_ns = _native.find_stragglers(
        seen, from_ns, until_ns, dict(members or {})
    )
    return StragglerReport(n_compared, tuple(LateRank(*its) for its in late), n_unsure, unsure_ns)
