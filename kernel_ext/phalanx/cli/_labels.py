"""Whole, labelled lines out of the bytes that ranks write, for the screens they go to.

Pure: bytes and times in, bytes out. Nothing is decoded, so no character can be cut or lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["QUIET_S", "LabelledLines", "rank_label"]

QUIET_S = 0.1  # after which an unfinished line is shown: a prompt is waiting for its answer
MAX_LINE = 1 << 20  # bytes of one unfinished line that are kept; then it is shown in parts

_Source = tuple[int, str]  # (rank, "stdout" or "stderr")
_Written = list[tuple[str, bytes]]
# A line that is written over from its start gets its label again.
_BEFORE_LABEL = re.compile(rb"\n(?=.)|\r(?=[^\r\n])", re.DOTALL)


def rank_label(size: int) -> Callable[[int], bytes]:
    """Labels by rank, all of one width.

    Examples
    --------
    >>> rank_label(12)(3)
    b'[ 3] '
    """
    width = len(str(size - 1))
    return lambda rank: f"[{rank:>{width}}] ".encode()


@dataclass
class _Unfinished:
    """What one rank wrote on one stream since its last whole line.

    ``kept`` has not been shown. ``is_begun``: the last thing shown was a part of this line.
    """

    kept: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    is_begun: bool = False
    ends_with_return: bool = False  # what was shown of it
    has_return: bool = False  # what is kept of it
    shows_at: float | None = None


class LabelledLines:
    r"""Puts the output of all ranks together, line by line.

    Parameters
    ----------
    label : callable
        The label of a rank.
    screens : mapping of str to object
        Where each stream goes; equal values are one screen, on which lines must not mix.

    Examples
    --------
    >>> lines = LabelledLines(rank_label(2), {"stdout": 1, "stderr": 1})
    >>> lines.feed(0, "stdout", b"one\ntw", 0.0), lines.feed(1, "stderr", b"(Pdb) ", 0.0)
    ([('stdout', b'[0] one\n')], [])
    >>> lines.feed(0, "stdout", b"o\n", 0.0), lines.due(0.2)
    ([('stdout', b'[0] two\n')], [('stderr', b'[1] (Pdb) ')])
    >>> lines.feed(1, "stderr", b"ok\n", 0.3)
    [('stderr', b'ok\n')]
    """

    def __init__(self, label: Callable[[int], bytes], screens: Mapping[str, object]) -> None:
        self._label = label
        self._screens = screens
        self._unfinished: dict[_Source, _Unfinished] = {}
        self._open: dict[object, _Source] = {}  # screen -> whose unfinished line stands there

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> _Written:
        """Take what a rank wrote; what is to be written now, stream by stream."""
        line = self._unfinished.setdefault((rank, stream), _Unfinished())
        end = data.rfind(b"\n") + 1
        written: _Written = []
        if end:
            line.kept.append(data[:end])
            written = self._show(rank, stream, line, b"".join(line.kept))
            line.kept, line.nbytes, line.has_return, line.shows_at = [], 0, False, None
        if end < len(data):
            rest = data[end:]
            line.kept.append(rest)
            line.nbytes += len(rest)
            # A bar that is drawn again and again is never silent: its first return counts.
            if line.shows_at is None or not line.has_return:
                line.shows_at = now + QUIET_S
            line.has_return = line.has_return or b"\r" in rest
            if line.nbytes >= MAX_LINE:
                written += self._show_part(rank, stream, line)
        return written

    @property
    def next_due(self) -> float | None:
        """When `due` has something, if nothing is fed before."""
        times = [t.shows_at for t in self._unfinished.values() if t.shows_at is not None]
        return min(times, default=None)

    def due(self, now: float) -> _Written:
        """What has waited long enough for the rest of its line."""
        written: _Written = []
        for (rank, stream), line in self._unfinished.items():
            if line.shows_at is not None and line.shows_at <= now:
                written += self._show_part(rank, stream, line)
        return written

    def finish(self, rank: int, stream: str) -> _Written:
        """Show the rest of what a rank wrote: it will not write again."""
        line = self._unfinished.pop((rank, stream), _Unfinished())
        rest = b"".join(line.kept)
        # A labelled line is whole; without labels the bytes stay as they were written.
        if self._label(rank) and (rest or line.is_begun):
            rest += b"\n"
        return self._show(rank, stream, line, rest) if rest else []

    def end_line(self, stream: str) -> _Written:
        """End the line that stands open where ``stream`` goes: a line of our own is to follow."""
        opened = self._open.pop(self._screens[stream], None)
        if opened is None:
            return []
        if opened in self._unfinished:
            self._unfinished[opened].is_begun = False
        return [(opened[1], b"\n")]

    def line_was_typed(self) -> None:
        """Note that the terminal has echoed the end of a line: what stood open is closed."""
        for stream in self._screens:
            self.end_line(stream)

    def _show_part(self, rank: int, stream: str, line: _Unfinished) -> _Written:
        data = b"".join(line.kept)
        end = len(data) - _n_cut(data)
        line.kept = [data[end:]] if end < len(data) else []
        line.nbytes, line.has_return, line.shows_at = len(data) - end, False, None
        return self._show(rank, stream, line, data[:end]) if end else []

    def _show(self, rank: int, stream: str, line: _Unfinished, data: bytes) -> _Written:
        screen = self._screens[stream]
        source = rank, stream
        label = self._label(rank)
        written = [] if self._open.get(screen) == source else self.end_line(stream)
        if not line.is_begun or (line.ends_with_return and data[:1] not in {b"\n", b"\r"}):
            written.append((stream, label + self._labelled(data, label)))
        else:
            written.append((stream, self._labelled(data, label)))
        line.is_begun = not data.endswith(b"\n")
        line.ends_with_return = data.endswith(b"\r")
        if line.is_begun:
            self._open[screen] = source
        else:
            self._open.pop(screen, None)
        return written

    @staticmethod
    def _labelled(data: bytes, label: bytes) -> bytes:
        """Put the label before each further line."""
        if not label:
            return data
        if b"\r" in data:
            return _BEFORE_LABEL.sub(lambda found: found[0] + label, data)
        return data[:-1].replace(b"\n", b"\n" + label) + data[-1:]


def _n_cut(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character of UTF-8.

    Examples
    --------
    >>> _n_cut("1 €".encode()), _n_cut("1 €".encode()[:-1])
    (0, 2)
    """
    for n in range(1, min(3, len(data)) + 1):
        byte = data[-n]
        if byte >= 0xC0:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
            return n if n < length else 0
        if byte < 0x80:
            return 0
    return 0
