"""The process that ends what ranks have left behind: `python -I -S _sweep.py WORLD RECORD`.

A process belongs to a world if it carries the world's mark in its environment, which it has from
the rank that started it, however deep and detached, or if it is in a rank's process group. This
file imports nothing but the standard library, so that it is up in 10 ms and stays small.

The supervisor of WORLD is the parent, and writes to the standard input: ``+pid serial`` when it
has started a child, ``-pid serial`` when that one is gone (what it left behind goes now; after a
``~``, when all are being ended, with all the rest: a look at all processes of a machine takes
milliseconds, and there is one anyway). The end of the input is the end of the supervisor, whatever
it was: all of the world goes. So does its file
RECORD in the runtime folder (empty: it has none), but for a supervisor that said ``.`` before the
end: it sees to that itself. First of all,
worlds whose supervisor is gone and that nobody has swept are (after a power cut there is nothing;
after a `kill -9` of everything of ours there may be).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = b"PHALANX_WORLD="
PATIENCE_MS = 2000  # for what does not even die of SIGKILL: it waits for a disk or a device
_PROC = Path("/proc")


def start_of(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty if it is gone, or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    # "pid (name) state ...": the name may hold anything, also brackets.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def mark_of(pid: int) -> str:
    """The mark that a process carries; empty without one, or where we may not look."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    for variable in environment.split(b"\0") if MARK in environment else ():
        if variable.startswith(MARK):
            return variable[len(MARK) :].decode(errors="replace")
    return ""


def _marked() -> Iterator[tuple[int, int, str]]:
    """Pidfd, pid and mark of each process that has one; the pidfd is open for that long."""
    for folder in _PROC.iterdir() if _PROC.is_dir() else ():
        name = folder.name
        if not name.isdecimal():
            continue
        # The descriptor first: what it then kills is what was looked at.
        try:
            pidfd = os.pidfd_open(int(name))
        except OSError:
            continue
        try:
            if mark := mark_of(int(name)):
                yield pidfd, int(name), mark
        finally:
            os.close(pidfd)


def sweep(is_ours: Callable[[int, str], bool]) -> None:
    """Kill the processes that are ours by ``is_ours(pid, mark)``, until there is none."""
    poller = select.poll()
    left_ms = PATIENCE_MS
    found = True
    while found and left_ms > 0:
        found = False
        for pidfd, pid, mark in _marked():
            if pid == os.getpid() or not is_ours(pid, mark):
                continue
            found = True
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(min(left_ms, 50)):
                left_ms -= 50
            poller.unregister(pidfd)


def _is_orphan(pid: int, mark: str) -> bool:
    """Whether the supervisor that gave this mark is gone; only of our user, in our namespace."""
    root, _, rest = mark.partition(".")
    start = rest.partition(".")[0]
    if not root.isdecimal() or not start.isdecimal():
        return False
    try:
        folder = _PROC / str(pid)
        is_same_user = folder.stat().st_uid == os.geteuid()
        # In another namespace the number of its supervisor means nothing to us.
        is_near = (folder / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError:
        return False
    return is_same_user and is_near and start_of(int(root)) != start


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove_record(path: Path, supervisor: int) -> None:
    """Remove the record of the supervisor that is gone; not that of one which has its name now."""
    poller = select.poll()
    poller.register(supervisor, select.POLLIN)
    poller.poll(PATIENCE_MS)  # the end of our input comes a little before its locks are free
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
            path.unlink()


def main() -> None:
    """Sweep as told, until the supervisor is gone; then all that it had."""
    # Who wants to end the world ends its supervisor.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    world, record = sys.argv[1:]
    supervisor = os.pidfd_open(os.getppid())
    is_regular = is_ending = False
    children: set[int] = set()
    sweep(_is_orphan)
    for line in sys.stdin:
        if line[0] == ".":
            is_regular = True
            continue
        if line[0] == "~":
            is_ending = True
            continue
        pid, serial = line[1:].split()
        if line[0] == "+":
            children.add(int(pid))
        else:
            children.discard(int(pid))
            gone = f"{world}.{serial}"
            if not is_ending:
                sweep(lambda _, mark, gone=gone: mark == gone)  # type: ignore[misc]
    for child in children:
        _kill_group(child)
    sweep(lambda _, mark: mark.startswith(f"{world}."))
    if record and not is_regular:
        _remove_record(Path(record), supervisor)


if __name__ == "__main__":
    main()
