"""Python stacks as faulthandler writes them.

Pure: text in, threads and their frames out. Whatever is no line of a dump is passed over: names
in it are a user's, and its end may be missing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Frame", "Stack", "looks_whole", "parse_dump"]

# CPython 3.10 to 3.14 (Python/traceback.c); 3.14 adds the thread's name.
_HEADER = re.compile(
    r"(?P<who>Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):"
)
_FRAME = re.compile(
    r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)'
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_CUT = {"...", "  ..."}  # after 100 threads, and after 100 frames of one
_OUTERMOST = {"<module>", "_run_module_as_main"}


class Frame(NamedTuple):
    """A place in Python code; ``line`` 0 where it is not known."""

    file: str
    line: int
    function: str


class Stack(NamedTuple):
    """One thread, innermost frame first; ``is_current``: the one that was interrupted."""

    frames: tuple[Frame, ...]
    is_current: bool


def parse_dump(text: str) -> tuple[Stack, ...]:
    r"""Threads of a dump, the newest first, so that the main thread is the last.

    Examples
    --------
    >>> parse_dump(
    ...     'Thread 0x7f (most recent call first):\n  File "a.py", line 3 in load\n'
    ... )[0].frames
    (Frame(file='a.py', line=3, function='load'),)
    """
    stacks: list[Stack] = []
    frames: list[Frame] = []
    # What comes after the last end of a line is a line that was cut.
    for line in text.split("\n")[:-1]:
        header = _HEADER.fullmatch(line)
        if header is not None:
            frames = []
            stacks.append(Stack((), header["who"] == "Current thread"))
            continue
        found = _FRAME.fullmatch(line)
        if found is not None and stacks:
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames.append(Frame(_plain(found["file"] or "???"), number, _plain(found["function"])))
            stacks[-1] = stacks[-1]._replace(frames=tuple(frames))
    return tuple(stacks)


def looks_whole(text: str) -> bool:
    """Whether a dump seems to have come to its end: the outermost frame of the main thread."""
    if not text.endswith("\n"):
        return False
    last = text[:-1].rpartition("\n")[2]
    found = _FRAME.fullmatch(last)
    return last in _CUT or (found is not None and found["function"] in _OUTERMOST)


def _plain(text: str) -> str:
    """Undo the escapes of characters beyond ASCII, where the character can be shown."""

    def character(found: re.Match[str]) -> str:
        number = int(found[1] or found[2] or found[3], 16)
        if number > 0x10FFFF:
            return found[0]
        return chr(number) if chr(number).isprintable() else found[0]

    return _ESCAPE.sub(character, text)
