"""Start the root supervisor of a workspace, or find a running one."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import (
    BootOptions,
    ChannelClosed,
    Failed,
    WorkspaceRecord,
    read_frame,
)
from phalanx.protocol.os_text import encode_options

from .processes.child import exit_reason
from .processes.system import (
    allow_descriptors,
    check_loopback,
    open_pidfd,
    peer_of,
    save_address_space,
    signal_pidfd,
    stripe_sockets,
)
from .runtime_dir import check_name, connect, socket_paths

_END_S = 1.0  # wait for the exit of a process that has closed its output
_LIST_S = 2.0  # a root answers in milliseconds, unless it or the machine is very busy
_FIND_S = 10.0


class RootProcess:
    """Hold a connection to a root supervisor, and its process.

    ``record`` is the root's first message, which has been read from ``sock``. A process that has
    started the root gives ``popen`` and the file of its output, ``log``.
    """

    def __init__(
        self,
        sock: socket.socket,
        record: WorkspaceRecord,
        popen: subprocess.Popen[bytes] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        self.sock = sock
        self.record = record
        self.pid = record.pid
        self._popen = popen
        self._log = log
        self._pidfd = open_pidfd(self.pid) if self.pid else -1  # 0: of another pid namespace

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the process; whether it has ended or cannot be seen."""
        if self._pidfd < 0:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def signal(self, number: int) -> None:
        """Send the process a signal; do nothing if it has ended."""
        if self._popen is not None:
            self._popen.send_signal(number)
        elif self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal_pidfd(self._pidfd, self.pid, number)

    def last_output(self) -> str:
        """Return the signal that ended the process, and its last output.

        Only the process that has started the root knows that; "" for others.
        """
        if self._popen is None or self._log is None:
            return ""
        self.has_ended(_END_S)
        return _last_output(self._popen.poll(), self._log)

    def let_go(self) -> None:
        """Let the root run on without this object; idempotent."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._log is not None:
            self._log.close()
        popen, self._popen = self._popen, None
        if popen is not None and popen.poll() is None:
            with suppress(RuntimeError):  # at the end of the interpreter nobody has to reap it
                threading.Thread(target=popen.wait, name="phalanx-reap", daemon=True).start()

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, then kill it after ``timeout_s``; idempotent.

        The caller has already asked the root to end.
        """
        if not self.has_ended(timeout_s):
            self.signal(signal.SIGKILL)
            self.has_ended(_END_S)
        if self._popen is not None:
            self._popen.wait()
        self.let_go()

    def abandon(self) -> None:
        """Give up a root that cannot be used.

        A root that was started here ends.
        """
        self.sock.close()
        if self._popen is not None:
            self.close(0.0)
        self.let_go()


def prepare_process(options: BootOptions) -> None:
    """Raise the limits of a process that becomes a root.

    Raises
    ------
    DistributedError
        A limit is too low, or the loopback interface is down.
    """
    here = [plan for plan in options.hosts if plan.is_local]
    elsewhere = options.world.size - sum(plan.ranks for plan in here) if here else 0
    n_addresses = max((len(plan.addresses) for plan in here), default=0)
    sockets = stripe_sockets(elsewhere, n_addresses, options.world.connections_per_ip)
    allow_descriptors(options.world.size, sockets)
    check_loopback()
    save_address_space()


def launch_root(options: BootOptions, *, timeout_s: float = 20.0) -> RootProcess:
    """Start `python -m phalanx.supervisor` in its own session, and connect to it.

    Raises
    ------
    DistributedError
        The root did not start; the text holds its output.
    """
    first_line = encode_options(options)
    # An unlinked file, not a pipe: the supervisor may outlive this process, and must not die
    # of writing to a pipe without a reader.
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the RootProcess closes it
    ours, theirs = socket.socketpair()
    popen = None
    has_answered = True
    try:
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-m", "phalanx.supervisor"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        ours.settimeout(timeout_s)
        try:
            ours.sendall(first_line)
            record = _read_record(ours)
        except (OSError, ValueError) as error:
            has_answered = not isinstance(error, TimeoutError)
            status = _end(popen, _END_S if has_answered else 0.0)
            said = _last_output(status, log) or f"it said nothing for {timeout_s:g} s"
            msg = f"the supervisor did not start: {said}"
            raise DistributedError(msg) from None
        return RootProcess(ours, record, popen, log)
    except BaseException:
        ours.close()
        if popen is not None:
            popen.kill()
            popen.wait()
        log.close()
        raise


def _read_record(sock: socket.socket) -> WorkspaceRecord:
    """Read a root's first message; raise a `Failed` as an error."""
    first = msgspec.msgpack.decode(read_frame(sock), type=WorkspaceRecord | Failed)
    if isinstance(first, Failed):
        raise DistributedError(first.message)
    return first


def _end(popen: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """End a supervisor that did not start; return its status.

    None: the process did not end by itself within ``timeout_s`` and was killed.
    """
    try:
        return popen.wait(timeout_s)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
        return None


def _last_output(status: int | None, log: IO[bytes]) -> str:
    tail = _tail(log)
    how = exit_reason(status) if status is not None and (status < 0 or not tail) else ""
    return ": ".join(part for part in (how, tail) if part)


def _tail(log: IO[bytes], nbytes: int = 4096) -> str:
    if log.closed:
        return ""
    # pread, not seek: the supervisor writes at the same file offset.
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), nbytes, max(0, size - nbytes))
    return tail.decode(errors="replace").strip()


def find_root(name: str) -> RootProcess | None:
    """Connect to the root of a workspace; None: there is none.

    Raises
    ------
    DistributedError
        Its folder or socket belongs to another user or is accessible to others.
    """
    check_name(name)
    found = (_found(path, _FIND_S) for path in socket_paths(name))
    return next((root for root in found if root is not None), None)


def list_records() -> list[WorkspaceRecord]:
    """Return the records of this user's roots, sorted by name.

    Raises
    ------
    DistributedError
        As `find_root`.
    """
    found: dict[str, WorkspaceRecord] = {}
    for path in socket_paths():
        root = _found(path, _LIST_S)
        if root is not None:
            root.abandon()
            found.setdefault(root.record.name, root.record)
    return [found[name] for name in sorted(found)]


def _found(path: Path, timeout_s: float) -> RootProcess | None:
    """Connect to the root at a socket; None if it has ended."""
    try:
        sock = connect(path)
    except BlockingIOError:
        return None
    if sock is None:
        return None
    try:
        pid = _checked_peer(path, sock)
        sock.settimeout(timeout_s)
        try:
            record = _read_record(sock)
        except (TimeoutError, ValueError, RecursionError) as error:
            begun, is_silent = path.lstat().st_mtime, isinstance(error, TimeoutError)
            record = WorkspaceRecord("", path.stem, 0, pid, begun, is_silent=is_silent)
        return RootProcess(sock, msgspec.structs.replace(record, pid=pid))
    except (FileNotFoundError, ProcessLookupError, ChannelClosed, ConnectionResetError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise


def _checked_peer(path: Path, sock: socket.socket) -> int:
    """Return the process that serves a socket; refuse another user's."""
    pid, user = peer_of(sock)
    if user != os.geteuid():
        msg = f"{path} is served by user {user}, not by you: it is not used"
        raise DistributedError(msg)
    return pid
