"""Text that is written anew: what a rank prints after `clear_output`, until it does so again.

Pure: lines in, and out again where they are to be shown as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._lines import StreamName

__all__ = ["LiveText"]

MAX_LINES = 20  # of a rank: more are no status that is written anew, and are shown as they come


@dataclass
class _Area:
    """What stands in a rank's place; ``is_stale``: it goes when something new comes."""

    lines: list[tuple[StreamName, str]] = field(default_factory=list)
    is_stale: bool = False


class LiveText:
    """The last lines of ranks that take back what they have printed.

    Lines that a notebook has shown stay; these are held, drawn in the place of progress bars, and
    shown as lines when nothing can take them back any more.

    Examples
    --------
    >>> live = LiveText()
    >>> for loss in ("0.9", "0.5"):
    ...     live.clear(0, wait=True)
    ...     assert live.take(0, "stdout", [loss]) == []
    >>> live.shown(), live.finish()
    ({0: '0.5'}, [(0, 'stdout', '0.5')])
    """

    def __init__(self) -> None:
        self._areas: dict[int, _Area] = {}

    def clear(self, rank: int, *, wait: bool) -> None:
        """Take back what a rank has printed since it did this before; ``wait``: at its next text."""
        area = self._areas.setdefault(rank, _Area())
        area.is_stale = wait
        if not wait:
            area.lines.clear()

    def take(
        self, rank: int, stream: StreamName, lines: Sequence[str]
    ) -> list[tuple[StreamName, str]]:
        """Take what a rank has printed; the lines to show as any others."""
        came = [(stream, line) for line in lines]
        area = self._areas.get(rank)
        if area is None:
            return came
        if area.is_stale:
            area.lines.clear()
            area.is_stale = False
        area.lines += came
        return self._areas.pop(rank).lines if len(area.lines) > MAX_LINES else []

    def shown(self) -> dict[int, str]:
        """Return what stands in the place of each rank that has one."""
        return {
            rank: "\n".join(line for _, line in area.lines)
            for rank, area in sorted(self._areas.items())
            if area.lines
        }

    def finish(self) -> list[tuple[int, StreamName, str]]:
        """Take all lines: nothing takes them back any more."""
        rest = [
            (rank, stream, line)
            for rank, area in sorted(self._areas.items())
            for stream, line in area.lines
        ]
        for area in self._areas.values():
            area.lines.clear()
        return rest
