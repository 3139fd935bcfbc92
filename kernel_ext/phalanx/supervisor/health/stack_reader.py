"""Read the Python stacks of a running rank and describe its place.

`StackPipe` asks for the dump and reads it; the rank's side is `distributed.bootstrap.stack_listener`.
`parse_dump` returns threads and frames. It skips lines that are not part of a dump, because a dump
contains users' names and may be cut. `place_of` chooses the thread to show and describes its place.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.distributed.bootstrap.stack_listener import LISTENER, STACK_SIGNAL, is_cell_file

from ..processes.system import signal_thread

# CPython 3.10 to 3.14 (Python/traceback.c); 3.14 adds the thread's name.
_HEADER = re.compile(
    r"(?P<who>Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):"
)
_FRAME = re.compile(
    r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)'
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_CUT = {"...", "  ..."}  # the dump's marks after 100 threads, and after 100 frames of a thread
_OUTERMOST = {"<module>", "_run_module_as_main"}

MAX_NBYTES = 64 << 10  # about 100 threads with 10 frames each; the size of a pipe's buffer
# Wait for an answer before the signal is sent: a rank that runs Python code answers within a few
# milliseconds, later under load.
SLEEPER_S = 0.1  # if the main thread sleeps, and the answering thread waits for Python's lock
RUNNER_S = 0.5  # if one of them runs or waits for a core
ANSWER_S = 0.5  # wait after the signal: a handler runs within microseconds, later under load
DUMP_PAUSE_S = 0.1  # wait for the next byte of an incomplete dump
SETTLE_S = 0.01  # wait for the next byte of a dump that looks complete
LOOK_EVERY_S = 0.003
_LIBRARIES = r"(?:.*/(?:site|dist)-packages/|.*/lib(?:64)?/python3\.\d+t?/)"
_LIBRARY = re.compile(_LIBRARIES)
_OWN_INSTALLED = re.compile(r".*/(?:site|dist)-packages/phalanx/")
# Modules between a process's first frame and the code of a cell or script.
_PLUMBING = re.compile(
    r"<frozen |" + _LIBRARIES + r"(?:IPython|asyncio|ipykernel|ipyparallel|jupyter_client|"
    r"runpy\.py|selectors\.py|tornado|traitlets|zmq)(?:/|$)"
)

# Modules in which the main thread waits for another thread of the user.
_JOINING = re.compile(_LIBRARIES + r"(?:threading|queue|concurrent/futures/\w+)\.py")

_AT_BREAKPOINT = "_do_wait_suspend"  # pydevd's wait for the user
_ASKING = "rank/input.py"
_SHOWING = "rank/output/cell_errors.py", "show_error"
_DEPTH = 40  # most frames shown to a user


class Frame(NamedTuple):
    """Describe a place in Python code; ``line`` 0: not known."""

    file: str
    line: int
    function: str


class Stack(NamedTuple):
    """Describe one thread's frames, innermost first.

    ``is_current`` marks the thread that wrote the dump.
    """

    frames: tuple[Frame, ...]
    is_current: bool


def parse_dump(text: str) -> tuple[Stack, ...]:
    r"""Return the threads of a dump, newest first and main thread last.

    Examples
    --------
    >>> parse_dump(
    ...     'Thread 0x7f (most recent call first):\n  File "a.py", line 3 in load\n'
    ... )[0].frames
    (Frame(file='a.py', line=3, function='load'),)
    """
    stacks: list[Stack] = []
    frames: list[Frame] = []
    # Text after the last newline is a cut line.
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
    """Whether a dump ends with the outermost frame of the main thread."""
    if not text.endswith("\n"):
        return False
    last = text[:-1].rpartition("\n")[2]
    found = _FRAME.fullmatch(last)
    return last in _CUT or (found is not None and found["function"] in _OUTERMOST)


def _plain(text: str) -> str:
    """Undo the escapes of non-ASCII characters that are printable."""

    def character(found: re.Match[str]) -> str:
        number = int(found[1] or found[2] or found[3], 16)
        if number > 0x10FFFF:
            return found[0]
        return chr(number) if chr(number).isprintable() else found[0]

    return _ESCAPE.sub(character, text)


class StackPipe:
    """Ask one rank for its stacks, through two pipes.

    One is for requests, one for answers. They are closed with the rank. The rank's end for answers
    does not block, so the rank never waits for the supervisor; data that does not fit is lost.
    """

    def __init__(self) -> None:
        request_fd, self._request_fd = os.pipe()
        try:
            self._answer_fd, answer_fd = os.pipe()
        except OSError:  # no descriptor is left
            os.close(request_fd)
            os.close(self._request_fd)
            raise
        self.rank_fds: tuple[int, ...] = request_fd, answer_fd  # inherited by the rank
        for fd in (self._request_fd, self._answer_fd, answer_fd):
            os.set_blocking(fd, False)
        self._turn = asyncio.Lock()
        self._is_armed = False  # the rank has reported that it answers

    def child_started(self) -> None:
        for fd in self.rank_fds:
            os.close(fd)
        self.rank_fds = ()

    def close(self) -> None:
        """Close the pipes; idempotent."""
        for fd in (*self.rank_fds, self._request_fd, self._answer_fd):
            if fd >= 0:
                os.close(fd)
        self._request_fd = self._answer_fd = -1
        self.rank_fds = ()

    async def dump(self, pid: int) -> str | None:
        """Return a dump of the stacks of process ``pid``.

        This takes about a second at most. None: the process does not answer requests. Empty: it
        did not answer in time.
        """
        async with self._turn:
            while self._read():  # the rank's report that it answers, or a late answer
                self._is_armed = True
            if not (self._is_armed and _state(pid) in _ANSWERING and self._request()):
                return None
            loop = asyncio.get_running_loop()
            limit_s = loop.time() + RUNNER_S
            text = await self._collect(SLEEPER_S)
            while not (text or _sleeps_with_lock(pid) or loop.time() >= limit_s):
                text = await self._collect(SLEEPER_S)
            if not text and _signal(pid):
                text = await self._collect(ANSWER_S)
            return text

    async def _collect(self, wait_s: float) -> str:
        """Return a dump; "" if none has begun within ``wait_s``."""
        loop = asyncio.get_running_loop()
        data = b""
        limit_s = loop.time() + wait_s
        while len(data) < MAX_NBYTES and loop.time() < limit_s:
            more = self._read()
            if more:
                data += more
                is_whole = looks_whole(data.decode("ascii", "replace"))
                limit_s = loop.time() + (SETTLE_S if is_whole else DUMP_PAUSE_S)
            else:
                await asyncio.sleep(LOOK_EVERY_S)
        return data[:MAX_NBYTES].decode("ascii", "replace")

    def _request(self) -> bool:
        """Ask for a dump; False if the rank has closed its end.

        Another program may run there by now.
        """
        try:
            os.write(self._request_fd, b"\n")
        except BlockingIOError:
            return True  # full of requests: the oldest is still to be answered
        except OSError:
            return False
        return True

    def _read(self) -> bytes:
        """Return the available bytes; empty if there are none."""
        if self._answer_fd < 0:
            return b""
        try:
            return os.read(self._answer_fd, MAX_NBYTES)
        except BlockingIOError:
            return b""


_ANSWERING = frozenset("RSDI")  # states of a process that is neither stopped nor over


def _state(pid: int) -> str:
    """Return the state that the kernel gives to the main thread.

    Such as "R" for running; "" if the process is gone.
    """
    try:
        return _status(Path(f"/proc/{pid}"))["State"][:1]
    except (OSError, KeyError):
        return ""


def _sleeps_with_lock(pid: int) -> bool:
    """Whether the main thread sleeps in C and keeps Python's lock.

    Then the listener sleeps, too: it waits for the lock. A listener that runs has the lock, or
    waits for a core.
    """
    try:
        listener = _status(Path(f"/proc/{pid}/task/{_listener(pid)}"))
        return _state(pid) != "R" and listener["State"][0] != "R"
    except (OSError, KeyError):  # the process has just ended
        return True


def _signal(pid: int) -> bool:
    """Send the signal if the process still catches it.

    The signal would kill a process that does not catch it.
    """
    if STACK_SIGNAL is None:
        return False
    try:
        status = _status(Path(f"/proc/{pid}"))
        if not _has(status["SigCgt"]) or status["State"][0] not in _ANSWERING:
            return False
        # A process with an earlier signal pending will answer that one.
        if not (_has(status["ShdPnd"]) or _has(status["SigPnd"])):
            thread = pid if status["State"][0] == "R" else _listener(pid)
            signal_thread(pid, thread, STACK_SIGNAL)
    except (OSError, KeyError):  # the process has just ended
        return False
    return True


def _listener(pid: int) -> int:
    """Return the thread to signal: the listener, or else the main thread.

    The listener thread is not disturbed by the signal. It is used only while the main thread
    sleeps: a thread that runs code is best read by itself, because its frames change.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text(errors="replace").strip() == LISTENER and not _has(
            _status(task)["SigBlk"]
        ):
            return int(task.name)
    return pid


