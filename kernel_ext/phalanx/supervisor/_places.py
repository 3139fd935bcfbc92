"""Where a rank's code is, in the words of whoever wrote that code.

Pure: threads and frames in, words out. It knows which packages run a cell or a script; it knows
neither ranks nor operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.distributed import is_cell_file

from ._dumps import Frame, Stack

__all__ = ["Place", "place_of"]

_OWN = str(Path(__file__).resolve().parent.parent) + "/"
_LIBRARIES = r"(?:.*/(?:site|dist)-packages/|.*/lib(?:64)?/python3\.\d+t?/)"
_LIBRARY = re.compile(_LIBRARIES)
_OWN_INSTALLED = re.compile(r".*/(?:site|dist)-packages/phalanx/")
# What stands between a process's first frame and a cell's or a script's own code.
_PLUMBING = re.compile(
    r"<frozen |" + _LIBRARIES + r"(?:IPython|asyncio|ipykernel|ipyparallel|jupyter_client|"
    r"runpy\.py|selectors\.py|tornado|traitlets|zmq)(?:/|$)"
)
# Where the main thread waits for another thread of the user's.
_JOINING = re.compile(_LIBRARIES + r"(?:threading|queue|concurrent/futures/\w+)\.py")
_ASKING = "rank/_input.py"
_DEPTH = 40  # frames that a person is shown


class Place(NamedTuple):
    """A place as ``text``, "" where no user's code runs, and the frames around it.

    ``is_asking``: it waits for a typed line there.
    """

    text: str
    frames: tuple[str, ...]
    is_asking: bool = False


def place_of(stacks: Sequence[Stack], cwd: str = "") -> Place:
    """Find the thread that matters and say where it is, ``file.py:31 in load <- cell line 3``.

    That is the main thread, unless it only waits for another thread and one is inside an
    operation of ours. Files below ``cwd`` are named from there.

    Examples
    --------
    >>> place_of([Stack((Frame("/w/train.py", 31, "load"), Frame("/w/a.py", 3, "<module>")), True)])
    Place(text='train.py:31 in load', frames=('/w/train.py:31 in load', '/w/a.py:3'), \
is_asking=False)
    """
    if not stacks:
        return Place("", ())
    main = stacks[-1].frames
    chosen = main
    if main and _JOINING.fullmatch(main[0].file) and not _is_asking(main):
        inside = [s.frames for s in stacks[:-1] if _is_inside(s.frames)]
        chosen = inside[0] if inside else main
    users = _users(chosen)
    cell = _cell_of(users)
    shown = [_long(frame, cell, cwd) for frame in _shown(chosen)]
    if len(shown) > _DEPTH:
        shown[_DEPTH:] = [f"… and {len(shown) - _DEPTH} more"]
    return Place(_words(chosen, users, cell), tuple(shown), _is_asking(chosen))


def _is_own(frame: Frame) -> bool:
    return frame.file.startswith(_OWN) or _OWN_INSTALLED.match(frame.file) is not None


def _is_users(frame: Frame) -> bool:
    is_others = _LIBRARY.match(frame.file) or _PLUMBING.match(frame.file)
    return not (_is_own(frame) or is_others or frame.file == "<string>")


def _shown(frames: Sequence[Frame]) -> list[Frame]:
    """All but ours, what runs cells and scripts, and what we call where the user calls us."""
    first = next((at for at, frame in enumerate(frames) if _is_users(frame)), 0)
    begin = max((at for at in range(first) if _is_own(frames[at])), default=0)
    return [f for f in frames[begin:] if not (_is_own(f) or _PLUMBING.match(f.file))]


def _users(frames: Sequence[Frame]) -> list[Frame]:
    """Frames of the user's own files, innermost first."""
    return [frame for frame in frames if _is_users(frame)]


def _is_inside(frames: Sequence[Frame]) -> bool:
    return bool(frames) and _is_own(frames[0]) and bool(_users(frames))


def _is_asking(frames: Sequence[Frame]) -> bool:
    """Whether a read of the cell's input stands between the innermost frame and the user's."""
    users = _users(frames)
    above = frames[: frames.index(users[0])] if users else ()
    return any(_is_own(frame) and frame.file.endswith(_ASKING) for frame in above)


def _cell_of(users: Sequence[Frame]) -> str:
    """The file of the cell that runs: of the outermost frame, "" if that is in no cell."""
    return users[-1].file if users and is_cell_file(users[-1].file) else ""


def _words(frames: Sequence[Frame], users: Sequence[Frame], cell: str) -> str:
    if not users:
        libraries = [frame for frame in _shown(frames) if not _JOINING.fullmatch(frame.file)]
        return _long(libraries[0], "", "") if libraries else ""
    words = _short(users[0], cell)
    if cell and len(users) > 1 and users[0] != users[-1]:
        words += f" <- {_short(users[-1], cell)}"
    return words


def _short(frame: Frame, cell: str) -> str:
    return _place(Path(frame.file).name, frame, cell)


def _long(frame: Frame, cell: str, cwd: str) -> str:
    file = _LIBRARY.sub("", frame.file)
    if cwd and file.startswith(cwd.rstrip("/") + "/"):
        file = file[len(cwd.rstrip("/")) + 1 :]
    return _place(file, frame, cell)


def _place(file: str, frame: Frame, cell: str) -> str:
    function = "" if frame.function.startswith(("<module>", "<cell line")) else frame.function
    inside = f" in {function}" if function else ""
    line = str(frame.line) if frame.line else "?"
    if not is_cell_file(frame.file):
        return f"{file}:{line}{inside}"
    return f"{'' if frame.file == cell else 'earlier '}cell line {line}{inside}"
