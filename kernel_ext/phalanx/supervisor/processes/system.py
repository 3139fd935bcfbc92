"""Wrap system calls and process limits of Linux and macOS."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from phalanx.errors import DistributedError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
# Poll interval where the kernel does not report the end of a process: 20 polls per second cost 1 ms
# of a core.
LOOK_EVERY_S = 0.05
# Read by torch and numexpr. OpenBLAS and MKL, below numpy, read it if their own variable is not
# set.
THREADS_VARIABLE = "OMP_NUM_THREADS"

_LOOPBACK_S = 2.0  # an answer takes microseconds, or never comes
GROUPS = 4  # the world and some splits; each has its own links


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when a process has ended.

    The caller closes the descriptor. The process need not be a child; a child must be reaped as
    well.

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
    import psutil  # imported late: every rank imports this module first

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
    """Close our end when the process has ended, or their end."""
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


def peer_of(sock: Any) -> tuple[int, int]:
    """Return the process and user at a Unix socket's other end.

    The process is 0 if it is of another pid namespace.
    """
    if hasattr(socket, "SO_PEERCRED"):
        pid, user, _ = struct.unpack(
            "iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        )
    else:  # sys/un.h of macOS: SOL_LOCAL 0, LOCAL_PEERCRED 1 (version, user, ...), LOCAL_PEERPID 2
        _, user = struct.unpack_from("II", sock.getsockopt(0, 1, 76))
        pid = sock.getsockopt(0, 2)
    return pid, user


def signal_pidfd(pidfd: int, pid: int, number: int) -> None:
    """Signal the process of a descriptor, or raise `ProcessLookupError`."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if poller.poll(0):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    os.kill(pid, number)


def end_with_parent(parent_pid: int) -> Callable[[], None] | None:
    """Return a function that a child calls before exec, or None.

    The child calls it between fork and exec. On macOS the result is None. The function has the
    kernel kill the child when its parent dies. The setting survives exec, so it works for any
    program. On macOS only the sweeper kills the programs of a dead supervisor.
    """
    # this check also loads libc before the fork, not in the child
    if not hasattr(_libc(), "prctl"):
        return None
    return lambda: die_with_parent(parent_pid)


def die_with_parent(parent_pid: int, folder: str = "") -> None:
    """Have this process killed when its parent dies.

    Call this first in a child: if the parent is gone already, the process ends here. On systems
    other than Linux a thread watches the parent and removes ``folder``.
    """
    if hasattr(_libc(), "prctl"):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        args = parent_pid, folder
        threading.Thread(target=_follow, args=args, name="phalanx-parent", daemon=True).start()
    if os.getppid() != parent_pid:
        remove_folder(folder)
        os._exit(1)


def can_adopt() -> bool:
    """Whether `adopt_orphans` works here (Linux)."""
    return hasattr(_libc(), "prctl") and _libc().prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@contextlib.contextmanager
def adopt_orphans() -> Iterator[None]:
    """Become the parent of descendants that lose theirs meanwhile."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _follow(parent_pid: int, folder: str) -> None:
    while os.getppid() == parent_pid:
        time.sleep(LOOK_EVERY_S)
    remove_folder(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def remove_folder(folder: str) -> None:
    """Remove a folder and its content, if it exists; "" does nothing."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Signal one thread, if possible, or its process; `OSError`: it is gone."""
    try:
        tgkill = _libc().tgkill  # in glibc; other C libraries lack it
    except AttributeError:
        os.kill(pid, number)
        return
    if tgkill(pid, thread, number) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def usable_cores() -> int:
    """Return how many cores this process may use.

    If the system does not say, return the number of all cores.

    Examples
    --------
    >>> usable_cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_each(cores: int, ranks: int) -> int:
    """Return the numpy and torch threads of each rank; 0: no limit.

    Examples
    --------
    >>> threads_each(8, 3), threads_each(2, 4), threads_each(8, 1), threads_each(1, 4)
    (2, 1, 0, 0)
    """
    share = max(1, cores // ranks)
    return share if share < cores else 0


def rss_nbytes(pid: int) -> int:
    """Return a process's memory in use, in bytes; 0 if gone.

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
    """Whether a signal or debugger has stopped a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return bool(
            _ask(pid, lambda process: process.status() in {"stopped", "tracing-stop"}, False)
        )
    # The line is "pid (name) state ...", and the name may contain anything, also brackets.
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


def _ask(pid: int, question: Callable[[Any], Any], gone: Any) -> Any:
    """Ask psutil if /proc does not exist or lacks the process."""
    import psutil

    try:
        return question(psutil.Process(pid))
    except psutil.Error:
        return gone


def has_abstract_sockets() -> bool:
    """Whether Unix sockets can have names outside the file system (Linux)."""
    return hasattr(os, "pidfd_open")


# Open files of one process. ipyparallel's controller has the most: 85 plus 8 per rank, counted with
# 1 and 4 ranks. A root has 21 plus 9 per rank, a rank has 44 plus 3 per rank. The numbers here
# leave a reserve.
BASE, PER_RANK = 128, 10


def needed_descriptors(ranks: int) -> int:
    """Return how many open files a process of a world may need."""
    return BASE + PER_RANK * ranks


def stripe_sockets(ranks_elsewhere: int, n_addresses: int, connections_per_ip: int) -> int:
    """Return the most sockets of a rank's links to other hosts.

    Examples
    --------
    >>> stripe_sockets(3, 2, 8)  # as many hosts as ranks elsewhere, if each has one
    192
    """
    return ranks_elsewhere * max(1, n_addresses) * connections_per_ip * GROUPS


def allow_descriptors(ranks: int, sockets: int = 0) -> None:
    """Raise the soft limit of open files if it is too low.

    The limit holds for this process and its children.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    sockets : int
        Sockets of links to other hosts, added as far as the hard limit allows.

    Raises
    ------
    DistributedError
        The hard limit is too low as well. Without this error, connections would fail later.
    """
    needed = needed_descriptors(ranks)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed + sockets:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        msg = (
            f"{ranks} ranks need {needed} open files in a process, and only {hard} are allowed "
            f"here; raise the limit (ulimit -n {needed}), or start fewer ranks"
        )
        raise DistributedError(msg)
    wanted = needed + sockets
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_loopback() -> None:
    """Connect to the loopback interface, over which ranks may link.

    Raises
    ------
    DistributedError
        The interface is down, as in a bare network namespace. A real connection would retry
        forever.
    """
    with socket.socket() as listening, socket.socket() as own:
        own.settimeout(_LOOPBACK_S)
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            own.connect(listening.getsockname())
        except OSError as error:
            msg = (
                "the loopback interface of this machine does not work (127.0.0.1: "
                f"{error.strerror or error}); bring it up (ip link set lo up)"
            )
            raise DistributedError(msg) from error


def save_address_space() -> None:
    """Let threads share malloc arenas if address space is limited.

    The limit is that of `ulimit -v`. glibc reserves 64 MiB for each thread that allocates: 9 of a
    rank's 16 threads. A rank then has 1,390 MiB of addresses (2 ranks on the host; 70 MiB of memory
    in use), and 820 MiB with this setting.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")


def leave() -> NoReturn:
    """End this process successfully, without the interpreter's shutdown.

    The shutdown frees module by module what the kernel frees anyway. It takes 20 ms of a core per
    supervisor, and the end of a world waits for all supervisors.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
