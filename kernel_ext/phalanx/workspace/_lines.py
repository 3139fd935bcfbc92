"""Whole lines out of the pieces of text that ranks print, and the bars they draw.

Pure: text in, lines out; each byte of text is looked at a bounded number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["LineAssembler", "StreamName"]

StreamName = Literal["stdout", "stderr"]


@dataclass
class _Unfinished:
    """A line that has no end yet: what stands on it, and what was written over."""

    pieces: list[str] = field(default_factory=list)  # since the last carriage return
    overwritten: str = ""  # before it
    is_bar: bool = False  # it has been written over: somebody draws progress

    def add(self, text: str) -> None:
        before, cr, after = text.rpartition("\r")
        if cr:
            # Of what is written over only the last text can still be seen: "10%\r" shows 10%.
            line = "".join([*self.pieces, before]).rpartition("\r")[2]
            self.overwritten = line or self.overwritten
            self.pieces.clear()
            self.is_bar = True
        if after:
            self.pieces.append(after)

    def shown(self) -> str:
        """What a terminal shows of it."""
        return "".join(self.pieces) or self.overwritten


class LineAssembler:
    r"""Keeps the unfinished line of each rank's stdout and stderr.

    Examples
    --------
    >>> lines = LineAssembler()
    >>> lines.feed(0, "stdout", "one\ntw"), lines.feed(0, "stdout", "o\n")
    (['one'], ['two'])
    >>> lines.feed(1, "stderr", "\r10%\r20%"), lines.bars()
    ([], {1: '20%'})
    """

    def __init__(self) -> None:
        self._unfinished: dict[tuple[int, StreamName], _Unfinished] = {}

    def feed(self, rank: int, stream: StreamName, text: str) -> list[str]:
        """Add text; the lines that are whole now, without their ends."""
        key = rank, stream
        *whole, rest = text.split("\n")
        lines = []
        for piece in whole:
            line = self._unfinished.pop(key, None) or _Unfinished()
            # The carriage return of a DOS line end writes nothing over.
            line.add(piece.removesuffix("\r"))
            lines.append(line.shown())
        if rest:
            self._unfinished.setdefault(key, _Unfinished()).add(rest)
        return lines

    def bars(self) -> dict[int, str]:
        """Return the lines that are being written over, by rank: progress bars as of now."""
        return {
            rank: line.shown()
            for (rank, _), line in sorted(self._unfinished.items())
            if line.is_bar and line.shown()
        }

    def finish(self) -> list[tuple[int, StreamName, str]]:
        """Take the lines that will not be finished any more, by rank."""
        rest = [(*key, line.shown()) for key, line in sorted(self._unfinished.items())]
        self._unfinished.clear()
        return [(rank, stream, line) for rank, stream, line in rest if line]
