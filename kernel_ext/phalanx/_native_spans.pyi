"""Type part of `phalanx._native`: the reader of recorder records.

A stub only, no module. Numbers stand for names, which are in `phalanx.distributed`.
"""

from typing import final

@final
class TraceSummarizer:
    """Read the new records of one recorder; one thread at a time."""

    def __init__(self) -> None: ...
    @property
    def has_open(self) -> bool:
        """Whether an operation ran at the last read."""

    @property
    def since(self) -> int:
        """Return the number of the oldest record that the next read needs."""

    def read(
        self, packed: bytes
    ) -> tuple[
        list[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]],
        int,
        bytes,
        list[tuple[int, int, int, int, bool]],
    ]:
        """Return ``(spans, missed, entries, uses)`` of records as `Recorder.read` packs them.

        Spans and uses have the fields of `phalanx.protocol`'s, with numbers (0 to 255) for names.
        At most 16 spans are of finished operations (64 after a pause); each running operation has
        its own span. ``missed`` operations began, ended and were overwritten since the last read.
        ``entries`` are group, place, entered and ended (0: it runs) of the 128 newest collectives,
        in words of 64 bits.
        """

def entered(entries: bytes, rank: int, host: int, unsure_ns: int) -> bytes:
    """Add ``rank`` before each of the entries, and ``host`` after.

    Times are of the clock of ``host``; ``unsure_ns`` is its largest error beside another host's.
    """

def find_stragglers(
    seen: bytes, from_ns: int, until_ns: int, members: dict[int, int]
) -> tuple[int, list[tuple[int, int, int, int]], int, int]:
    """Find late ranks in the result of `entered`.

    Returns ``(compared, late, unsure, unsure_ns)``. Compared are collectives that the first rank
    completed after ``from_ns`` and not after ``until_ns``. A group in ``members`` counts only when
    this number of its ranks is present. ``late`` has ``(rank, count, late_ns, worst_ns)`` of the
    ranks that came last to some collective.
    """
