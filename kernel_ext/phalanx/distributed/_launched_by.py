"""Which process started this one as a rank of a bare environment: it tells two jobs apart.

Two runs of `mlx.launch` describe the same ring unless they are told different ports. Nothing in
their variables differs, but who has set them: the parent of the first process in the line of our
ancestors that has them. It knows /proc, and says `NOBODY` where there is none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["NOBODY", "Launcher", "are_two_jobs", "launched_by"]


class Launcher(NamedTuple):
    """A process: its id, and when it started in clock ticks, as ids are used again."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether it still runs, as far as can be seen from here."""
        return self.pid > 0 and _started(self.pid) == self.started


NOBODY = Launcher(0, 0)


def launched_by(variable: str) -> Launcher:
    """Who set ``variable`` in the environment that this process was started with.

    Examples
    --------
    >>> import os
    >>> launched_by("PHALANX_THAT_NOBODY_SETS").pid in {os.getppid(), 0}
    True
    """
    pid = os.getpid()
    while pid > 1:
        pid = _parent(pid)
        if not _has(pid, variable):
            started = _started(pid)
            return Launcher(pid, started) if started else NOBODY
    return NOBODY


def are_two_jobs(one: Launcher, two: Launcher) -> bool:
    """Whether ranks that were started by these cannot be of one job.

    A launcher that is gone has handed its ranks to some other parent, and says nothing any more.

    Examples
    --------
    >>> import os
    >>> us = launched_by("PHALANX_THAT_NOBODY_SETS")
    >>> are_two_jobs(us, us), are_two_jobs(us, Launcher(us.pid, 1)), are_two_jobs(us, NOBODY)
    (False, False, False)
    """
    return one != two and one.is_alive() and two.is_alive()


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: the second, a name, may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _started(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[19]) if fields else 0


def _has(pid: int, variable: str) -> bool:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # another user's: nobody who started us with it
    return any(entry.startswith(variable.encode() + b"=") for entry in entries)
