"""Ranks of mpirun that stay and run cells, so that the contract suite is held to MPI, too.

To a test it is a world of the farm, but one that is not formed anew: after a failure another
mpirun must follow. `MpiWorlds` gives a test the world of a size that is still good, or a new one.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from distributed.farm.farm import KEY, World
from distributed.farm.farm_parts import CELL_S, Cells, Plan
from support.ranks.mpis import Mpi, marked
from support.waiting import wait_until

from phalanx.protocol import Activity
from phalanx.supervisor.world.state import WorldState


class Member(Cells):
    """One rank of them."""

    def __init__(self, rank: int, pid: int, control: Connection, asked: Connection) -> None:
        super().__init__(rank, control)
        self.process = psutil.Process(pid)
        self.asked = asked


class MpiWorld(World):
    """A world of ``size`` ranks of an mpirun of its own; a context manager.

    What its ranks write is shown by the test that loses one.
    """

    def __init__(self, mpi: Mpi, size: int) -> None:
        super().__init__(self, Plan(size, (0,) * size, "mpi", WorldState(size)))
        self.members: dict[int, Member] = {}
        self._stack = ExitStack()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            mark = stack.enter_context(marked())
            self._output = stack.enter_context((folder / "output").open("w+b"))
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(folder / "server"))
            server.listen(2 * size)
            key = folder / "key"
            key.touch(mode=0o600)
            key.write_bytes(KEY)
            env = {
                **mpi.environment(), **mark, "OPENBLAS_NUM_THREADS": "1",
                "PHALANX_KEY_FILE": str(key),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            }  # fmt: skip
            words = ["-m", "distributed.mpi.mpi_rank", str(folder / "server")]
            self._mpirun = subprocess.Popen(
                [*mpi.mpirun(size), sys.executable, *words],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, env=env,
            )  # fmt: skip
            stack.callback(self._end)
            waiting: list[Connection] = []
            ends: dict[int, dict[str, Connection]] = {}
            pids: dict[int, int] = {}
            for _ in range(2 * size):
                connection = Connection(self._accept(server).detach())
                stack.callback(connection.close)
                waiting.append(connection)
            for connection in waiting:
                rank, pid, purpose = connection.recv()
                ends.setdefault(rank, {})[purpose] = connection
                pids[rank] = pid
            for rank, by_purpose in ends.items():
                control, asked = by_purpose["cells"], by_purpose["activity"]
                self.members[rank] = Member(rank, pids[rank], control, asked)
            self._stack = stack.pop_all()

    def _accept(self, server: socket.socket) -> socket.socket:
        """Accept a rank's connection; an mpirun that ends has failed."""
        wait_until(
            lambda: select.select([server], [], [], 0)[0] or self._mpirun.poll() is not None,
            "a rank of mpirun connects",
            CELL_S,
        )
        if self._mpirun.poll() is not None:
            self._output.seek(0)
            msg = f"mpirun has ended: {self._output.read().decode()}"
            raise AssertionError(msg)
        return server.accept()[0]

    def _end(self) -> None:
        """Wait for mpirun, whose ranks end once nobody can send them anything."""
        are_idle = [not member.is_busy for member in self.members.values()]
        try:
            self._mpirun.wait(CELL_S if all(are_idle) and len(are_idle) == self.size else 0)
        except subprocess.TimeoutExpired:
            self._mpirun.terminate()  # it ends its ranks
            self._mpirun.wait(CELL_S)

    def _ask(self, rank: int, what: str) -> Any:
        """Have a function of `mpi_rank` called on a rank, whatever its main thread does."""
        asked = self.members[rank].asked
        asked.send(what)
        assert asked.poll(CELL_S), f"rank {rank} does not answer"
        return asked.recv()

    def activity(self, rank: int) -> Activity:
        """Return which operations a rank waits in; there is no page that says it."""
        found: Activity = self._ask(rank, "activity")
        return found

    def wait_asleep(self, rank: int) -> None:
        """Wait until a rank's main thread is in a wait that an interrupt ends."""
        wait_until(lambda: self._ask(rank, "is_main_waiting"), f"rank {rank} waits")

    def outcomes(self, *args: Any, **options: Any) -> list[Any]:
        found = super().outcomes(*args, **options)
        if any(isinstance(outcome, ProcessLookupError) for outcome in found):
            self._output.seek(0)
            raise AssertionError(self._output.read().decode())
        return found

    def __enter__(self) -> MpiWorld:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all ranks, and see that nothing of them is left."""
        self._stack.close()
        assert not self.is_good or self._mpirun.returncode == 0, self._mpirun.returncode


class MpiWorlds:
    """Worlds of one MPI library by their size; a context manager that ends them all."""

    def __init__(self, mpi: Mpi) -> None:
        self._mpi = mpi
        self._made: dict[int, MpiWorld] = {}

    def __call__(self, size: int) -> MpiWorld:
        """Return the world of this size, or a new one where the last has failed."""
        if size in self._made and not self._made[size].is_good:
            self._made.pop(size).close()
        if size not in self._made:
            self._made[size] = MpiWorld(self._mpi, size)
        return self._made[size]

    def __enter__(self) -> MpiWorlds:
        return self

    def __exit__(self, *raised: object) -> None:
        with ExitStack() as stack:
            for world in self._made.values():
                stack.callback(world.close)
