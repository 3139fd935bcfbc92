"""A rank's flight recorder, read again and again: what is new in it, in few spans.

The engine finds that (native/group/spans.hpp); here are the names of its numbers. Whose recorder it
is and who wants to know it does not know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phalanx import _native
from phalanx.protocol import Span, Use

from ._trace import _ALGORITHMS, _FAILURES, _OPS

__all__ = ["ENTRY", "SpanReader"]

ENTRY = np.dtype([("group", "u8"), ("place", "u8"), ("entered", "u8"), ("ended", "u8")])
# numpy would make each name anew.
_OP_NAMES, _ALGORITHM_NAMES, _FAILURE_NAMES = (
    tuple(map(str, table)) for table in (_OPS, _ALGORITHMS, _FAILURES)
)


class NewSpans(NamedTuple):
    """What a look has found.

    ``spans``: at most 16 of what is over (64 after a pause of a second), and all that runs.
    ``missed``: operations that were begun, over and overwritten since the last look.
    ``entries``: the newest collectives, in words of `ENTRY`. ``uses``: how all that are new are done.
    """

    spans: tuple[Span, ...] = ()
    missed: int = 0
    entries: bytes = b""
    uses: tuple[Use, ...] = ()


class SpanReader:
    """What is new in one rank's recorder since it was looked at last.

    Operations that run come again each time, until they are over.
    """

    def __init__(self) -> None:
        self._native = _native.SpanReader()

    @property
    def has_open(self) -> bool:
        """Whether an operation ran at the last look."""
        return self._native.has_open

    @property
    def since(self) -> int:
        """Number of the oldest record that is of interest at the next look."""
        return self._native.since

    def read(self, packed: bytes) -> NewSpans:
        """Return what is new in what `AbortPage.trace` gives, at least from `since` on."""
        spans, missed, entries, uses = self._native.read(packed)
        return NewSpans(
            tuple(map(_span_of, spans)),
            missed,
            entries,
            tuple(
                Use(_OP_NAMES[op], _ALGORITHM_NAMES[algorithm], low, high, is_split)
                for op, algorithm, low, high, is_split in uses
            ),
        )


def _span_of(
    its: tuple[int, int, int, int, int, int, int, int, int, int, int, int, int],
) -> Span:
    number, op, begun, done, inside, wait, nbytes, seq, group, peer, count, kinds, failure = its
    return Span(
        number,
        _OP_NAMES[op],
        begun,
        done,
        inside,
        wait,
        nbytes,
        seq,
        group,
        peer,
        count,
        kinds,
        _FAILURE_NAMES[failure],
    )
