"""Control characters of a printed line: colours are kept, and everything else is made harmless.

Pure. A line of a rank stands between those of other ranks, in a browser or a terminal: it may
not clear the screen, move the cursor, set the title or colour what others say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Colours", "without_controls"]

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, the screen
    r"|\x1b[]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and the like: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[([\d;:]{0,64})m")


def without_controls(text: str) -> str:
    r"""Take the controls out of a line, but colours; a lone character becomes its picture.

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
    r"""What is switched on at the end of a line goes on in the next one of the same stream.

    Examples
    --------
    >>> colours = Colours()
    >>> colours.of("\x1b[31mred"), colours.of("still\x1b[39m not"), colours.of("plain")
    ('\x1b[31mred\x1b[0m', '\x1b[31mstill\x1b[39m not', 'plain')
    """

    def __init__(self) -> None:
        self._on: dict[str, str] = {}  # by what it is: "fg", "bg", or the attribute's number

    def of(self, line: str) -> str:
        """Return the line as one that begins and ends without colours."""
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
            if number == 0:
                self._on.clear()
            elif number in _OFF:
                for what in _OFF[number]:
                    self._on.pop(what, None)
            elif number in {38, 48}:
                self._on["fg" if number == 38 else "bg"] = ";".join([word, *_rest(words)])
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self._on["fg"] = word
            elif 40 <= number <= 47 or 100 <= number <= 107:
                self._on["bg"] = word
            elif number < 10:
                self._on[str(number)] = word


_OFF = {
    22: ("1", "2"),
    23: ("3",),
    24: ("4",),
    25: ("5", "6"),
    27: ("7",),
    28: ("8",),
    29: ("9",),
    39: ("fg",),
    49: ("bg",),
}


def _rest(words: Iterator[str]) -> list[str]:
    """The words that belong to 38 or 48: a number in a palette, or red, green and blue."""
    kind = next(words, "5")
    return [kind, *(next(words, "0") for _ in range(3 if kind == "2" else 1))]
