"""Kill processes that ranks left behind: `python -I -S sweep_main.py WORLD SOCKET`.

A process belongs to a world if its environment has the world's mark, or if it is in a rank's
process group. Descendants of a rank inherit the mark, however deep and detached. On Linux this file
imports only the standard library, so that it is up in 10 ms and stays small.

The parent is the supervisor of WORLD. It writes lines to the standard input:

- ``+pid serial``: a child was started.
- ``-pid serial``: a child has ended; kill what it left behind.
- ``~``: all children are being ended. Later ``-`` lines only remove the child; one sweep at the end
  kills the rest, as a look at all processes of a machine takes milliseconds.
- ``.``: the supervisor ends regularly and removes SOCKET itself.

The end of the input means that the supervisor has ended for any reason. Then all of the world's
processes are killed, and without a ``.`` the file SOCKET in the runtime folder is removed (empty:
there is none).

On start, worlds left by supervisors that died without a sweep are swept too (e.g. after a `kill -9`
of both processes).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

MARK = b"PHALANX_WORLD="
# for a process that SIGKILL does not end at once: it waits for a disk or a device
PATIENCE_MS = 2000
_PROC = Path("/proc")


# Without /proc, psutil is used; psutil is not in the standard library, so -S is left out.
HAS_PROC = hasattr(os, "pidfd_open")
ELSEWHERE = "t"  # prefix of a start time in microseconds, to tell it from one in ticks
FLAGS = ("-I", "-S") if HAS_PROC else ("-I",)

# Pid and mark of a process, and a function that kills exactly this process: it waits up to the
# given ms, and returns whether the process has ended.
_Found = tuple[int, str, Callable[[int], bool]]


def start_of(pid: int) -> str:
    """Return the start time of a process, in the system's unit.

    Returns "" if the process is gone, or a zombie.
    """
    return _start_in_proc(pid) if HAS_PROC else _start_elsewhere(pid)


def _start_in_proc(pid: int) -> str:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    # The line is "pid (name) state ...", and the name may contain anything, also brackets.
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
    """Return the mark of a process; "" without one, or without permission."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    for variable in environment.split(b"\0") if MARK in environment else ():
        if variable.startswith(MARK):
            return variable[len(MARK) :].decode(errors="replace")
    return ""


def _marked() -> Iterator[_Found]:
    """Yield the processes that have a mark.

    Each can be killed until the next one is requested.
    """
    assert hasattr(os, "pidfd_open")
    for folder in _PROC.iterdir() if _PROC.is_dir() else ():
        name = folder.name
        if not name.isdecimal():
            continue
        # Open the pidfd before reading the mark: the kill then hits the process that was checked.
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
    """Do the same as `_marked` with psutil."""
    import psutil

    variable = MARK.decode().rstrip("=")
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(variable, "")
        # a process of another user or of the system, or one that has just ended
        except (psutil.Error, OSError):
            continue
        if mark:
            yield process.pid, mark, partial(_kill_elsewhere, process)


def _kill_elsewhere(process: Any, wait_ms: int) -> bool:
    import psutil

    try:
        process.kill()  # checks that the pid still is the same process
        process.wait(wait_ms / 1000)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return True


def sweep(is_ours: Callable[[int, str], bool]) -> None:
    """Kill processes until ``is_ours(pid, mark)`` is true for none.

    The sweep gives up after `PATIENCE_MS` of waiting.
    """
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
    """Whether the supervisor that gave this mark is gone.

    False for processes of another user or another pid namespace.
    """
    root, _, rest = mark.partition(".")
    start = rest.partition(".")[0]
    count = start if HAS_PROC else start.removeprefix(ELSEWHERE)
    # A start time in the other unit belongs to a world of the other kind, which has its own
    # sweepers.
    if not root.isdecimal() or not count.isdecimal() or (count == start) is not HAS_PROC:
        return False
    is_like_us = _is_of_us_in_proc if HAS_PROC else _is_of_us_elsewhere
    return is_like_us(pid) and start_of(int(root)) != start


def _is_of_us_in_proc(pid: int) -> bool:
    try:
        folder = _PROC / str(pid)
        is_same_user = folder.stat().st_uid == os.geteuid()
        # In another namespace the supervisor's pid has another meaning.
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


def _remove_socket(path: Path, supervisor: int) -> None:
    """Remove the dead supervisor's socket, but no later one."""
    until_s = time.monotonic() + PATIENCE_MS / 1000
    # Our input ends a little before the supervisor's socket is closed.
    while os.getppid() == supervisor and time.monotonic() < until_s:
        time.sleep(0.005)
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        folder = os.open(path.parent, os.O_RDONLY)
        undo.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)  # as for a claim
        os.chdir(folder)  # the path of a socket must be short
        sock = undo.enter_context(socket.socket(socket.AF_UNIX))
        if sock.connect_ex(path.name) == errno.ECONNREFUSED:
            path.unlink()


def main() -> None:
    """Sweep on the supervisor's messages, and everything after its end."""
    # Ignore signals: the world is ended through its supervisor.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    world, path = sys.argv[1:]
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
    if path and not is_regular:
        _remove_socket(Path(path), supervisor)


if __name__ == "__main__":
    main()
