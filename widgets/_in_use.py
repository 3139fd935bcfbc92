"""Which algorithms the ranks have used of late, for messages of which sizes.

Pure: `phalanx.protocol.Samples` in, records out; ``js/src/topology/uses.ts`` says them in words.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.protocol import Samples

__all__ = ["InUse", "UseFrame"]

LATELY_NS = 10_000_000_000  # what is used "now": as long as a lane of the monitor is


class UseFrame(msgspec.Struct, frozen=True, array_like=True):
    """As `phalanx.protocol.Use`, of all ranks; ``is_now``: in the last seconds."""

    op: str
    algorithm: str
    low: int
    high: int
    is_split: bool
    is_now: bool


class InUse:
    """The ways that operations went since somebody looks; a new epoch has other ranks or links.

    There are as many as the engine has operations and algorithms: it needs no bound of its own.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._now_ns = 0
        self._seen: dict[tuple[str, str, bool], tuple[int, int, int]] = {}

    def take(self, samples: Iterable[Samples]) -> None:
        """Note new samples."""
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

    def frames(self) -> tuple[UseFrame, ...]:
        """Return what was seen: by operation, the small messages first."""
        return tuple(
            UseFrame(op, algorithm, low, high, is_split, at_ns > self._now_ns - LATELY_NS)
            for (op, algorithm, is_split), (low, high, at_ns) in sorted(
                self._seen.items(), key=lambda its: (its[0][0], its[0][2], its[1])
            )
        )
