"""Whole lines out of the pieces of text that ranks print.

Pure: text in, lines out; each byte of text is looked at a bounded number of times.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["LineAssembler", "StreamName"]

StreamName = Literal["stdout", "stderr"]


class LineAssembler:
    r"""Keeps the unfinished line of each rank's stdout and stderr.

    Examples
    --------
    >>> lines = LineAssembler()
    >>> lines.feed(0, "stdout", "one\ntw"), lines.feed(0, "stdout", "o\n")
    (['one'], ['two'])
    """

    def __init__(self) -> None:
        self._unfinished: dict[tuple[int, StreamName], list[str]] = {}

    def feed(self, rank: int, stream: StreamName, text: str) -> list[str]:
        """Add text; the lines that are whole now, without their ends."""
        *whole, rest = text.split("\n")
        if not whole:
            self._unfinished.setdefault((rank, stream), []).append(rest)
            return []
        pieces = self._unfinished.pop((rank, stream), [])
        whole[0] = "".join([*pieces, whole[0]])
        if rest:
            self._unfinished[rank, stream] = [rest]
        return [_last_overwrite(line) for line in whole]

    def finish(self) -> list[tuple[int, StreamName, str]]:
        """Take the lines that will not be finished any more, by rank."""
        rest = [
            (rank, stream, _last_overwrite("".join(pieces)))
            for (rank, stream), pieces in sorted(self._unfinished.items())
        ]
        self._unfinished.clear()
        return [(rank, stream, line) for rank, stream, line in rest if line]


def _last_overwrite(line: str) -> str:
    """What a terminal shows of a line with carriage returns: the last text written over it."""
    if "\r" not in line:
        return line
    return line.rstrip("\r").rpartition("\r")[2]
