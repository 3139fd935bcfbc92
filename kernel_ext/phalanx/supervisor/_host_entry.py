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
from ._limits import allow_descriptors, save_address_space
from ._reach import reach
from ._root_link import RootLink

__all__ = ["run_host"]

REACH_S = 3.0  # for one of the root's addresses: tcp's first two packets, and one tried again


class _Version(msgspec.Struct):
    version: str


def run_host(line: bytes) -> None:
    """Serve as a host of the world that the line tells of; `SystemExit` with one line if not."""
    if not line:
        sys.exit("nobody has told it what to do: what has started it is gone")
    theirs = msgspec.json.decode(line, type=_Version).version
    if theirs != phalanx.__version__:
        sys.exit(f"its phalanx is {phalanx.__version__}, the one that starts it is {theirs}")
    boot = msgspec.json.decode(line, type=HostBoot)
    os.write(1, f"{BEGUN}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    os.environ.update(boot.env)
    try:
        allow_descriptors(len(boot.ranks))
        save_address_space()
        problem = asyncio.run(_serve(boot))
    except (DistributedError, OSError, MemoryError, zmq.ZMQError) as error:
        sys.exit(f"it cannot run there: {error}")
    if problem:
        sys.exit(problem)


async def _serve(boot: HostBoot) -> str:
    found = await reach(boot.endpoints, REACH_S)
    if not found.endpoint:
        return f"it cannot reach the supervisor at {found.why_not}"
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
