"""Start a root supervisor, or find a running one.

Both classes give a caller the root's address, signals and exit. The caller then talks to the root
over zmq.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from typing import IO

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, RootAddress, WorkspaceRecord
from phalanx.protocol.os_text import encode_options
from phalanx.protocol.scripts import ScriptOptions

from .processes.child import exit_reason
from .processes.system import open_pidfd, signal_pidfd

_END_S = 1.0  # wait for the exit of a process that has closed its output


class RootProcess:
    """Hold a root supervisor started by this process."""

    def __init__(
        self, popen: subprocess.Popen[bytes], address: RootAddress, log: IO[bytes]
    ) -> None:
        self._popen = popen
        self._log = log
        self.address = address
        self.pid = popen.pid

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send the process a signal; do nothing if it has ended."""
        self._popen.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end; return its exit status."""
        return self._popen.wait()

    def last_output(self) -> str:
        """Return the signal that ended the process, and its last output."""
        return _last_output(self._popen.poll(), self._log)

    def let_go(self) -> None:
        """Let the root run on without this object."""
        self._log.close()

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, then kill it after ``timeout_s``; idempotent.

        The caller has already asked the root to end.
        """
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._log.close()


def launch_root(
    options: BootOptions | ScriptOptions,
    *,
    timeout_s: float = 20.0,
    pass_fds: Collection[int] = (),
) -> RootProcess:
    """Start `python -m phalanx.supervisor` in its own session; return its address.

    The process inherits ``pass_fds``, under the same numbers.

    Raises
    ------
    DistributedError
        The root did not start; the text holds its output.
    """
    first_line = encode_options(options)
    # An unlinked file, not a pipe: the supervisor may outlive this process, and must not die
    # of writing to a pipe without a reader.
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the RootProcess closes it
    role = ["script"] if isinstance(options, ScriptOptions) else []
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", "phalanx.supervisor", *role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except BaseException:
        log.close()
        raise
    has_answered = True
    try:
        with popen.stdin as stdin, popen.stdout as stdout:  # type: ignore[union-attr]
            stdin.write(first_line)
            stdin.flush()
            has_answered = bool(select.select([stdout], [], [], timeout_s)[0])
            line = stdout.readline() if has_answered else b""
        address = msgspec.json.decode(line, type=RootAddress)
    except (OSError, msgspec.DecodeError):
        status = _end(popen, _END_S if has_answered else 0.0)
        with log:
            said = _last_output(status, log) or f"it said nothing for {timeout_s:g} s"
        msg = f"the supervisor did not start: {said}"
        raise DistributedError(msg) from None
    except BaseException:
        popen.kill()
        popen.wait()
        log.close()
        raise
    return RootProcess(popen, address, log)


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


class FoundRoot:
    """Hold a running root that is not a child of this process.

    The methods are those of `RootProcess`.

    Raises
    ------
    DistributedError
        The root has ended meanwhile.
    """

    def __init__(self, record: WorkspaceRecord) -> None:
        self.address = RootAddress(record.endpoint, record.public_key)
        self.pid = record.pid
        try:
            self._pidfd = open_pidfd(record.pid)
        except ProcessLookupError:
            msg = f"the workspace {record.name!r} has just ended"
            raise DistributedError(msg) from None
        self._woken, self._wake = os.pipe()
        self._waits = threading.Lock()  # held during a wait, so that no descriptor in use is closed

    def poll(self) -> int | None:
        """Return 0 once the process has ended, None while it runs.

        Only the parent learns the real exit status.
        """
        return 0 if self._pidfd < 0 or self._has_ended(0.0) else None

    def _has_ended(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def signal(self, number: int) -> None:
        """Send the process a signal; do nothing if it has ended."""
        try:
            signal_pidfd(self._pidfd, self.pid, number)
        except ProcessLookupError:
            return

    def last_output(self) -> str:
        """Return "": only the parent can read the root's output."""
        return ""

    def wait(self) -> int:
        """Wait for the process to end, or for `let_go`."""
        with self._waits:
            if self._pidfd >= 0:
                poller = select.poll()
                for fd in (self._pidfd, self._woken):
                    poller.register(fd, select.POLLIN)
                poller.poll()
        return 0

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, then kill it after ``timeout_s``; idempotent.

        The caller has already asked the root to end.
        """
        if self._pidfd >= 0:
            if not self._has_ended(timeout_s):
                self.signal(signal.SIGKILL)
            self.let_go()

    def let_go(self) -> None:
        """Let the root run on without this object; idempotent."""
        if self._pidfd >= 0:
            os.write(self._wake, b".")
            with self._waits:
                for fd in (self._pidfd, self._woken, self._wake):
                    os.close(fd)
                self._pidfd = self._woken = self._wake = -1
