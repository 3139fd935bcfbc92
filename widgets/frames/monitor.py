"""Make the records that the live monitor sends.

A record has each rank's current state, and the operations since the last record.
``js/src/monitor/state.ts`` reads them. Times are milliseconds of the root's monotonic clock, but
nanoseconds in the records of `phalanx.protocol`, which are sent as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from phalanx.protocol import LateRank, RankSample, Samples, Span, Waiting
from phalanx.workspace import SampleView

from ..text.world import clean, cleaned, count, say_ms
from . import WidgetFrame
from .rates import LinkRate, RankRate, Rates

KERNEL_BUSY = "this kernel was busy"
NOBODY_LOOKED = "nobody looked"
SUPERVISOR_BUSY = "the supervisor was busy"
LEAST_LATE_NS = 1_000_000  # less is not worth a word
GAP_NS = 2_000_000_000  # longer than this between samples is a gap; they come three times a second


class RankNow(msgspec.Struct, frozen=True):
    """The current state of a rank."""

    state: str
    detail: str
    pid: int
    rate: RankRate


class CellFrame(msgspec.Struct, frozen=True, array_like=True):
    """A cell on a rank.

    ``number`` is the notebook's number, as in ``[7]``; -1: still running; 0: unknown.
    """

    rank: int
    cell: str
    begun: float
    done: float
    number: int


class GapFrame(msgspec.Struct, frozen=True, array_like=True):
    """A time range without data, and the reason."""

    begun: float
    done: float
    why: str


class MonitorFrame(WidgetFrame, frozen=True):
    """The current state of all ranks.

    ``missed`` and ``dropped`` are the total numbers of operations and samples that were lost.
    ``world`` counts the groups of ranks that the widget has shown: data of an earlier group do not
    belong to these ranks. ``late`` names the ranks that delayed the others lately. ``spans`` have
    their rank beside them.
    """

    number: int
    epoch: int
    ranks: tuple[RankNow, ...] = ()
    spans: tuple[tuple[int, Span], ...] = ()
    cells: tuple[CellFrame, ...] = ()
    links: tuple[LinkRate, ...] = ()
    late: tuple[str, ...] = ()
    waits: tuple[Waiting, ...] = ()
    missed: int = 0
    dropped: int = 0
    gaps: tuple[GapFrame, ...] = ()
    world: int = 0


class MonitorFrameBuilder:
    """Makes frames from samples.

    Parameters
    ----------
    number_of : callable
        Returns the number of the notebook's cell that ran at a time (ns); 0 for none.
    """

    def __init__(self, number_of: Callable[[int], int] = lambda _ns: 0) -> None:
        self._number_of = number_of
        self._seen_ns = 0
        self._rates = Rates()
        self._missed = self._dropped = 0

    @property
    def number(self) -> int:
        """Return the number of the last sample taken, or 0."""
        return self._rates.number

    def take(self, view: SampleView, why_none: str = SUPERVISOR_BUSY) -> MonitorFrame | None:
        """Return a frame of new samples, or None without any.

        ``why_none`` says why samples may be missing since the last call.
        """
        if not view.samples:
            return None
        self._dropped += view.dropped
        self._rates.take(view.samples)
        recent = self._rates.recent  # late ranks are reported over this time
        newest = recent[-1]
        self._missed += sum(its.missed for sample in view.samples for its in sample.ranks)
        # Only the last span of an operation that is in several samples.
        spans = {
            (its.rank, span.number): (its.rank, span)
            for sample in view.samples
            for its in sample.ranks
            for span in its.spans
            # Every sample repeats the running operations. Those of an earlier sample may have ended
            # since.
            if span.done_ns or sample.number == newest.number
        }
        return MonitorFrame(
            status="live",
            why="",
            number=newest.number,
            now=newest.now_ns / 1e6,
            epoch=newest.epoch,
            ranks=tuple(
                _rank(its, rate, its.rank in view.waiting)
                for its, rate in zip(newest.ranks, self._rates.ranks(), strict=True)
            ),
            spans=tuple(spans.values()),
            cells=tuple(self._cells(newest)),
            links=self._rates.links(),
            late=_say_late(recent),
            waits=tuple(map(cleaned, newest.waits)),
            missed=self._missed,
            dropped=self._dropped,
            gaps=tuple(self._gaps(view.samples, why_none)),
        )

    def _gaps(self, samples: Sequence[Samples], why: str) -> Iterable[GapFrame]:
        for sample in samples:
            if self._seen_ns and sample.now_ns > self._seen_ns + GAP_NS:
                yield GapFrame(self._seen_ns / 1e6, sample.now_ns / 1e6, why)
            self._seen_ns = sample.now_ns

    def _cells(self, sample: Samples) -> Iterable[CellFrame]:
        for its in sample.cells:
            number = self._number_of(its.begun_ns)
            for rank in its.ranks:
                done = its.ended_ns.get(rank, 0) / 1e6
                yield CellFrame(rank, clean(its.cell), its.begun_ns / 1e6, done, number)


def _rank(now: RankSample, rate: RankRate, is_asking: bool) -> RankNow:
    state = "input" if is_asking and now.state == "busy" else now.state
    return RankNow(state, clean(now.detail), now.pid, rate)


def named_late(late: Iterable[LateRank]) -> list[LateRank]:
    """Return the three ranks that delayed the others most, the worst first.

    Ranks that delayed them much less than the worst came last by chance.
    """
    worst_first = sorted(late, key=lambda its: -its.late_ns)
    return [its for its in worst_first[:3] if 5 * its.late_ns >= worst_first[0].late_ns]


def say_unsure(unsure: int, compared: int, unsure_ns: int) -> list[str]:
    """Say that the last rank is mostly unknown; empty if known."""
    if 2 * unsure <= compared:
        return []
    which = f"who came last to {unsure} of {count(compared, 'collective')}"
    return [f"{which} is within the uncertainty of the hosts' clocks ({say_ms(unsure_ns / 1e6)})"]


def _say_late(recent: Iterable[Samples]) -> tuple[str, ...]:
    sums: dict[int, LateRank] = {}
    for its in (late for sample in recent for late in sample.late):
        before = sums.get(its.rank, LateRank(its.rank, 0, 0, 0))
        sums[its.rank] = LateRank(
            its.rank,
            before.count + its.count,
            before.late_ns + its.late_ns,
            max(before.worst_ns, its.worst_ns),
        )
    compared = sum(sample.compared for sample in recent)
    said = [
        f"rank {its.rank} came last to {its.count} of {count(compared, 'collective')}: the others "
        f"lost {say_ms(its.late_ns / 1e6)}"
        + (f", {say_ms(its.worst_ns / 1e6)} at worst" if its.count > 1 else "")
        for its in named_late(sums.values())
        if its.late_ns >= LEAST_LATE_NS
    ]
    unsure = sum(sample.unsure for sample in recent)
    return (*said, *say_unsure(unsure, compared, max(sample.unsure_ns for sample in recent)))
