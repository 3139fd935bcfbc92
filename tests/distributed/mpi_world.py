"""Ranks of mpirun that stay and run cells, so that the contract suite is held to MPI, too.

To a test it is a world of the farm, but one that is not formed anew: after a failure another
mpirun must follow.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from distributed.farm import TESTS, World
from distributed.farm_parts import PATIENCE, Cells, Plan
from mpis import Mpi, marked


class Member(Cells):
    """One rank of them."""

    def __init__(self, control: Connection) -> None:
        rank, pid = control.recv()
        super().__init__(rank, control)
        self.process = psutil.Process(pid)


class MpiWorld(World):
    """A world of ``size`` ranks of an mpirun of its own; a context manager.

    What its ranks write is shown by the test that loses one.
    """

    def __init__(self, mpi: Mpi, size: int) -> None:
        super().__init__(self, Plan(size, (0,) * size, "mpi", 1))
        self.members: dict[int, Member] = {}
        self._stack = ExitStack()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            mark = stack.enter_context(marked())
            self._output = stack.enter_context((folder / "output").open("w+b"))
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(folder / "server"))
            server.listen(size)
            server.settimeout(PATIENCE)
            env = {
                **mpi.environment(), **mark, "OPENBLAS_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
            }  # fmt: skip
            words = ["-m", "distributed.mpi_rank", str(folder / "server")]
            self._mpirun = subprocess.Popen(
                [*mpi.mpirun(size), sys.executable, *words],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, env=env,
            )  # fmt: skip
            stack.callback(self._end)
            for _ in range(size):
                control = Connection(server.accept()[0].detach())
                stack.callback(control.close)
                member = Member(control)
                self.members[member.rank] = member
            self._stack = stack.pop_all()

    def _end(self) -> None:
        """Wait for mpirun, whose ranks end once nobody can send them anything."""
        are_idle = [not member.is_busy for member in self.members.values()]
        try:
            self._mpirun.wait(PATIENCE if all(are_idle) and len(are_idle) == self.size else 0)
        except subprocess.TimeoutExpired:
            self._mpirun.terminate()  # it ends its ranks
            self._mpirun.wait(PATIENCE)

    def outcomes(self, *args: Any, **options: Any) -> list[Any]:
        found = super().outcomes(*args, **options)
        if any(isinstance(outcome, ProcessLookupError) for outcome in found):
            self._output.seek(0)
            raise AssertionError(self._output.read().decode())
        return found

    def __enter__(self) -> MpiWorld:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()
        assert not self.is_good or self._mpirun.returncode == 0, self._mpirun.returncode
