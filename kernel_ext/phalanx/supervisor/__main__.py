"""Run a supervisor: `python -m phalanx.supervisor [script | host [KEY] | job FOLDER]`.

Without a role, or as ``script``, the process is a root supervisor. It reads one line of options
from standard input, answers with its address on standard output, and serves one workspace or one
script launcher. ``host`` serves its root; a host started by a batch system (``KEY``) reads its
options from a file. ``job`` starts the hosts of a batch job. Programs start these processes, not
users.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

import msgspec
import zmq
import zmq.asyncio

from phalanx.errors import DistributedError
from phalanx.protocol import USER_SIGNALS, BootOptions, RootAddress
from phalanx.protocol.os_text import decode_options
from phalanx.protocol.scripts import ScriptOptions

from .engine.curve import only_client
from .processes.system import (
    allow_descriptors,
    check_loopback,
    leave,
    save_address_space,
    stripe_sockets,
)
from .runtime_dir import RecordFile

# Limits on an unauthenticated client: a descriptor for this long (libzmq's default: 30 s), and a
# message of this size (libzmq's default: any). Our client sends input in pieces of at most 64 KiB.
_HANDSHAKE_MS = 5000
_MESSAGE_MAX_NBYTES = 4 << 20

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (signal.SIGINT, *_ENDING)
_OF_SCRIPTS = (*_SIGNALS, *USER_SIGNALS)


async def _serve(options: BootOptions | ScriptOptions) -> None:
    public_key, secret_key = zmq.curve_keypair()
    boot = options.boot if isinstance(options, ScriptOptions) else options
    with zmq.asyncio.Context() as context, only_client(context, boot.client_public_key):
        client = context.socket(zmq.ROUTER)
        client.linger = 500  # ms: time to send the last message (`Stopped`)
        client.sndhwm = client.rcvhwm = 0  # at a limit a ROUTER drops; bounds are elsewhere
        client.handshake_ivl, client.maxmsgsize = _HANDSHAKE_MS, _MESSAGE_MAX_NBYTES
        client.curve_server = True
        client.curve_publickey, client.curve_secretkey = public_key, secret_key
        port = client.bind_to_random_port("tcp://127.0.0.1")
        address = RootAddress(f"tcp://127.0.0.1:{port}", public_key)
        _answer(address)
        try:
            if isinstance(options, ScriptOptions):
                await _run_script(options, client)
            else:
                await _run_workspace(options, client, address)
        finally:
            client.close()


async def _run_workspace(
    options: BootOptions, client: zmq.asyncio.Socket, address: RootAddress
) -> None:
    from .root.workspace_root import WorkspaceRoot

    root = WorkspaceRoot(options, client, address)
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, root.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    await root.run()


async def _run_script(options: ScriptOptions, client: zmq.asyncio.Socket) -> None:
    from .root.script_root import ScriptRoot

    root = ScriptRoot(options, client)
    # The launcher forwards these signals. (A handler, because ranks would inherit SIG_IGN.)
    for number in _OF_SCRIPTS:
        asyncio.get_running_loop().add_signal_handler(number, root.on_signal, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_SCRIPTS)
    await root.run()


def _answer(address: RootAddress) -> None:
    """Write the address, then close the pipe: nobody reads it again."""
    sys.stdout.buffer.write(msgspec.json.encode(address) + b"\n")
    sys.stdout.buffer.flush()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Run one supervisor."""
    # A signal that comes before there is a handler stays pending: a launch reports how it was
    # ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # The workspace handles a Ctrl-C in its own terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="phalanx supervisor: %(message)s")
    role, *words = sys.argv[1:] or [""]
    if role == "job":
        from .launchers.scheduler_step import run_job

        run_job(*words)
        return
    if role == "host":
        from .hosts.agent import run_host, run_host_of_job

        if words:
            run_host_of_job(words[0])
        else:
            run_host(sys.stdin.buffer.readline())
        return
    line = sys.stdin.buffer.readline()
    options: BootOptions | ScriptOptions
    if role == "script":
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_SCRIPTS)
        options = decode_options(line, ScriptOptions)
    else:
        options = decode_options(line, BootOptions)
    boot = options.boot if isinstance(options, ScriptOptions) else options
    try:
        here = [plan for plan in boot.hosts if plan.is_local]
        elsewhere = boot.world.size - sum(plan.ranks for plan in here) if here else 0
        n_addresses = max((len(plan.addresses) for plan in here), default=0)
        sockets = stripe_sockets(elsewhere, n_addresses, boot.world.connections_per_ip)
        allow_descriptors(boot.world.size, sockets)
        check_loopback()
        save_address_space()
        asyncio.run(_serve(options))
    except (DistributedError, OSError, MemoryError) as error:
        if boot.record_path:  # the root may have failed before it took over the record
            with contextlib.suppress(OSError):
                RecordFile(boot.record_fd, boot.record_path).close()
        # A resource that the machine refuses is no bug: one line of text, which the parent shows.
        sys.exit(f"it cannot run here: {error}")
    leave()


if __name__ == "__main__":
    main()
