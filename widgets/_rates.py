"""How fast things move between ranks, from the last samples: per rank, per link.

Pure: `phalanx.protocol.Samples` in, records out; ``js/src/shared/rates.ts`` says them in words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from phalanx.protocol import RankSample, Samples

__all__ = ["LinkRate", "RankRate", "Rates"]

RATE_NS = 1_000_000_000  # numbers are of so long: a person reads them while they change
KEPT_NS = 10_000_000_000


class LinkRate(msgspec.Struct, frozen=True, array_like=True):
    """Bytes per second over a wire from one rank to another."""

    source: int
    target: int
    rate: float


class RankRate(msgspec.Struct, frozen=True):
    """Shares of the time are 0 to 1; rates are bytes (operations) per second."""

    share: float = 0.0
    waiting: float = 0.0
    arena: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    operations: float = 0.0


class Rates:
    """The samples of the last 10 s, and what they say of the last second."""

    def __init__(self) -> None:
        self.recent: deque[Samples] = deque()

    @property
    def number(self) -> int:
        """The number of the last sample that was taken; 0 before the first."""
        return self.recent[-1].number if self.recent else 0

    def take(self, samples: Iterable[Samples]) -> None:
        """Note new samples."""
        self.recent.extend(samples)
        while self.recent and self.recent[0].now_ns < self.recent[-1].now_ns - KEPT_NS:
            self.recent.popleft()

    def _pair(self) -> tuple[Samples, Samples, float]:
        now = self.recent[-1]
        # A pause, as where nobody watched for a while, is longer than what is told of.
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
        """Return the wires that something moves on.

        Both ends count what passes; the one that has counted more has seen more of it.
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
    """Three figures: what a person reads, and no news where only the fourth has changed."""
    return float(f"{max(0.0, rate):.3g}")


def _rank(now: RankSample, then: RankSample, seconds: float) -> RankRate:
    def share(new: int, old: int) -> float:
        return round(min(1.0, max(0.0, (new - old) / 1e9 / seconds)), 3)

    def wired(sample: RankSample, way: int) -> int:
        return sum(passed[way] for passed in sample.wires.values())

    inside = share(now.inside_ns, then.inside_ns)
    return RankRate(
        share=inside,
        waiting=min(inside, share(now.waiting_ns, then.waiting_ns)),
        arena=_three((now.arena_nbytes - then.arena_nbytes) / seconds),
        sent=_three((wired(now, 0) - wired(then, 0)) / seconds),
        received=_three((wired(now, 1) - wired(then, 1)) / seconds),
        operations=_three((now.operations - then.operations) / seconds),
    )
