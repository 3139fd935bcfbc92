"""Whether the kernel killed a process because memory had run out: the counts of control groups.

It knows Linux's files of control groups, versions 1 and 2; elsewhere it finds nothing.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

__all__ = ["REASON", "OutOfMemory"]

REASON = "was killed by the kernel: out of memory"
# A count grows before its victim gets the signal, and a big process takes a while to be gone.
RECENT_S = 10.0


class OutOfMemory:
    """Tells whether a process that SIGKILL ended was out of memory.

    A group counts its victims and does not name them. So the counts are read often (`look`): one
    that has just grown explains the death of one process of the group.

    Parameters
    ----------
    proc, groups : Path
        Where the kernel's files are; others in tests.
    """

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._groups = groups
        self._files: dict[int, Path] = {}  # by process
        self._counts: dict[Path, int] = {}
        self._kills: dict[Path, deque[float]] = {}  # when counts were seen to grow, by victim

    def look(self, pid: int, now_s: float) -> None:
        """Note where a living process is, and how many of its group were killed so far."""
        file = self._file_of(pid)
        if file is not None:
            self._files[pid] = file
            self._count(file, now_s)

    def explains(self, pid: int, now_s: float) -> bool:
        """Whether memory that ran out ended this process; called once, when it is gone."""
        file = self._files.pop(pid, None)
        if file is None:
            return False
        self._count(file, now_s)
        kills = self._kills.get(file, deque())
        while kills and now_s - kills[0] > RECENT_S:
            kills.popleft()
        if not kills:
            return False
        kills.popleft()
        return True

    def _count(self, file: Path, now_s: float) -> None:
        count = _oom_kills(file)
        more = count - self._counts.get(file, count)
        self._counts[file] = count
        if more > 0:
            self._kills.setdefault(file, deque()).extend([now_s] * more)

    def _file_of(self, pid: int) -> Path | None:
        """Where the group of a process counts, if it does (that of the whole machine does not)."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return None
        found: list[Path] = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            # In a container the path may be the one outside, of which here is only the end.
            inside = path.lstrip("/")
            if "memory" in controllers.split(","):
                folder, name = self._groups / "memory", "memory.oom_control"
                found[:0] = [folder / inside / name, folder / name]
            elif not controllers:
                for folder in (self._groups, self._groups / "unified"):
                    found += [folder / inside / "memory.events", folder / "memory.events"]
        return next((file for file in found if file.is_file()), None)


def _oom_kills(file: Path) -> int:
    """The number in a group's line "oom_kill N"; 0 where there is none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    words = (line.split() for line in lines)
    return next((int(word[1]) for word in words if word[:1] == ["oom_kill"]), 0)
