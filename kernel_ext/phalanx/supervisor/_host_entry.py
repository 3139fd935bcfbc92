"""The beginning of a host's supervisor: its first line read, its root reached, or why not.

What goes wrong here is one line on the standard error, which whoever started it shows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

import phalanx
from phalanx.errors import DistributedError
from phalanx.hosts import interface_addresses
from phalanx.protocol.hosts import HostBoot

from ._host_process import BEGUN
from ._host_role import HostRole
from ._key_folder import say_in, take_key
from ._leave import leave
from ._limits import allow_descriptors, save_address_space, stripe_sockets
from ._reach import reach
from ._root_link import RootLink

__all__ = ["run_host", "run_host_of_job"]

REACH_S = 3.0  # for one of the root's addresses: tcp's first two packets, and one tried again


# What an mpirun tells a process of its world, and by which that is known.
_OF_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")
_IN_MPI = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


class _Version(msgspec.Struct):
    version: str


def run_host(line: bytes) -> None:
    """Serve as a host of the world that the line tells of; `SystemExit` with one line if not."""
    if not line:
        sys.exit("nobody has told it what to do: what has started it is gone")
    theirs = msgspec.json.decode(line, type=_Version).version
    if theirs != phalanx.__version__:
        text = f"its phalanx is {phalanx.__version__}, the one that starts it is {theirs}"
        sys.exit(f"{text}: there, {sys.executable} -m pip install phalanx=={theirs}")
    boot = msgspec.json.decode(line, type=HostBoot)
    os.write(1, f"{BEGUN}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    _leave_mpi()
    os.environ.update(boot.env)
    try:
        elsewhere = boot.size - len(boot.ranks)
        sockets = stripe_sockets(elsewhere, len(boot.addresses), boot.connections_per_ip)
        allow_descriptors(len(boot.ranks), sockets)
        save_address_space()
        problem = asyncio.run(_serve(boot))
    except (DistributedError, OSError, MemoryError, zmq.ZMQError) as error:
        sys.exit(f"it cannot run there: {error}")
    if problem:
        sys.exit(problem)
    leave()


def _leave_mpi() -> None:
    """Forget the mpirun that has started us: ranks are no processes of its world."""
    if not any(name in os.environ for name in _IN_MPI):
        return
    for name in [name for name in os.environ if name.startswith(_OF_MPI)]:
        del os.environ[name]


def run_host_of_job(path: str) -> None:
    """Serve as `run_host` does, with the line of a key's file; what goes wrong is left beside it."""
    key = Path(path)
    try:
        line = take_key(key)
        if not line:  # tried again by the scheduler, or the one who waited for it is gone
            sys.exit("nobody waits for this job any more")
        run_host(line)
    except SystemExit as error:
        if isinstance(error.code, str):
            say_in(key, error.code)
        raise


async def _serve(boot: HostBoot) -> str:
    found = await reach(boot.endpoints, REACH_S)
    if not found.endpoint:
        text = f"it cannot reach the supervisor at {found.why_not}"
        return f"{text}: phalanx doctor --hosts {boot.name} says what lets it through"
    addresses = boot.addresses or (found.own,)
    if boot.interface and not boot.addresses:
        try:
            addresses = interface_addresses(boot.interface)
        except ValueError as error:  # read where "this machine" is another one
            return str(error).replace("this machine", "it", 1)
    # A folder that is there on all hosts is used on all; ranks have to be somewhere.
    is_there = Path(boot.cwd).is_dir()
    if boot.is_cwd_asked and not is_there:
        return f"it has no folder {boot.cwd}: make it there, or name another with --cwd"
    cwd = boot.cwd if is_there else str(Path.home())
    with (
        zmq.asyncio.Context() as context,
        closing(RootLink(context, boot, found.endpoint)) as root,
    ):
        role = HostRole(boot, root, addresses, cwd)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, role.end)
        # Whoever has started us may go: it is the root whom we serve. (A handler, not SIG_IGN: that
        # would be handed down to ranks.)
        for number in (signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        await role.run()
        return role.problem
