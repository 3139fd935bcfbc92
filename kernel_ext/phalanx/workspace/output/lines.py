"""Build whole lines from pieces of printed text.

Handles progress bars, control characters and ``clear_output``. A rank's line stands between those
of other ranks, in a browser or a terminal. So it must not clear the screen, move the cursor, set
the title or colour other ranks' lines. The work per character and the memory per line are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, the screen
    r"|\x1b[]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and the like: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[([\d;:]{0,64})m")

# What these numbers switch off; the others up to 29 switch off the number less 20.
_OFF = {22: ("1", "2"), 25: ("5", "6"), 39: ("fg",), 49: ("bg",)}

StreamName = Literal["stdout", "stderr"]
LINE_LIMIT = 100_000  # characters kept of a line; a browser freezes on longer ones
MAX_LINES = 20  # per rank; longer text is not a rewritten status, so it is shown as normal lines


def without_controls(text: str) -> str:
    r"""Remove control sequences except colours from a line.

    A single control character becomes its Unicode symbol. A backspace removes the character before
    it.

    Examples
    --------
    >>> without_controls("\x1b[2J\x1b]0;title\x07a\0b\x1b[31mred\x1b[0m |\b/")
    'a␀b\x1b[31mred\x1b[0m /'
    """
    if text.isprintable():
        return text
    if "\b" in text:
        text = _rub_out(text)
    return _CONTROL.sub(_harmless, text)


def _harmless(match: re.Match[str]) -> str:
    control = match[0]
    if control[0] == "\x1b":
        return control if _COLOUR.fullmatch(control) else ""
    code = ord(control)
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def _rub_out(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


class Colours:
    r"""Carries colours over from one line to the next of a stream.

    Examples
    --------
    >>> colours = Colours()
    >>> colours.of("\x1b[31mred"), colours.of("still\x1b[39m not"), colours.of("plain")
    ('\x1b[31mred\x1b[0m', '\x1b[31mstill\x1b[39m not', 'plain')
    """

    def __init__(self) -> None:
        self._on: dict[str, str] = {}  # key: "fg", "bg", or the attribute's number

    def of(self, line: str) -> str:
        """Return the line complete: carried colours set first, all reset last."""
        before = self._codes()
        for match in _COLOUR.finditer(line):
            self._switch(match[1])
        return before + line + ("\x1b[0m" if self._on else "")

    def _codes(self) -> str:
        return f"\x1b[{';'.join(self._on.values())}m" if self._on else ""

    def _switch(self, parameters: str) -> None:
        words = iter(parameters.replace(":", ";").split(";"))
        for word in words:
            number = int(word or 0)
            rest = _rest(words) if number in {38, 48} else []
            if number == 0:
                self._on.clear()
            elif 22 <= number <= 29 or number in _OFF:
                for what in _OFF.get(number, (str(number - 20),)):
                    self._on.pop(what, None)
            elif 30 <= number <= 38 or 90 <= number <= 97:
                self._on["fg"] = ";".join([word, *rest])
            elif 40 <= number <= 48 or 100 <= number <= 107:
                self._on["bg"] = ";".join([word, *rest])
            elif number < 10:
                self._on[str(number)] = word


def _rest(words: Iterator[str]) -> list[str]:
    """Return the parameters of 38 or 48: a palette index or RGB."""
    kind = next(words, "5")
    return [kind, *(next(words, "0") for _ in range(3 if kind == "2" else 1))]


@dataclass
class _PartialLine:
    """A line without its newline yet, and the text it has overwritten."""

    pieces: list[str] = field(default_factory=list)  # since the last carriage return
    n_kept: int = 0  # characters in `pieces`, at most `LINE_LIMIT`
    n_dropped: int = 0
    overwritten: str = ""  # the text before the last carriage return
    is_bar: bool = False  # a carriage return has rewritten the line, as progress bars do

    def add(self, text: str) -> None:
        before, cr, after = text.rpartition("\r")
        if cr:
            # Only the last overwritten text can still be visible: "10%\r" shows 10%.
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
        """Return the line as a terminal shows it."""
        return self._text() or self.overwritten


class LineAssembler:
    r"""Keeps the text of ranks that may still change.

    That is the unfinished line of each stream, and the last lines of ranks that use
    ``clear_output``. A notebook cannot remove lines it has shown. So these lines are held back and
    drawn in the place of progress bars. They become normal lines when nothing can clear them any
    more.

    Examples
    --------
    >>> lines = LineAssembler()
    >>> lines.feed(0, "stdout", "one\ntw"), lines.feed(0, "stdout", "o\n")
    (['one'], ['two'])
    >>> lines.feed(1, "stderr", "\r10%\r20%"), lines.bars()
    ([], {1: '20%'})
    >>> for loss in ("0.9", "0.5"):
    ...     lines.clear(0, wait=True)
    ...     assert lines.take(0, "stdout", f"{loss}\n") == []
    >>> lines.bars(), lines.finish()
    ({0: '0.5', 1: '20%'}, [(0, 'stdout', '0.5'), (1, 'stderr', '20%')])
    """

    def __init__(self) -> None:
        self._unfinished: dict[tuple[int, StreamName], _PartialLine] = {}
        self._colours: dict[tuple[int, StreamName], Colours] = {}
        self._held: dict[int, list[tuple[StreamName, str]]] = {}  # since a rank's last clear
        self._stale: set[int] = set()  # the next text of these ranks clears what is held

    def take(self, rank: int, stream: StreamName, text: str) -> list[tuple[StreamName, str]]:
        """Add text; return the complete lines that nothing can clear."""
        if rank in self._stale:
            self.clear(rank, wait=False)
        lines = [(stream, line) for line in self.feed(rank, stream, text)]
        held = self._held.get(rank)
        if held is None:
            return lines
        held += lines
        return self._held.pop(rank) if len(held) > MAX_LINES else []

    def clear(self, rank: int, *, wait: bool) -> None:
        """Clear what a rank printed since its last clear.

        ``wait``: clear at the rank's next text.
        """
        held = self._held.setdefault(rank, [])
        if wait:
            self._stale.add(rank)
            return
        self._stale.discard(rank)
        held.clear()
        for key in [key for key in self._unfinished if key[0] == rank]:
            del self._unfinished[key]

    def feed(self, rank: int, stream: StreamName, text: str) -> list[str]:
        """Add text; return the lines now complete, without newlines."""
        key = rank, stream
        *whole, rest = text.split("\n")
        lines = []
        for piece in whole:
            line = self._unfinished.pop(key, None) or _PartialLine()
            # The carriage return of a DOS line end overwrites nothing.
            line.add(piece.removesuffix("\r"))
            lines.append(self._coloured(key, line.shown()))
        if rest:
            self._unfinished.setdefault(key, _PartialLine()).add(rest)
        return lines

    def bars(self) -> dict[int, str]:
        """Return the held lines of each rank, with its progress bar below."""
        texts = {rank: [line for _, line in held] for rank, held in self._held.items() if held}
        bars = sorted(item for item in self._unfinished.items() if item[1].is_bar)
        for rank, bar in {rank: text for (rank, _), line in bars if (text := line.shown())}.items():
            texts.setdefault(rank, []).append(bar)
        return {rank: "\n".join(lines) for rank, lines in sorted(texts.items())}

    def finish(self) -> list[tuple[int, StreamName, str]]:
        """Remove and return held and unfinished lines, ordered by rank."""
        rest = [(rank, *line) for rank, held in sorted(self._held.items()) for line in held]
        for held in self._held.values():
            held.clear()
        for key, line in sorted(self._unfinished.items()):
            if text := line.shown():
                rest.append((*key, self._coloured(key, text)))
        self._unfinished.clear()
        return rest

    def _coloured(self, key: tuple[int, StreamName], line: str) -> str:
        if "\x1b" not in line and key not in self._colours:
            return line
        return self._colours.setdefault(key, Colours()).of(line)
