"""The MPIs that tests run on: `tests/run` installs each into a folder of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from support.places import TESTS
from support.programs.processes import wait_gone, with_variable

CELLS = str(TESTS / "packages" / "distributed" / "mpi" / "mpi_failing.py")


@dataclass(frozen=True)
class Mpi:
    """One of them, with its mpirun first on the PATH; ``folder`` is for what mpirun writes."""

    name: str
    folder: Path

    @property
    def bin(self) -> Path:
        return Path(sys.prefix, "mpi", self.name, "bin")

    def environment(self) -> dict[str, str]:
        (library,) = (self.bin.parent / "lib").glob("libmpi.so.*")
        env = {name: value for name, value in os.environ.items() if name != "MPI4PY_LIBMPI"}
        return {
            **env,
            # Open MPI's mpirun makes a folder by its pid. An mpirun that was killed leaves it, and
            # a later mpirun with this pid fails ("listener thread failed to start").
            "PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(dir=self.folder),
            "PATH": f"{self.bin}{os.pathsep}{env['PATH']}",
            "MPI4PY_LIBMPI": str(library),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def mpirun(self, n: int) -> list[str]:
        words = [str(self.bin / "mpirun"), "-n", str(n)]
        if self.name == "openmpi":
            words += ["--map-by", ":OVERSUBSCRIBE"]
            words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return words

    def run(self, n: int, *words: str, timeout_s: float = 100.0, **env: str):
        """Run Python with these words on ranks; nothing of it may be left afterwards."""
        with marked() as mark:
            popen = subprocess.Popen(
                [*self.mpirun(n), sys.executable, *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**self.environment(), **mark, **env}, start_new_session=True,
            )  # fmt: skip
            try:
                out, err = popen.communicate(timeout=timeout_s)
            finally:
                if popen.poll() is None:
                    os.killpg(popen.pid, signal.SIGKILL)
                    popen.communicate()
        return subprocess.CompletedProcess(words, popen.returncode, out, err)

    def cells(self, n: int, cell: str, **options) -> list[str]:
        """Run a cell of mpi_failing.py that ends well; the lines it said."""
        said = self.run(n, CELLS, cell, **options)
        assert said.returncode == 0, said.stdout + said.stderr
        return said.stdout.splitlines()


@contextlib.contextmanager
def marked():
    """Give an environment that marks processes; none that has it may outlive the block."""
    name = "PHALANX_TEST_MARK"
    value = uuid.uuid4().hex
    yield {name: value}
    left = wait_gone(with_variable(name, value))
    for process in left:
        process.kill()
    assert not left, left