def _status(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _has(mask: str) -> bool:
    """Whether the kernel's signal mask contains the stack signal."""
    return STACK_SIGNAL is not None and bool(int(mask, 16) >> (STACK_SIGNAL - 1) & 1)


_OWN = str(Path(__file__).resolve().parents[2]) + "/"


class Place(NamedTuple):
    """Describe a place as ``text``, with the frames around the place.

    ``text`` is "" where no user code runs. ``is_asking``: the place waits for a typed line.
    ``is_showing``: the cell's code has ended and its error is being written.
    """

    text: str
    frames: tuple[str, ...]
    is_asking: bool = False
    is_showing: bool = False


def place_of(stacks: Sequence[Stack], cwd: str = "") -> Place:
    """Return the place of the thread to show, such as ``file.py:31 in load <- cell line 3``.

    This is the main thread, unless it only waits for another thread and one thread is inside an
    operation of ours. Files below ``cwd`` are shown relative to ``cwd``.

    Examples
    --------
    >>> place_of([Stack((Frame("/w/train.py", 31, "load"), Frame("/w/a.py", 3, "<module>")), True)])
    Place(text='train.py:31 in load', frames=('/w/train.py:31 in load', '/w/a.py:3'), \
is_asking=False, is_showing=False)
    """
    if not stacks:
        return Place("", ())
    main = stacks[-1].frames
    chosen = main
    if main and _JOINING.fullmatch(main[0].file) and not _is_asking(main):
        inside = [s.frames for s in stacks[:-1] if _is_inside(s.frames)]
        chosen = inside[0] if inside else main
    users = _users(chosen)
    if not users and any(_is_showing(frame) for frame in chosen):
        return Place("", (), is_showing=True)  # inside a library that colours the lines
    cell = _cell_of(users)
    shown = [_long(frame, cell, cwd) for frame in _shown(chosen)]
    if len(shown) > _DEPTH:
        shown[_DEPTH:] = [f"… and {len(shown) - _DEPTH} more"]
    return Place(_words(chosen, users, cell), tuple(shown), _is_asking(chosen))


def _is_own(frame: Frame) -> bool:
    return frame.file.startswith(_OWN) or _OWN_INSTALLED.match(frame.file) is not None


def _is_showing(frame: Frame) -> bool:
    file, function = _SHOWING
    return frame.function == function and frame.file.endswith(file) and _is_own(frame)


def _is_users(frame: Frame) -> bool:
    is_others = _LIBRARY.match(frame.file) or _PLUMBING.match(frame.file)
    return not (_is_own(frame) or is_others or frame.file == "<string>")


def _shown(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without ours and without those that run cells.

    Frames of libraries that our code calls inside a user's call are left out, too.
    """
    first = next((at for at, frame in enumerate(frames) if _is_users(frame)), 0)
    begin = max((at for at in range(first) if _is_own(frames[at])), default=0)
    return [f for f in frames[begin:] if not (_is_own(f) or _PLUMBING.match(f.file))]


def _users(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the user's own files, innermost first."""
    return [frame for frame in frames if _is_users(frame)]


def _is_inside(frames: Sequence[Frame]) -> bool:
    return bool(frames) and _is_own(frames[0]) and bool(_users(frames))


def _is_asking(frames: Sequence[Frame]) -> bool:
    """Whether the user's innermost frame reads the cell's input."""
    users = _users(frames)
    above = frames[: frames.index(users[0])] if users else ()
    return any(
        (_is_own(frame) and frame.file.endswith(_ASKING)) or frame.function == _AT_BREAKPOINT
        for frame in above
    )


def _cell_of(users: Sequence[Frame]) -> str:
    """Return the running cell's file: of the outermost frame; "": no cell."""
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
