"""Compute traffic rates per rank and per link from samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from phalanx.protocol import RankSample, Samples
from phalanx.workspace import Trace

from ..text.tables import format_size

RATE_NS = (
    1_000_000_000  # averaging time of the rates: a person can still read them while they change
)
KEPT_NS = 10_000_000_000

LATELY_NS = 10_000_000_000  # used "now" means within this time, the length of a monitor lane


class LinkRate(msgspec.Struct, frozen=True, array_like=True):
    """Bytes per second over a tcp link from one rank to another."""

    source: int
    target: int
    rate: float


class RankRate(msgspec.Struct, frozen=True):
    """Rates of one rank.

    Shares of the time are from 0 to 1. Rates are bytes per second; ``sent``: over tcp.
    """

    share: float = 0.0
    waiting: float = 0.0
    arena: float = 0.0
    sent: float = 0.0


class Rates:
    """Keeps samples of 10 s and computes rates of the last second."""

    def __init__(self) -> None:
        self.recent: deque[Samples] = deque()

    @property
    def number(self) -> int:
        """Return the number of the last sample taken, or 0."""
        return self.recent[-1].number if self.recent else 0

    def take(self, samples: Iterable[Samples]) -> None:
        """Add new samples."""
        self.recent.extend(samples)
        while self.recent and self.recent[0].now_ns < self.recent[-1].now_ns - KEPT_NS:
            self.recent.popleft()

    def _pair(self) -> tuple[Samples, Samples, float]:
        now = self.recent[-1]
        # After a pause in sampling, the time between the two samples is longer than RATE_NS.
        then = next(
            (its for its in reversed(self.recent) if its.now_ns <= now.now_ns - RATE_NS),
            self.recent[0],
        )
        return now, then, (now.now_ns - then.now_ns) / 1e9

    def ranks(self) -> tuple[RankRate, ...]:
        """Return the rates of each rank; none before the first sample."""
        if not self.recent:
            return ()
        now, then, seconds = self._pair()
        return tuple(
            _rank(its, before, seconds) if seconds > 0 else RankRate()
            for its, before in zip(now.ranks, then.ranks, strict=True)
        )

    def links(self) -> tuple[LinkRate, ...]:
        """Return the tcp links with traffic.

        Both ends count the bytes; the larger count is used, as it is more complete.
        """
        if not self.recent:
            return ()
        now, then, seconds = self._pair()
        passed: dict[tuple[int, int], int] = {}
        for its, before in zip(now.ranks, then.ranks, strict=True):
            for peer, (sent, received) in its.wires.items():
                sent_then, received_then = before.wires.get(peer, (0, 0))
                out, back = (its.rank, peer), (peer, its.rank)
                passed[out] = max(passed.get(out, 0), sent - sent_then)
                passed[back] = max(passed.get(back, 0), received - received_then)
        return tuple(
            LinkRate(source, target, _three(count / seconds))
            for (source, target), count in sorted(passed.items())
            if count > 0 and seconds > 0
        )


def _three(rate: float) -> float:
    """Round to three digits, to avoid updates for invisible changes."""
    return float(f"{max(0.0, rate):.3g}")


def _rank(now: RankSample, then: RankSample, seconds: float) -> RankRate:
    def share(new: int, old: int) -> float:
        return round(min(1.0, max(0.0, (new - old) / 1e9 / seconds)), 3)

    def sent(sample: RankSample) -> int:
        return sum(its for its, _ in sample.wires.values())

    inside = share(now.inside_ns, then.inside_ns)
    return RankRate(
        share=inside,
        waiting=min(inside, share(now.waiting_ns, then.waiting_ns)),
        arena=_three((now.arena_nbytes - then.arena_nbytes) / seconds),
        sent=_three((sent(now) - sent(then)) / seconds),
    )


class UseFrame(msgspec.Struct, frozen=True, array_like=True):
    """As `phalanx.protocol.Use`, for all ranks.

    ``is_now``: used within `LATELY_NS`.
    """

    op: str
    algorithm: str
    low: int
    high: int
    is_split: bool
    is_now: bool


class AlgorithmUsage:
    """Algorithms and message sizes of operations since the polling started.

    A new epoch clears them, as ranks or links are new. Their number is bounded by the numbers of
    operations and algorithms of the engine.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._now_ns = 0
        self._seen: dict[tuple[str, str, bool], tuple[int, int, int]] = {}

    def take(self, samples: Iterable[Samples]) -> None:
        """Add new samples."""
        for sample in samples:
            if sample.epoch != self._epoch:
                self._epoch = sample.epoch
                self._seen.clear()
            self._now_ns = sample.now_ns
            for its in sample.ranks:
                for use in its.uses:
                    key = (use.op, use.algorithm, use.is_split)
                    low, high, _ = self._seen.get(key, (use.low, use.high, 0))
                    self._seen[key] = (min(low, use.low), max(high, use.high), sample.now_ns)

    def frames(self, later_ns: int = 0) -> tuple[UseFrame, ...]:
        """Return the uses, ordered by operation and size.

        ``later_ns`` is the time since the last sample.
        """
        lately_ns = self._now_ns + later_ns - LATELY_NS
        return tuple(
            UseFrame(op, algorithm, low, high, is_split, at_ns > lately_ns)
            for (op, algorithm, is_split), (low, high, at_ns) in sorted(
                self._seen.items(), key=lambda its: (its[0][0], its[0][2], its[1])
            )
        )


def uses_of(trace: Trace) -> tuple[UseFrame, ...]:
    """Return the uses from the flight recorders, without polling."""
    records = trace.records[trace.records["algorithm"] != ""]
    if not len(records):
        return ()
    split = np.where(records["group"] != 0, "split", "")
    ways, which = np.unique(
        np.stack([records["op"], split, records["algorithm"]], axis=1), axis=0, return_inverse=True
    )
    found = []
    for at, (op, of, algorithm) in enumerate(ways.tolist()):
        its = records[which.ravel() == at]
        is_now = int(its["entered_ns"].max()) > trace.now_ns - LATELY_NS
        low, high = int(its["bytes"].min()), int(its["bytes"].max())
        found.append(UseFrame(op, algorithm, low, high, is_split=bool(of), is_now=is_now))
    return tuple(found)


def say_use(use: UseFrame) -> str:
    """Describe one use: all_sum of 1 MiB to 4 MiB: ring.

    Examples
    --------
    >>> say_use(UseFrame("all_sum", "staged+ring", 8, 8, is_split=True, is_now=False))
    'all_sum in a split of 8 B: staged on each host, ring between hosts (earlier)'
    """
    sizes = f" of {format_size(use.low)}" if use.high else ""
    sizes += f" to {format_size(use.high)}" if use.high > use.low else ""
    here, _, between = use.algorithm.partition("+")
    way = f"{here} on each host, {between} between hosts" if between else here
    split, when = " in a split" if use.is_split else "", "" if use.is_now else " (earlier)"
    return f"{use.op}{split}{sizes}: {way}{when}"
