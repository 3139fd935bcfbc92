"""Run a supervisor: `python -m phalanx.supervisor [script | host]`.

Without a role, or as ``script``, the process is a root supervisor. It reads one line of options
from standard input, which is a socket, and serves one workspace or one script launcher there.
``host`` serves its root. Programs start these processes, not users.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import USER_SIGNALS, BootFailed, BootOptions, pack_frame
from phalanx.protocol.os_text import decode_options
from phalanx.protocol.scripts import ScriptOptions

from .processes.system import (
    allow_descriptors,
    check_loopback,
    leave,
    save_address_space,
    stripe_sockets,
)
from .runtime_dir import Claim, claim_name

if TYPE_CHECKING:
    from .root.script_root import ScriptRoot
    from .root.workspace_root import WorkspaceRoot

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (signal.SIGINT, *_ENDING)
_OF_SCRIPTS = (*_SIGNALS, *USER_SIGNALS)


async def _serve(
    options: BootOptions | ScriptOptions, first: socket.socket, claim: Claim | None
) -> None:
    from .root.clients import Client

    loop = asyncio.get_running_loop()
    root: WorkspaceRoot | ScriptRoot
    if isinstance(options, ScriptOptions):
        from .root.script_root import ScriptRoot

        root = ScriptRoot(options)
        # The launcher forwards these signals. (A handler, because ranks would inherit SIG_IGN.)
        for number in _OF_SCRIPTS:
            loop.add_signal_handler(number, root.on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_SCRIPTS)
    else:
        from .root.workspace_root import WorkspaceRoot

        root = WorkspaceRoot(options, claim)
        for number in _ENDING:
            loop.add_signal_handler(number, root.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    await loop.connect_accepted_socket(lambda: Client(root), first)
    if claim is not None:
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
        first.sendall(pack_frame(BootFailed(str(error))))
        sys.exit(1)


def main() -> None:
    """Run one supervisor."""
    # A signal that comes before there is a handler stays pending: a launch reports how it was
    # ended.
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
    options: BootOptions | ScriptOptions
    if role == "script":
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_SCRIPTS)
        options = decode_options(line, ScriptOptions)
    else:
        options = decode_options(line, BootOptions)
    boot = options.boot if isinstance(options, ScriptOptions) else options
    first, claim = _take_stdin(), None
    try:
        here = [plan for plan in boot.hosts if plan.is_local]
        elsewhere = boot.world.size - sum(plan.ranks for plan in here) if here else 0
        n_addresses = max((len(plan.addresses) for plan in here), default=0)
        sockets = stripe_sockets(elsewhere, n_addresses, boot.world.connections_per_ip)
        allow_descriptors(boot.world.size, sockets)
        check_loopback()
        save_address_space()
        if isinstance(options, BootOptions):
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
