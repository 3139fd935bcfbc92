"""Run the process of ipyparallel's controller."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from ..processes.child import ChildProcess, Fork, exit_reason
from ..processes.pipes import ChildOutput
from ..processes.sweeper import VARIABLE
from ..processes.system import has_abstract_sockets, remove_folder

CONTROLLER = "controller"  # the title of a forked one
MOST_CHARACTERS = 75  # of the folder's path: a socket's path may have at most 103 (macOS)

# "client" and "engine" are ipyparallel's connection files for this host. "remote" holds the files
# for ranks of other hosts, by the address at which they reach this host. All of them contain keys.
Connection = dict[str, dict[str, Any]]


def file_for_rank(connection: Connection, address: str = "") -> dict[str, Any]:
    """Return the connection file for a rank that connects to ``address``.

    An empty ``address`` means that the rank runs on this host.
    """
    return connection["remote"][address] if address else connection["engine"]


class ControllerProcess:
    """Start and stop the controller's process; report its start and loss."""

    def __init__(
        self, on_up: Callable[[Connection], None], on_lost: Callable[[str, str], None]
    ) -> None:
        self._on_up = on_up
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._child: ChildProcess | None = None
        self._report = bytearray()
        self._folder = ""  # of the controller's sockets, on systems without abstract socket names

    def start(self, cwd: str, addresses: Iterable[str] = (), fork: Fork | None = None) -> None:
        """Start the process; ``on_up`` is called when all its ports are bound.

        The controller listens on Unix sockets. For ranks of other hosts it also listens on those
        ``addresses`` of this host. ``fork`` makes the process; None: start a program.
        """
        try:
            self._start(cwd, addresses, fork)
        except OSError as error:
            self._on_lost(f"could not be started: {error}", "")

    def _start(self, cwd: str, addresses: Iterable[str], fork: Fork | None) -> None:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        output = ChildOutput()
        if not has_abstract_sockets():
            place = tempfile.gettempdir()
            place = place if len(place) <= MOST_CHARACTERS else "/tmp"  # noqa: S108
            self._folder = tempfile.mkdtemp(prefix="phalanx-", dir=place)  # this user's alone
        words = [str(write_fd), self._folder, *addresses]
        program = [sys.executable, "-m", "phalanx.supervisor.engine.controller_main"]
        try:
            self._child = ChildProcess(
                [CONTROLLER, *words] if fork else [*program, str(os.getpid()), *words],
                # No mark of this world: the sweep after a lost fork server spares the controller.
                env={VARIABLE: "", **os.environ},
                cwd=cwd,
                pass_fds=[write_fd],
                stdout=output,
                stderr=output,
                on_exit=self._on_exit,
                fork=fork,
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
            if self._report:  # else it died before it was up: `_on_exit` reports that
                self._on_up(json.loads(self._report))

    def _on_exit(self, status: int) -> None:
        remove_folder(self._folder)
        self._on_lost(exit_reason(status), self._child.tail if self._child else "")

    async def stop(self) -> None:
        """Kill the controller and wait for its end; idempotent."""
        if self._child is not None:
            self._child.kill()
            await self._child.exited.wait()
