"""What a supervisor asks of the system: Linux's own call, or what stands in for it on macOS.

It knows processes by their ids, and nothing of what they are to us.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "die_with_parent",
    "end_with_parent",
    "has_abstract_sockets",
    "is_stopped",
    "open_pidfd",
    "remove_folder",
    "rss_nbytes",
    "signal_pidfd",
    "signal_thread",
    "usable_cores",
]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Where the kernel does not tell of an end, one looks: 20 looks a second cost 1 ms of a core.
LOOK_EVERY_S = 0.05


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# -- the end of a process -------------------------------------------------------------------------


def open_pidfd(pid: int) -> int:
    """Return a descriptor that can be read once a process has ended; the caller closes it.

    The process may be anybody's. A child is to be reaped all the same.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    OSError
        No descriptor is left.
    """
    if hasattr(os, "pidfd_open"):
        pidfd: int = os.pidfd_open(pid)
        return pidfd
    import psutil  # only where it is needed: a rank's process asks this module first of all

    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    theirs, ours = socket.socketpair()
    name = f"phalanx-end-of-{pid}"
    try:
        threading.Thread(target=_watch, args=(process, ours), name=name, daemon=True).start()
    except RuntimeError:
        theirs.close()
        ours.close()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    return theirs.detach()


def _watch(process: Any, ours: socket.socket) -> None:
    """Close our end once the process has ended, or nobody holds the other one any more."""
    with ours:
        poller = select.poll()
        poller.register(ours, select.POLLIN)
        while not _has_ended(process) and not poller.poll(LOOK_EVERY_S * 1000):
            pass


def _has_ended(process: Any) -> bool:
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def signal_pidfd(pidfd: int, pid: int, number: int) -> None:
    """Send a signal to the process of this descriptor, and to none that got its number later.

    Raises
    ------
    ProcessLookupError
        It has ended.
    """
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if poller.poll(0):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    os.kill(pid, number)


# -- the end of our parent ------------------------------------------------------------------------


def end_with_parent(parent_pid: int) -> Callable[[], None] | None:
    """Return what a child calls between fork and exec to end with us; None where there is no such.

    It outlasts exec, so any program dies with us. Elsewhere (macOS) only the process that sweeps
    up after a supervisor ends the programs it has started.
    """
    if not hasattr(_libc(), "prctl"):  # also loads it before the fork, not in the child
        return None
    return lambda: die_with_parent(parent_pid)


def die_with_parent(parent_pid: int, folder: str = "") -> None:
    """Have this process killed when its parent dies; called first of all in a child.

    Where the parent is gone already, the process ends here. Linux sees to it; elsewhere a thread
    does, which foreign code that holds the interpreter's lock can keep waiting. It also removes
    ``folder``, which a child has only there (`has_abstract_sockets`).
    """
    if hasattr(_libc(), "prctl"):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        args = parent_pid, folder
        threading.Thread(target=_follow, args=args, name="phalanx-parent", daemon=True).start()
    if os.getppid() != parent_pid:
        remove_folder(folder)
        os._exit(1)


def _follow(parent_pid: int, folder: str) -> None:
    while os.getppid() == parent_pid:
        time.sleep(LOOK_EVERY_S)
    remove_folder(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def remove_folder(folder: str) -> None:
    """Remove a folder with what is in it, if there is one; "": nothing."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


# -- signals, cores, memory, sockets --------------------------------------------------------------


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process; where that cannot be, to the process.

    Raises
    ------
    OSError
        There is no such thread any more.
    """
    try:
        tgkill = _libc().tgkill  # glibc; other C libraries do not have it
    except AttributeError:
        os.kill(pid, number)
        return
    if tgkill(pid, thread, number) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def usable_cores() -> int:
    """Return how many cores this process may use; where the system does not say, all there are.

    Examples
    --------
    >>> usable_cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rss_nbytes(pid: int) -> int:
    """Return the memory that a process has in use; 0 if it is gone.

    Examples
    --------
    >>> import os
    >>> rss_nbytes(os.getpid()) > 1 << 20
    True
    """
    try:
        resident = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return int(_ask(pid, lambda process: process.memory_info().rss, 0))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; False for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return bool(
            _ask(pid, lambda process: process.status() in {"stopped", "tracing-stop"}, False)
        )
    # "pid (name) state ...": the name may hold anything, also brackets.
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


def _ask(pid: int, question: Callable[[Any], Any], gone: Any) -> Any:
    """Ask psutil: there is no /proc, or nothing in it of this process."""
    import psutil

    try:
        return question(psutil.Process(pid))
    except psutil.Error:
        return gone


def has_abstract_sockets() -> bool:
    """Whether Unix sockets can have names that are in no file system: Linux, as are pidfds."""
    return hasattr(os, "pidfd_open")
