"""Merge the output of ranks by whole lines.

A line is written when it ends, so lines of ranks are never torn. Until then a terminal shows it
below the whole lines, where it is redrawn in place. In a file or pipe an unfinished line without a
carriage return is written after `PROMPT_AFTER_S` without more output, as it may be a question. If
another rank's line follows it there, the line is written again, from its start, when it ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REDRAW_AFTER_S = 0.1  # time until a terminal shows new text of unfinished lines
PROMPT_AFTER_S = 2.0  # a rank that writes nothing for this time in a line may ask a question
BACKGROUND_S = 0.5  # poll interval: no signal reports a return to the foreground (`fg`)
MAX_LINE = 1 << 20  # bytes kept of an unfinished line; longer lines are written in parts

_Source = tuple[int, str]  # (rank, "stdout" or "stderr")
_Written = list[tuple[str, bytes]]
# Escape sequences (CSI, OSC, others) and control characters; a row that is redrawn has none.
_CONTROLS = re.compile(r"\x1b(?:\[[ -?]*[@-~]|\][^\a\x1b]*(?:\a|\x1b\\)|.)|[\0-\x1f\x7f-\x9f]")


def rank_label(size: int) -> Callable[[int], bytes]:
    """Return a function that makes labels of equal width from ranks.

    Examples
    --------
    >>> rank_label(12)(3)
    b'[ 3] '
    """
    width = len(str(size - 1))
    return lambda rank: f"[{rank:>{width}}] ".encode()


@dataclass
class _Line:
    """Unfinished line of one rank on one stream.

    The first ``n_shown`` bytes of ``text`` can be seen already. ``has_return``: the line is
    rewritten from its start, as progress bars are. ``is_drawn``: the line is among those at the end
    of the terminal.
    """

    text: bytearray = field(default_factory=bytearray)
    n_shown: int = 0
    has_return: bool = False
    is_drawn: bool = False
    shows_at: float | None = None


class LabelledLines:
    r"""Merges the output of all ranks, line by line.

    Parameters
    ----------
    label : callable
        Returns the label of a rank. Of a labelled line that is rewritten from its start (carriage
        return) only the last state is written. Without a label all bytes are kept.
    screens : mapping of str to object
        Target of each stream; equal values mean the same screen, where lines must not mix.
    sizes : mapping of object to callable
        For each screen that is a terminal: returns its columns and rows; (0, 0) while it is not
        ours to draw on.

    Examples
    --------
    >>> lines = LabelledLines(rank_label(2), {"stdout": 1, "stderr": 1})
    >>> lines.feed(0, "stdout", b"one\ntw", 0.0), lines.feed(1, "stderr", b"(Pdb) ", 0.0)
    ([('stdout', b'[0] one\n')], [])
    >>> lines.feed(0, "stdout", b"o\n", 0.0), lines.due(PROMPT_AFTER_S)
    ([('stdout', b'[0] two\n')], [('stderr', b'[1] (Pdb) ')])
    >>> lines.feed(1, "stderr", b"ok\n", 3.0)
    [('stderr', b'ok\n')]
    """

    def __init__(
        self,
        label: Callable[[int], bytes],
        screens: Mapping[str, object],
        sizes: Mapping[object, Callable[[], tuple[int, int]]] | None = None,
    ) -> None:
        self._label = label
        self._screens = screens
        self._sizes = sizes or {}
        self._lines: dict[_Source, _Line] = {}
        self._open: dict[object, _Source] = {}  # file -> source of the unfinished line at its end
        self._n_rows: dict[object, int] = {}  # terminal -> rows of the unfinished lines at its end

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> _Written:
        """Take a rank's output; return the bytes to write now."""
        source = rank, stream
        line = self._lines.setdefault(source, _Line())
        end = data.rfind(b"\n") + 1
        written: _Written = []
        if end:
            self._lines[source] = _Line()
            written = self._show(source, line.text + data[:end], line.n_shown)
            line = self._lines[source]
        if end < len(data):
            written += self._extend(source, line, data[end:], now)
        return written

    def _extend(self, source: _Source, line: _Line, data: bytes, now: float) -> _Written:
        """Add to an unfinished line; write a part of a long one."""
        rank, stream = source
        written: _Written = []
        line.text += data
        line.has_return = line.has_return or b"\r" in data
        if line.has_return and self._label(rank) and _is_rewritten(line.text):
            if self._open.get(self._screens[stream]) == source:
                written = self.end_line(stream)
            line.text, line.n_shown = _last_state(line.text), 0
        if self._screens[stream] not in self._sizes:
            line.shows_at = None if line.has_return else now + PROMPT_AFTER_S
        elif line.shows_at is None:
            line.shows_at = now + REDRAW_AFTER_S
        if len(line.text) >= MAX_LINE:
            end = len(line.text) - _n_cut(line.text)
            part, n_shown = line.text[:end], line.n_shown
            line.text, line.n_shown, line.shows_at = line.text[end:], 0, None
            written += self._show(source, part + self._end_of_part(stream), n_shown)
        return written

    def _end_of_part(self, stream: str) -> bytes:
        return b"\n" if self._screens[stream] in self._sizes else b""

    @property
    def next_due(self) -> float | None:
        """Return when `due` has output, if nothing is fed before."""
        times = [t.shows_at for t in self._lines.values() if t.shows_at is not None]
        return min(times, default=None)

    def due(self, now: float) -> _Written:
        """Return unfinished lines that have waited long enough."""
        written: _Written = []
        changed: dict[object, str] = {}
        for source, line in self._lines.items():
            if line.shows_at is None or line.shows_at > now:
                continue
            line.shows_at = None
            screen = self._screens[source[1]]
            if screen in self._sizes:
                line.is_drawn = True
                changed[screen] = source[1]
                if not all(self._sizes[screen]()):
                    line.shows_at = now + BACKGROUND_S
            elif not line.n_shown or self._open.get(screen) == source:
                text = line.text[: len(line.text) - _n_cut(line.text)]
                written += self._show(source, text, line.n_shown)
                line.n_shown = len(text)
        return written + [
            (stream, self._erase(screen) + self._draw(screen)) for screen, stream in changed.items()
        ]

    def finish(self, rank: int, stream: str) -> _Written:
        """Show the rest of a rank's output after the rank's last write."""
        source, screen = (rank, stream), self._screens[stream]
        line = self._lines.pop(source, _Line())
        rest = line.text
        if self._label(rank) and line.has_return and not _last_state(rest).strip():
            rest = bytearray()  # a progress bar that was cleared
        # Complete the line with a newline; without labels keep the bytes of a file as written.
        if (rest or self._open.get(screen) == source) and (
            self._label(rank) or screen in self._sizes
        ):
            rest += b"\n"
        if not rest and line.is_drawn:
            return [(stream, self._erase(screen) + self._draw(screen))]
        return self._show(source, rest, line.n_shown)

    def say(self, stream: str, data: bytes) -> _Written:
        """Return what writes whole lines of our own."""
        screen = self._screens[stream]
        if screen in self._sizes:
            return [(stream, self._erase(screen) + data + self._draw(screen))]
        return [*self.end_line(stream), (stream, data)]

    def end_line(self, stream: str) -> _Written:
        """End the open line of a stream's file, before another line."""
        opened = self._open.pop(self._screens[stream], None)
        return [] if opened is None else [(opened[1], b"\n")]

    def line_was_typed(self) -> _Written:
        """End the lines that can be seen: the user has answered them.

        The terminal has echoed a newline.
        """
        self._n_rows.clear()
        written = [item for stream in self._screens for item in self.end_line(stream)]
        for line in self._lines.values():
            del line.text[: line.n_shown]
            line.n_shown = 0
            if not line.text:
                line.is_drawn, line.shows_at = False, None
        return written

    def _show(self, source: _Source, data: bytearray, n_shown: int) -> _Written:
        """Write a line from its start, and lines that follow it."""
        rank, stream = source
        screen = self._screens[stream]
        label = self._label(rank)
        if screen in self._sizes:
            text = label + _labelled(data, label)
            return [(stream, self._erase(screen) + text + self._draw(screen))] if data else []
        is_open = self._open.get(screen) == source
        if n_shown and not is_open and bytes(data[n_shown : n_shown + 1]) in {b"", b"\n"}:
            data, n_shown = data[n_shown + 1 :], 0  # another's line has ended this one meanwhile
        written: _Written = []
        start = b""
        if is_open and not (label and _is_rewritten(data[: data.find(b"\n") + 1])):
            data = data[n_shown:]
        elif data:
            written, start = self.end_line(stream), label
        if not data:
            return []
        written.append((stream, start + _labelled(data, label)))
        if data.endswith(b"\n"):
            self._open.pop(screen, None)
        else:
            self._open[screen] = source
        return written

    # -- unfinished lines at the end of a terminal ------------------------------------------------

    def _erase(self, screen: object) -> bytes:
        """Return what erases the unfinished lines of a terminal."""
        n_rows = self._n_rows.pop(screen, 0)
        if not n_rows or not all(self._sizes[screen]()):
            return b""
        return b"\r" + (b"\x1b[%dA" % (n_rows - 1) if n_rows > 1 else b"") + b"\x1b[J"

    def _draw(self, screen: object) -> bytes:
        """Return what shows the unfinished lines, progress bars above questions."""
        drawn = [
            (line.has_return, source)
            for source, line in self._lines.items()
            if line.is_drawn and self._screens[source[1]] == screen
        ]
        columns, rows = self._sizes[screen]() if drawn else (0, 0)
        for _, source in drawn:
            self._lines[source].n_shown = 0
        texts: list[str] = []
        n_free = max(1, rows - 1) if columns else 0
        for has_return, source in sorted(drawn, key=lambda it: (it[0], -it[1][0], it[1][1])):
            line = self._lines[source]
            text = _plain(self._label(source[0]), line.text, 4 * columns * n_free)
            if has_return:
                text = _clip(text, columns)
            n_rows = max(1, -(-_width(text) // max(1, columns)))
            if (n_rows > n_free and texts) or not n_free:
                break
            if n_rows > n_free:
                text, n_rows = text[-(columns * n_free // 2) :], n_free
            if not has_return:
                line.n_shown = len(line.text) - _n_cut(line.text)
            n_free -= n_rows
            texts.insert(0, text)
        if texts:
            self._n_rows[screen] = max(1, rows - 1) - n_free
        return "\n".join(texts).encode()


def _labelled(data: bytearray, label: bytes) -> bytes:
    """Put the label before each line except the first."""
    if not label:
        return bytes(data)
    if b"\r" in data:
        data = bytearray(b"\n").join(map(_last_state, data.split(b"\n")))
    return bytes(data[:-1].replace(b"\n", b"\n" + label) + data[-1:])


def _last_state(line: bytearray) -> bytearray:
    r"""Return what the last carriage return left of a line.

    Examples
    --------
    >>> _last_state(bytearray(b"\r 10%\r 20%\r")), _last_state(bytearray(b"whole\r"))
    (bytearray(b' 20%\r'), bytearray(b'whole\r'))
    """
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _is_rewritten(line: bytearray) -> bool:
    """Return whether text follows a carriage return in a line."""
    return b"\r" in line.rstrip(b"\r\n")


def _plain(label: bytes, text: bytearray, max_nbytes: int) -> str:
    """Return the visible characters of an unfinished line."""
    text = text[: len(text) - _n_cut(text)][-max(1, max_nbytes) :]
    kept = (label + _last_state(text)).decode(errors="ignore")
    return _CONTROLS.sub("", kept.expandtabs())


def _width(text: str) -> int:
    """Return how many columns a text takes.

    Examples
    --------
    >>> _width("a€"), _width("日本"), _width("e\N{COMBINING ACUTE ACCENT}")
    (2, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _clip(text: str, columns: int) -> str:
    """Return as much of a text as fits into a row."""
    while _width(text) > columns:
        text = text[: columns if len(text) > columns else -1]
    return text


def _n_cut(data: bytes | bytearray) -> int:
    """Return how many last bytes are an incomplete UTF-8 character.

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
