"""Asking one rank for its Python stacks: a signal to it, and what comes back through a pipe.

It knows processes, signals and the pipe (`phalanx.distributed` is the rank's side of both); what
a dump says is others'.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from phalanx.distributed import LISTENER, STACK_SIGNAL

from ._dumps import looks_whole
from ._system import signal_thread

__all__ = ["StackPipe"]

MAX_NBYTES = 64 << 10  # 100 threads with 10 frames each, about; a pipe holds as much
ANSWER_S = 0.5  # without a byte; a signal handler runs within microseconds, on a busy machine later
QUIET_S = 0.1  # without a further byte, where the dump has no end yet
SETTLE_S = 0.01  # the same, where it looks whole
LOOK_EVERY_S = 0.003


class StackPipe:
    """Both ends of the pipe into which a rank writes its stacks; closed with the rank.

    The rank never waits for us: its end does not block, and what does not fit is lost.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self.write_fd, False)
        self._turn = asyncio.Lock()
        self._is_armed = False  # the rank has said that it answers

    def child_started(self) -> None:
        """Close the rank's end here: it has its own now."""
        os.close(self.write_fd)
        self.write_fd = -1

    def close(self) -> None:
        """Close; idempotent."""
        for fd in (self._read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self.write_fd = -1

    async def dump(self, pid: int) -> str | None:
        """Return a dump of the stacks of process ``pid``; None if it does not answer signals.

        An empty text: it did not answer in time.
        """
        async with self._turn:
            while self._read():  # that it answers, or what it answered too late
                self._is_armed = True
            return await self._collect() if self._is_armed and _ask(pid) else None

    async def _collect(self) -> str:
        loop = asyncio.get_running_loop()
        data = b""
        limit_s = loop.time() + ANSWER_S
        while len(data) < MAX_NBYTES and loop.time() < limit_s:
            more = self._read()
            if more:
                data += more
                is_whole = looks_whole(data.decode("ascii", "replace"))
                limit_s = loop.time() + (SETTLE_S if is_whole else QUIET_S)
            else:
                await asyncio.sleep(LOOK_EVERY_S)
        return data[:MAX_NBYTES].decode("ascii", "replace")

    def _read(self) -> bytes:
        """What there is; nothing when there is no more, for now or ever."""
        if self._read_fd < 0:
            return b""
        try:
            return os.read(self._read_fd, MAX_NBYTES)
        except BlockingIOError:
            return b""


def _ask(pid: int) -> bool:
    """Send the signal, but only to a process that (still) catches it: it would end any other."""
    if STACK_SIGNAL is None:
        return False
    try:
        status = _status(Path(f"/proc/{pid}"))
        if not _has(status["SigCgt"]) or status["State"][0] in "TtZ":
            return False
        # One that still waits for an earlier signal will answer with that.
        if not (_has(status["ShdPnd"]) or _has(status["SigPnd"])):
            thread = pid if status["State"][0] == "R" else _listener(pid)
            signal_thread(pid, thread, STACK_SIGNAL)
    except (OSError, KeyError):  # it has just ended
        return False
    return True


def _listener(pid: int) -> int:
    """The thread that a signal does not disturb, if there is one; else the main thread.

    Only while the main one sleeps: a thread that runs Python code is best read by itself, as its
    frames come and go.
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
    """Whether a mask of signals, as the kernel writes it, holds ours."""
    return STACK_SIGNAL is not None and bool(int(mask, 16) >> (STACK_SIGNAL - 1) & 1)
