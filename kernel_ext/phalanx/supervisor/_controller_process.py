"""ipyparallel's controller as the root supervisor sees it: a child that reports where it listens.

It knows the child's command line and its report, nothing of who uses the controller.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from ._output import OutputPipe
from ._process import ChildProcess, exit_reason
from ._system import has_abstract_sockets, remove_folder

__all__ = ["Connection", "ControllerProcess", "file_for_rank"]

MOST_CHARACTERS = 75  # of a folder: the path of a socket in it has 103 at most (macOS)

# "client", "engine": ipyparallel's connection files, for this machine; "remote": those for ranks of
# other hosts, by the address at which they reach this one. They hold keys.
Connection = dict[str, dict[str, Any]]


def file_for_rank(connection: Connection, address: str = "") -> dict[str, Any]:
    """Return the file for a rank that reaches this host at ``address``; "": it runs on it."""
    return connection["remote"][address] if address else connection["engine"]


class ControllerProcess:
    """Starts the controller, says when it is up or lost, and ends it."""

    def __init__(
        self, on_up: Callable[[Connection], None], on_lost: Callable[[str, str], None]
    ) -> None:
        self._on_up = on_up
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._child: ChildProcess | None = None
        self._report = bytearray()
        self._folder = ""  # of its sockets, where they must have names in one

    def start(self, cwd: str, addresses: Iterable[str] = ()) -> None:
        """Start the process; ``on_up`` is called when all its ports are bound.

        It listens on Unix sockets, and for ranks of other hosts on ``addresses`` of this one.
        """
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        output = OutputPipe()
        if not has_abstract_sockets():
            place = tempfile.gettempdir()
            place = place if len(place) <= MOST_CHARACTERS else "/tmp"  # noqa: S108
            self._folder = tempfile.mkdtemp(prefix="phalanx-", dir=place)  # this user's alone
        command = [sys.executable, "-m", "phalanx.supervisor._controller"]
        try:
            self._child = ChildProcess(
                [*command, str(os.getpid()), str(write_fd), self._folder, *addresses],
                env=os.environ,
                cwd=cwd,
                pass_fds=[write_fd],
                stdout=output,
                stderr=output,
                on_exit=self._on_exit,
            )
        except BaseException:
            os.close(read_fd)
            remove_folder(self._folder)
            raise
        finally:
            os.close(write_fd)
        self._loop.add_reader(read_fd, self._read, read_fd)

    def _read(self, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        self._report += data
        if not data:
            self._loop.remove_reader(fd)
            os.close(fd)
            if self._report:  # else it died before it was up: its exit says so
                self._on_up(json.loads(self._report))

    def _on_exit(self, status: int) -> None:
        remove_folder(self._folder)
        self._on_lost(exit_reason(status), self._child.tail if self._child else "")

    async def stop(self) -> None:
        """Kill it and wait for its end; idempotent."""
        if self._child is not None:
            self._child.kill()
            await self._child.exited.wait()
