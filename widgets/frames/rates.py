"""Compute traffic rates per rank and per link from samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from phalanx.protocol import RankSample, Samples

RATE_NS = 1_000_000_000  # averaging time: a person can still read the rates while they change
KEPT_NS = 10_000_000_000


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
