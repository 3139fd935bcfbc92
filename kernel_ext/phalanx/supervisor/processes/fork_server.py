"""Fork the ranks of a host from one process.

The process has imported what ranks need: ipykernel, ipyparallel and numpy cost 0.4 s of a core and
40 MB. So all ranks of a host share them. `ForkServer` is the supervisor's half, `serve_forks` the other.

A forked rank is a child of the supervisor, not of the fork server: a process between the two ends
at once, and the supervisor adopts its orphans for that moment (`adopt_orphans`).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from .child import ChildProcess, ForkedProcess
from .pipes import ChildOutput
from .system import adopt_orphans, die_with_parent

_READY = b"ready"
_ANSWER_S = 5.0  # a fork takes milliseconds
_MOST_NBYTES = 1 << 17  # of a request: less than a Unix socket's buffer
_MOST_FDS = 64
_TITLE = "fork-server"  # in the command line; a forked process has its own there
_ARGUMENTS, _ENVIRONMENT = 48, 50  # arg_start and env_start of proc(5)


class _Request(msgspec.Struct, array_like=True):
    """Order to fork a process.

    ``fds`` are the numbers that the descriptors sent with it get, in their order.
    """

    arguments: list[str]
    env: dict[str, str]  # what differs from the fork server's own
    fds: list[int]


class _Forked(msgspec.Struct, array_like=True):
    pid: int  # -1: see ``error``
    error: str = ""


class ForkServer:
    """Start a fork server, and have it fork processes.

    Parameters
    ----------
    command : sequence of str
        The program. It gets our pid, a descriptor and a title, and calls `serve_forks`.
    env, cwd
        Environment and folder of the server and of all that it forks.
    fds : sequence of int
        Descriptors that all forked processes inherit.
    on_ready : callable
        Called once, when `fork` can be called.
    on_exit : callable
        Called once with the status of the server that has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        fds: Sequence[int],
        on_ready: Callable[[], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self.is_ready = False
        self._env = env
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(_ANSWER_S)
        try:
            with theirs:
                output = ChildOutput()
                self.process = ChildProcess(
                    [*command, str(os.getpid()), str(theirs.fileno()), _TITLE],
                    env=env,
                    cwd=cwd,
                    pass_fds=[theirs.fileno(), *fds],
                    stdout=output,
                    stderr=output,
                    on_exit=self._end,
                )
        except BaseException:
            self._sock.close()
            raise
        self._loop.add_reader(self._sock, self._read_ready)

    def _read_ready(self) -> None:
        self._loop.remove_reader(self._sock)
        # Without an answer it has ended, and `_end` tells why.
        if self._sock.recv(len(_READY)) == _READY:
            self.is_ready = True
            self._on_ready()

    def _end(self, status: int) -> None:
        self.is_ready = False
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._on_exit(status)

    def fork(
        self, arguments: Sequence[str], env: Mapping[str, str], fds: Mapping[int, int]
    ) -> ForkedProcess:
        """Fork a process that leads its own session; takes milliseconds.

        The first of ``arguments`` is shown as the last word of its command line. ``env`` has all
        variables of the server's own environment. ``fds`` are the descriptors that the process
        gets: its number for each, and ours.

        Raises
        ------
        OSError
            The server does not answer, or could not fork; it is killed if it does not answer.
        """
        changes = {name: value for name, value in env.items() if self._env.get(name) != value}
        request = _Request(list(arguments), changes, list(fds))
        try:
            with adopt_orphans():
                socket.send_fds(self._sock, [msgspec.msgpack.encode(request)], list(fds.values()))
                answer = self._sock.recv(_MOST_NBYTES)
            forked = msgspec.msgpack.decode(answer, type=_Forked)
        except (OSError, ValueError) as error:
            self.process.kill()
            msg = f"the process that forks ranks does not answer: {error}"
            raise OSError(msg) from error
        if forked.error:
            raise OSError(forked.error)
        return ForkedProcess(forked.pid)


def serve_forks(parent_pid: int, sock_fd: int, mark: str) -> list[str]:
    """Fork processes as the supervisor asks; return in them only.

    The result is their arguments. Call this on the only thread, after all imports. ``mark`` is the
    variable by which a sweep finds the process: it is changed where the system shows it, too.
    """
    sock = socket.socket(fileno=sock_fd)
    sock.send(_READY)
    while True:
        data, fds, _, _ = socket.recv_fds(sock, _MOST_NBYTES, _MOST_FDS)
        if not data:
            sys.exit(0)
        request = msgspec.msgpack.decode(data, type=_Request)
        try:
            answer = _Forked(_fork())
        except OSError as error:
            answer = _Forked(-1, f"it cannot fork: {error.strerror}")
        if not answer.pid:
            break
        for fd in fds:
            os.close(fd)
        sock.send(msgspec.msgpack.encode(answer))
    sock.close()
    die_with_parent(parent_pid)
    _place(fds, request.fds)
    _change_shown(_ARGUMENTS, _TITLE, request.arguments[0])
    _change_shown(_ENVIRONMENT, f"{mark}={os.environ[mark]}", f"{mark}={request.env[mark]}")
    os.environ.update(request.env)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined] # Python 3.11 keeps the old
    return request.arguments


def _fork() -> int:
    """Fork an orphan; return its pid, or 0 in it.

    The orphan leads a session of its own, and has its new parent.
    """
    pid_read, pid_write = os.pipe()
    end_read, end_write = os.pipe()  # ends together with the process between
    try:
        between = os.fork()
    except OSError:
        for fd in (pid_read, pid_write, end_read, end_write):
            os.close(fd)
        raise
    if not between:
        try:
            is_orphan = not os.fork()
        except OSError:
            os._exit(1)
        if not is_orphan:
            os._exit(0)
        os.setsid()
        os.close(end_write)
        os.write(pid_write, str(os.getpid()).encode())
        os.read(end_read, 1)
        for fd in (pid_read, pid_write, end_read):
            os.close(fd)
        return 0
    os.close(pid_write)
    pid = int(os.read(pid_read, 32) or b"0")
    os.waitpid(between, 0)
    for fd in (pid_read, end_read, end_write):
        os.close(fd)
    if not pid:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid


def _place(fds: list[int], numbers: list[int]) -> None:
    """Move descriptors to the numbers that they shall have."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _change_shown(field: int, old: str, new: str) -> None:
    """Change the command line or environment that the system shows.

    The kernel shows the memory in which it put them at the start of the program, from the address
    in ``field`` of ``/proc/self/stat`` to that in the next. ``new`` is filled up with spaces.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = (int(fields[number - 3]) for number in (field, field + 1))
    except OSError:  # a system that shows nothing
        return
    at = ctypes.string_at(begin, end - begin).rfind(old.encode()) if begin else -1
    if at >= 0:
        ctypes.memmove(begin + at, new.ljust(len(old)).encode(), len(old))
