"""Summarize flight recorders: new spans, and which ranks came last.

The engine does both (native/monitoring/trace_summary.hpp and stragglers.hpp); this module
translates numbers to names. A supervisor imports it, so it does without numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx import _native
from phalanx.protocol import LateRank, Span, Use

from .control import AbortKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTRY_NBYTES = 32  # four words: see `recorder.ENTRY`
LONGEST_LOOKS = 8  # most incomplete looks to keep while a slow host's entries are missing
_NEVER = (1 << 63) - 1
_NAMES = _native.trace_names()
_FAILURES = {kind.value: kind.name.lower() for kind in AbortKind}


class NewSpans(NamedTuple):
    """Result of reading a recorder.

    ``spans``: at most 16 ended operations (64 in the first read and after a pause of a second), and
    all running ones. ``missed``: operations that began, ended and were overwritten since the last
    read. ``entries``: the newest collectives, as `ENTRY` words. ``uses``: the algorithms of all new
    operations.
    """

    spans: tuple[Span, ...] = ()
    missed: int = 0
    entries: bytes = b""
    uses: tuple[Use, ...] = ()


class TraceSummarizer:
    """Reader of a rank's recorder that returns only new records.

    Each read returns running operations again, until they have ended.
    """

    def __init__(self) -> None:
        self._native = _native.TraceSummarizer()

    @property
    def has_open(self) -> bool:
        """Whether an operation was running at the last read."""
        return self._native.has_open

    @property
    def since(self) -> int:
        """Return the number of the oldest record that the next read needs."""
        return self._native.since

    def read(self, packed: bytes) -> NewSpans:
        """Return the new records in the output of `ControlPage.trace`.

        ``packed`` must hold the records from `since` on.
        """
        spans, missed, entries, uses = self._native.read(packed)
        return NewSpans(
            tuple(_span_of(*its) for its in spans),
            missed,
            entries,
            tuple(
                Use(_name("op", op), _name("algorithm", algorithm), low, high, is_split)
                for op, algorithm, low, high, is_split in uses
            ),
        )


def _span_of(number: int, op: int, *its: int) -> Span:
    *counts, failure = its
    fields: tuple[Any, ...] = (number, _name("op", op), *counts, _FAILURES.get(failure, ""))
    return Span(*fields)


def _name(field: str, number: int) -> str:
    return _NAMES[field].get(number, "")


class ClockInfo(NamedTuple):
    """Clock of a rank's times: its host, and its uncertainty in ns."""

    host: int = 0
    unsure_ns: int = 0


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
        self._before = b""  # words of `ENTERED`, like _kept
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
        clocks: Mapping[int, ClockInfo] | None = None,
        members: Mapping[int, int] | None = None,
        is_whole: bool = True,
    ) -> StragglerReport:
        """Add a look's entries and return which ranks arrived last.

        Parameters
        ----------
        entries : mapping of int to bytes
            `ENTRY` words by rank.
        now_ns : int
            Start of this look: all ranks have entered the collectives that were over then.
        clocks : mapping of int to ClockInfo, optional
            Clocks of the ranks on other machines.
        members : mapping of int to int, optional
            Number of members by group: a collective with fewer entries is left out.
        is_whole : bool
            Whether all ranks were read; otherwise the entries are kept until all ranks are read.
        """
        for rank, packed in entries.items():
            clock = (clocks or {}).get(rank, ClockInfo())
            self._kept.append(_native.entered(packed, rank, clock.host, clock.unsure_ns))
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
    seen: NDArray[np.void] | bytes,
    from_ns: int = -1,
    until_ns: int = _NEVER,
    members: Mapping[int, int] | None = None,
) -> StragglerReport:
    """Count the collectives in ``seen`` and find the ranks that arrived last.

    Parameters
    ----------
    seen : array of ENTERED, or its bytes
        Entries in any order. If a rank and collective occurs twice, the later end counts.
    from_ns, until_ns : int
        Compare only collectives that the first rank finished after ``from_ns``, and not after
        ``until_ns``.
    members : mapping of int to int, optional
        Number of members by group: a collective with fewer entries is left out.

    Notes
    -----
    ``unsure`` is the uncertainty of ``entered`` relative to other values of ``host``. Entries of
    one host share a clock. A rank counts as last only if the difference exceeds the uncertainty of
    both clocks, and the reported lateness is reduced by that uncertainty. Otherwise the collective
    counts in ``n_unsure``, and also in ``n_compared``.
    """
    n_compared, late, n_unsure, unsure_ns = _native.find_stragglers(
        bytes(seen), from_ns, until_ns, dict(members or {})
    )
    return StragglerReport(n_compared, tuple(LateRank(*its) for its in late), n_unsure, unsure_ns)
