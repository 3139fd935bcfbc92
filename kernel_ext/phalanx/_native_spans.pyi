"""A part of the stub of `phalanx._native`, not a module: what it makes of records and of entries.

It knows words of 64 bits; the names of their numbers are in `phalanx.distributed`.
"""

from typing import final

@final
class SpanReader:
    """What is new in one recorder since it was looked at last; of one thread at a time."""

    def __init__(self) -> None: ...
    @property
    def has_open(self) -> bool:
        """Whether an operation ran at the last look."""

    @property
    def since(self) -> int:
        """Number of the oldest record that is of interest at the next look."""

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
        At most 16 spans are of what is over (64 after a pause); all that runs has its own.
        ``missed`` were begun, over and overwritten since the last look. ``entries`` are group,
        place, entered and ended (0: it runs) of the 128 newest collectives, in words of 64 bits.
        """

def entered(entries: bytes, rank: int, host: int, unsure_ns: int) -> bytes:
    """Put ``rank`` before each of the entries, and behind it whose clock its times are of.

    ``unsure_ns``: by how much that one may be wrong beside another host's.
    """

def late_ranks(
    seen: bytes, from_ns: int, until_ns: int, members: dict[int, int]
) -> tuple[int, list[tuple[int, int, int, int]], int, int]:
    """Compare what `entered` gives: ``(compared, late, unsure, unsure_ns)``.

    Collectives whose first rank was through after ``from_ns`` and not after ``until_ns``; of a
    group in ``members`` only where so many ranks are there. ``late`` has ``(rank, count, late_ns,
    worst_ns)`` of the ranks that came last to some.
    """
