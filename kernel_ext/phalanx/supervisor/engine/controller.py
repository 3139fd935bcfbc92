"""Run ipyparallel's controller, and tell each rank its uuid and connection file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.protocol import Booted, Registered, ToRank

from ..processes.child import ChildProcess, OutputPipe, exit_reason
from ..processes.system import has_abstract_sockets, remove_folder

if TYPE_CHECKING:
    from ..world_state import RankDirectory

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

    def start(self, cwd: str, addresses: Iterable[str] = ()) -> None:
        """Start the process; ``on_up`` is called when all its ports are bound.

        The controller listens on Unix sockets. For ranks of other hosts it also listens on those
        ``addresses`` of this host.
        """
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        output = OutputPipe()
        if not has_abstract_sockets():
            place = tempfile.gettempdir()
            place = place if len(place) <= MOST_CHARACTERS else "/tmp"  # noqa: S108
            self._folder = tempfile.mkdtemp(prefix="phalanx-", dir=place)  # this user's alone
        command = [sys.executable, "-m", "phalanx.supervisor.engine.controller_main"]
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


class _Hosts(Protocol):
    """Interface of the ranks' hosts that `Engines` uses."""

    def root_address(self, rank: int) -> str: ...
    def send(self, rank: int, message: ToRank) -> None: ...


class Engines:
    """Run the controller and send each rank its uuid and connection file.

    ``names`` (engine uuid by rank) is also changed by `Restarts`, when a rank is replaced.
    """

    def __init__(
        self,
        ranks: RankDirectory,
        hosts: _Hosts,
        *,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.names = [str(uuid.uuid4()) for _ in range(ranks.size)]
        self._session = str(uuid.uuid4())
        self._hosts = hosts
        self._ranks = ranks
        self._waiting: dict[int, int] = {}  # rank -> request id, until the controller is up
        self._connection: Connection = {}
        self._controller = ControllerProcess(self._on_up, on_lost)

    def start_controller(self, cwd: str, addresses: Sequence[str]) -> None:
        """Start the controller; ranks that already asked are answered afterwards."""
        self._controller.start(cwd, addresses)

    async def stop_controller(self) -> None:
        """Stop the controller and wait until its process has ended."""
        await self._controller.stop()

    def register(self, rank: int, request_id: int) -> None:
        """Answer a rank's registration, now or when the controller is up."""
        if not self._connection:
            self._waiting[rank] = request_id
            return
        file = file_for_rank(self._connection, self._hosts.root_address(rank))
        is_new = self._ranks.is_replacement(rank)
        answer = Registered(request_id, rank, self._ranks.size, self.names[rank], file, is_new)
        self._hosts.send(rank, answer)

    def booted(self, client: int) -> Booted:
        """Return the message that tells a client how to reach the engines."""
        return Booted(self._connection["client"], tuple(self.names), self._session, client)

    def _on_up(self, connection: Connection) -> None:
        self._connection = connection
        for rank, request_id in self._waiting.items():
            self.register(rank, request_id)
        self._waiting.clear()
