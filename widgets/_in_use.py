"""Which algorithms the ranks have used of late, for messages of which sizes.

Pure: `phalanx.protocol.Samples` in, or the flight recorders; records out, and their words for where
no widget lives. ``js/src/topology/uses.ts`` has its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from phalanx.protocol import Samples
from phalanx.workspace import Trace

from ._table import format_size

__all__ = ["InUse", "UseFrame", "say_use", "uses_of"]

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

    def frames(self, later_ns: int = 0) -> tuple[UseFrame, ...]:
        """Return what was seen, so much later than the last sample: by operation, the small first."""
        lately_ns = self._now_ns + later_ns - LATELY_NS
        return tuple(
            UseFrame(op, algorithm, low, high, is_split, at_ns > lately_ns)
            for (op, algorithm, is_split), (low, high, at_ns) in sorted(
                self._seen.items(), key=lambda its: (its[0][0], its[0][2], its[1])
            )
        )


def uses_of(trace: Trace) -> tuple[UseFrame, ...]:
    """Return the same from what the flight recorders hold, where nobody has watched."""
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
    """Say one of them: all_sum of 1 MiB to 4 MiB: ring.

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
