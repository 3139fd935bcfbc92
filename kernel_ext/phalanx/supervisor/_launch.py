"""Starting a root supervisor from the process that wants one.

It knows the child's first words; whoever calls speaks to it afterwards.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Collection
from typing import IO

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, RootAddress
from phalanx.protocol.scripts import ScriptOptions

__all__ = ["RootProcess", "launch_root"]


class RootProcess:
    """A root supervisor that was started: its address, and whether it still runs."""

    def __init__(
        self, popen: subprocess.Popen[bytes], address: RootAddress, log: IO[bytes]
    ) -> None:
        self._popen = popen
        self._log = log
        self.address = address
        self.pid = popen.pid

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        self._popen.send_signal(number)

    def wait(self) -> int:
        """Wait for its end."""
        return self._popen.wait()

    def log_tail(self) -> str:
        """The end of what it wrote to its standard error."""
        return _tail(self._log)

    def let_go(self) -> None:
        """Leave it as it is, for whoever finds it."""
        self._log.close()

    def close(self, timeout_s: float) -> None:
        """Wait for its end (it was told to), and kill it if the time is over; idempotent."""
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
    """Start `python -m phalanx.supervisor` in a session of its own and learn where it listens.

    It inherits ``pass_fds``, under the same numbers.

    Raises
    ------
    DistributedError
        It did not come up; the text holds what it said.
    """
    # An unlinked file, not a pipe: the supervisor may outlive us and must not die of writing.
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
    try:
        with popen.stdin as stdin, popen.stdout as stdout:  # type: ignore[union-attr]
            stdin.write(msgspec.json.encode(options) + b"\n")
            stdin.flush()
            line = stdout.readline() if select.select([stdout], [], [], timeout_s)[0] else b""
        address = msgspec.json.decode(line, type=RootAddress)
    except (OSError, msgspec.DecodeError) as error:
        popen.kill()
        popen.wait()
        with log:
            tail = _tail(log)
        msg = f"the supervisor did not start: {tail or error}"
        raise DistributedError(msg) from error
    except BaseException:
        popen.kill()
        popen.wait()
        log.close()
        raise
    return RootProcess(popen, address, log)


def _tail(log: IO[bytes], nbytes: int = 4096) -> str:
    if log.closed:
        return ""
    # pread, not seek: the supervisor writes at the same file offset.
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), nbytes, max(0, size - nbytes))
    return tail.decode(errors="replace").strip()
