"""Whole lines out of the pieces of text that ranks print, and the bars they draw.

Pure: text in, lines out; each character is looked at a bounded number of times, and what is kept
of a line is bounded, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ._controls import Colours, without_controls

__all__ = ["LINE_LIMIT", "LineAssembler", "StreamName"]

StreamName = Literal["stdout", "stderr"]
LINE_LIMIT = 100_000  # characters kept of a line: a browser shows them, more make it stand still


@dataclass
class _Unfinished:
    """A line that has no end yet: what stands on it, and what was written over."""

    pieces: list[str] = field(default_factory=list)  # since the last carriage return
    n_kept: int = 0  # characters of them, `LINE_LIMIT` at most
    n_dropped: int = 0
    overwritten: str = ""  # what stood before it
    is_bar: bool = False  # it has been written over: somebody draws progress

    def add(self, text: str) -> None:
        before, cr, after = text.rpartition("\r")
        if cr:
            # Of what is written over only the last text can still be seen: "10%\r" shows 10%.
            _, older, last = before.rstrip("\r").rpartition("\r")
            if older:
                self._forget()
            self._keep(last)
            self.overwritten = self._text() or self.overwritten
            self._forget()
            self.is_bar = True
        self._keep(after)

    def _forget(self) -> None:
        self.pieces.clear()
        self.n_kept = self.n_dropped = 0

    def _keep(self, text: str) -> None:
        kept = text[: LINE_LIMIT - self.n_kept]
        if kept:
            self.pieces.append(kept)
            self.n_kept += len(kept)
        self.n_dropped += len(text) - len(kept)

    def _text(self) -> str:
        text = without_controls("".join(self.pieces))
        return f"{text} … and {self.n_dropped:,} more characters" if self.n_dropped else text

    def shown(self) -> str:
        """What a terminal shows of it."""
        return self._text() or self.overwritten


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
        self._colours: dict[tuple[int, StreamName], Colours] = {}

    def feed(self, rank: int, stream: StreamName, text: str) -> list[str]:
        """Add text; the lines that are whole now, without their ends."""
        key = rank, stream
        *whole, rest = text.split("\n")
        lines = []
        for piece in whole:
            line = self._unfinished.pop(key, None) or _Unfinished()
            # The carriage return of a DOS line end writes nothing over.
            line.add(piece.removesuffix("\r"))
            lines.append(self._coloured(key, line.shown()))
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

    def forget(self, rank: int) -> None:
        """Drop the unfinished lines of a rank: it has taken them back."""
        for key in [key for key in self._unfinished if key[0] == rank]:
            del self._unfinished[key]

    def finish(self) -> list[tuple[int, StreamName, str]]:
        """Take the lines that will not be finished any more, by rank."""
        rest = [(key, line.shown()) for key, line in sorted(self._unfinished.items())]
        self._unfinished.clear()
        return [(*key, self._coloured(key, line)) for key, line in rest if line]

    def _coloured(self, key: tuple[int, StreamName], line: str) -> str:
        if "\x1b" not in line and key not in self._colours:
            return line
        return self._colours.setdefault(key, Colours()).of(line)
