"""Run a supervisor: `python -m phalanx.supervisor [host]`.

Without a role the process is the root supervisor of a workspace. It reads one line of options from
standard input, which is a socket, and serves the workspace's client there. ``host`` serves its
root. Programs start these processes, not users.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, Failed, pack_frame
from phalanx.protocol.os_text import decode_options

from .boot import prepare_process
from .processes.system import leave
from .runtime_dir import Claim, claim_name

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (signal.SIGINT, *_ENDING)


async def _serve(options: BootOptions, first: socket.socket, claim: Claim) -> None:
    from .root.clients import Client
    from .root.workspace_root import WorkspaceRoot

    loop = asyncio.get_running_loop()
    root = WorkspaceRoot(options, claim)
    for number in _ENDING:
        loop.add_signal_handler(number, root.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    await loop.connect_accepted_socket(lambda: Client(root), first)
    await loop.create_unix_server(lambda: Client(root), sock=claim.sock)
    await root.run()


def _take_stdin() -> socket.socket:
    """Return the socket that is the standard input, and empty the latter."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return sock


def _claim(options: BootOptions, first: socket.socket) -> Claim:
    """Claim the workspace's name, or tell the client why that is refused."""
    try:
        return claim_name(options.world.name, is_fixed=options.is_named)
    except DistributedError as error:
        first.sendall(pack_frame(Failed(str(error))))
        sys.exit(1)


def main() -> None:
    """Run one supervisor."""
    # A signal that comes before there is a handler stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # The workspace handles a Ctrl-C in its own terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="phalanx supervisor: %(message)s")
    role = "".join(sys.argv[1:2])
    line = sys.stdin.buffer.readline()
    if role == "host":
        from .hosts.agent import run_host

        run_host(line)
        return
    options = decode_options(line, BootOptions)
    first, claim = _take_stdin(), None
    try:
        prepare_process(options)
        claim = _claim(options, first)
        world = msgspec.structs.replace(options.world, name=claim.name)
        options = msgspec.structs.replace(options, world=world, socket_path=str(claim.path))
        asyncio.run(_serve(options, first, claim))
    except (DistributedError, OSError, MemoryError) as error:
        # A resource that the machine refuses is no bug: one line of text, which the parent shows.
        sys.exit(f"it cannot run here: {error}")
    finally:
        if claim is not None:
            claim.release()
    leave()


if __name__ == "__main__":
    main()
