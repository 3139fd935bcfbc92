"""Summarize flight recorders: new spans, and which ranks came last.

The engine merges the spans (native/monitoring/trace_summary.hpp); this module translates numbers to
names. A supervisor imports it, so it does without numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from phalanx import _native
from phalanx._native import TraceSummarizer
from phalanx.protocol import LateRank, Span

from .control import AbortKind

__all__ = [
    "ENTRY",
    "LAST_NS",
    "Entry",
    "Lateness",
    "NewSpans",
    "StragglerReport",
    "TraceSummarizer",
    "find_stragglers",
    "new_spans",
]

# One collective of one rank: group, place in it, when the rank entered and left it (0: it runs).
ENTRY = struct.Struct("=4Q")
# When a rank entered a collective, the rank, when it left (0: it runs); its host, and the largest
# error of its clock beside another host's. A plain tuple, because many are made.
Entry: TypeAlias = tuple[int, int, int, int, int]
_ENDED = itemgetter(2)
# The latest time that a root or a client accepts. Any process may have written the page.
LAST_NS = (1 << 62) - 1
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
    spans, missed, entries = reader.read(packed)
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
    """Finds the ranks that come last to collectives.

    A look reads the recorders of all ranks, one after the other. A collective is compared in the
    look after the one that has seen its end: by then the entries of all its ranks have been read.
    """

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, now_ns: int) -> None:
        """Compare only collectives that end from now on.

        Entries from before are missing.
        """
        # By group and place, then by rank.
        self._collectives: dict[tuple[int, int], dict[int, Entry]] = {}
        self._seen: set[tuple[int, int]] = set()  # in this look
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
        how many ns its clock may differ from other hosts' clocks. ``members`` are the numbers of
        members by group: a collective with fewer entries is left out. If not all ranks were read
        (``is_whole``), the entries are kept until all are.
        """
        for rank, packed in entries.items():
            clock = clocks.get(rank, (0, 0))
            for group, place, entered, ended in ENTRY.iter_unpack(packed):
                key = (group, place)
                self._seen.add(key)
                self._collectives.setdefault(key, {})[rank] = (entered, rank, ended, *clock)
        if not is_whole:
            self._n_kept += 1
            if self._n_kept > LONGEST_LOOKS:
                self.restart(now_ns)
            return StragglerReport()
        due = []
        for key, ranks in tuple(self._collectives.items()):
            over_ns = min(filter(None, map(_ENDED, ranks.values())), default=now_ns + 1)
            if over_ns > self._until_ns:
                if over_ns > now_ns and key not in self._seen:  # its ranks ran it, and are gone
                    del self._collectives[key]
                continue
            del self._collectives[key]
            if over_ns > self._from_ns and len(ranks) >= members.get(key[0], 2):
                due.append(ranks.values())
        self._seen.clear()
        self._n_kept = 0
        self._from_ns, self._until_ns = self._until_ns, now_ns
        return find_stragglers(due)


def find_stragglers(collectives: Iterable[Collection[Entry]]) -> StragglerReport:
    """Count collectives and find the ranks that arrived last.

    A collective has one entry per rank. Left out is what no rank has left, or only one has
    entered. A rank is late by its delay after the median of the others. Entries of one host share a
    clock. Between hosts, a rank counts as last only if the difference exceeds the errors of both
    clocks, and its delay is reduced by them.
    """
    n_compared = n_unsure = unsure_ns = 0
    late: dict[int, tuple[int, int, int]] = {}  # by rank: count, sum, largest
    for entries in collectives:
        if len(entries) < 2 or not any(map(_ENDED, entries)):
            continue
        *others, (last_ns, rank, _, own_host, own_unsure) = sorted(entries)
        latest = sorted(
            (entered + doubt, doubt)
            for entered, _, _, host, unsure in others
            for doubt in [0 if host == own_host else unsure + own_unsure]
        )
        n_compared += 1
        if last_ns < latest[-1][0]:
            n_unsure += 1
            unsure_ns = max(unsure_ns, latest[-1][1])
            continue
        n = len(latest)
        late_ns = last_ns - (latest[(n - 1) // 2][0] + latest[n // 2][0]) // 2
        count, sum_ns, worst_ns = late.get(rank, (0, 0, 0))
        late[rank] = (count + 1, sum_ns + late_ns, max(worst_ns, late_ns))
    ranks = tuple(
        LateRank(rank, count, min(sum_ns, LAST_NS), min(worst_ns, LAST_NS))
        for rank, (count, sum_ns, worst_ns) in sorted(late.items())
    )
    return StragglerReport(n_compared, ranks, n_unsure, unsure_ns)
