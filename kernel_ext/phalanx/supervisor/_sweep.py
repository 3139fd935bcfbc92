"""The process that ends what ranks have left behind: `python -I -S _sweep.py WORLD RECORD`.

A process belongs to a world if it carries the world's mark in its environment, which it has from
the rank that started it, however deep and detached, or if it is in a rank's process group. This
file imports nothing but the standard library on Linux, so that it is up in 10 ms and stays small.

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
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

MARK = b"PHALANX_WORLD="
PATIENCE_MS = 2000  # for what does not even die of SIGKILL: it waits for a disk or a device
_PROC = Path("/proc")


# Where there is no /proc, psutil knows a way; it is not in the standard library.
HAS_PROC = hasattr(os, "pidfd_open")
ELSEWHERE = "t"  # before a start in microseconds, so that none is taken for one in ticks
FLAGS = ("-I", "-S") if HAS_PROC else ("-I",)


def start_of(pid: int) -> str:
    """When a process was started, in the system's own count; empty if it is gone, or a zombie."""
    return _start_in_proc(pid) if HAS_PROC else _start_elsewhere(pid)


def _start_in_proc(pid: int) -> str:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    # "pid (name) state ...": the name may hold anything, also brackets.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _start_elsewhere(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return "" if is_zombie else f"{ELSEWHERE}{round(process.create_time() * 1e6)}"
    except psutil.Error:
        return ""


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


# Pid and mark of a process that has one, and how to kill it: waits up to so many ms for its end,
# and says whether that has come. What is killed is what was looked at.
_Found = tuple[int, str, Callable[[int], bool]]


def _marked() -> Iterator[_Found]:
    """The processes that have a mark; each can be killed until the next one is asked for."""
    assert hasattr(os, "pidfd_open")
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
                yield int(name), mark, partial(_kill_pidfd, pidfd)
        finally:
            os.close(pidfd)


def _kill_pidfd(pidfd: int, wait_ms: int) -> bool:
    assert hasattr(signal, "pidfd_send_signal")
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(wait_ms))


def _marked_elsewhere() -> Iterator[_Found]:
    """As `_marked`."""
    import psutil

    variable = MARK.decode().rstrip("=")
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(variable, "")
        except (psutil.Error, OSError):  # another user's, or the system's, or it has just ended
            continue
        if mark:
            yield process.pid, mark, partial(_kill_elsewhere, process)


def _kill_elsewhere(process: Any, wait_ms: int) -> bool:
    import psutil

    try:
        process.kill()  # looks whether it is the same still
        process.wait(wait_ms / 1000)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return True


def sweep(is_ours: Callable[[int, str], bool]) -> None:
    """Kill the processes that are ours by ``is_ours(pid, mark)``, until there is none."""
    left_ms = PATIENCE_MS
    found = True
    while found and left_ms > 0:
        found = False
        for pid, mark, kill in _marked() if HAS_PROC else _marked_elsewhere():
            if pid == os.getpid() or not is_ours(pid, mark):
                continue
            found = True
            if not kill(min(left_ms, 50)):
                left_ms -= 50


def _is_orphan(pid: int, mark: str) -> bool:
    """Whether the supervisor that gave this mark is gone; only of our user, in our namespace."""
    root, _, rest = mark.partition(".")
    start = rest.partition(".")[0]
    count = start if HAS_PROC else start.removeprefix(ELSEWHERE)
    # One that is counted otherwise is of a world of the other kind, which has its own sweepers.
    if not root.isdecimal() or not count.isdecimal() or (count == start) is not HAS_PROC:
        return False
    is_like_us = _is_of_us_in_proc if HAS_PROC else _is_of_us_elsewhere
    return is_like_us(pid) and start_of(int(root)) != start


def _is_of_us_in_proc(pid: int) -> bool:
    try:
        folder = _PROC / str(pid)
        is_same_user = folder.stat().st_uid == os.geteuid()
        # In another namespace the number of its supervisor means nothing to us.
        is_near = (folder / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError:
        return False
    return is_same_user and is_near


def _is_of_us_elsewhere(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).uids().effective == os.geteuid())
    except psutil.Error:
        return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove_record(path: Path, supervisor: int) -> None:
    """Remove the record of the supervisor that is gone; not that of one which has its name now."""
    until_s = time.monotonic() + PATIENCE_MS / 1000
    # The end of our input comes a little before its locks are free.
    while os.getppid() == supervisor and time.monotonic() < until_s:
        time.sleep(0.005)
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
    supervisor = os.getppid()
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
