"""The process of a supervisor: `python -m phalanx.supervisor [script | host [KEY] | job FOLDER]`.

It reads one line of options from its standard input. A root answers with its address on its
standard output, and serves one workspace, or one launcher of a script, until that is over; a host
serves its root, and where a batch system started it, it reads its line from a file. A job starts
the hosts of a batch job. Started by these, not by hand.
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
from phalanx.protocol import BootOptions, RootAddress
from phalanx.protocol.scripts import ScriptOptions

from ._curve import only_client
from ._leave import leave
from ._limits import allow_descriptors, save_address_space, stripe_sockets
from ._runtime_folder import RecordFile

# What a stranger may cost before its handshake fails: a descriptor for so long (libzmq: 30 s), and
# a message of this size (libzmq: any). The client sends pieces of input of 64 KiB, and less.
_HANDSHAKE_MS = 5000
_MESSAGE_MAX_NBYTES = 4 << 20

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (signal.SIGINT, *_ENDING)


async def _serve(options: BootOptions | ScriptOptions) -> None:
    public_key, secret_key = zmq.curve_keypair()
    boot = options.boot if isinstance(options, ScriptOptions) else options
    with zmq.asyncio.Context() as context, only_client(context, boot.client_public_key):
        client = context.socket(zmq.ROUTER)
        client.linger = 500  # ms: the last word (`Stopped`) still goes out
        client.sndhwm = client.rcvhwm = 0  # a full ROUTER drops; what is sent is bounded elsewhere
        client.handshake_ivl, client.maxmsgsize = _HANDSHAKE_MS, _MESSAGE_MAX_NBYTES
        client.curve_server = True
        client.curve_publickey, client.curve_secretkey = public_key, secret_key
        port = client.bind_to_random_port("tcp://127.0.0.1")
        address = RootAddress(f"tcp://127.0.0.1:{port}", public_key)
        _answer(address)
        try:
            if isinstance(options, ScriptOptions):
                await _run_script(options, client, address)
            else:
                await _run_workspace(options, client, address)
        finally:
            client.close()


async def _run_workspace(
    options: BootOptions, client: zmq.asyncio.Socket, address: RootAddress
) -> None:
    from ._root import RootSupervisor

    root = RootSupervisor(options, client, address)
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, root.end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    await root.run()


async def _run_script(
    options: ScriptOptions, client: zmq.asyncio.Socket, address: RootAddress
) -> None:
    from ._script_root import ScriptRoot

    root = ScriptRoot(options, client, address)
    # The launcher hands these on. (A handler, not SIG_IGN: that would be handed down to ranks.)
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, root.on_signal, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    await root.run()


def _answer(address: RootAddress) -> None:
    """Say the address and let go of the pipe: nobody reads it again."""
    sys.stdout.buffer.write(msgspec.json.encode(address) + b"\n")
    sys.stdout.buffer.flush()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Run one supervisor."""
    # One that comes before there is a handler waits for it: a launch says how it was ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # A Ctrl-C in the workspace's terminal is the workspace's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="phalanx supervisor: %(message)s")
    role, *words = sys.argv[1:] or [""]
    if role == "job":
        from ._job_head import run_job

        run_job(*words)
        return
    if role == "host":
        from ._host_entry import run_host, run_host_of_job

        if words:
            run_host_of_job(words[0])
        else:
            run_host(sys.stdin.buffer.readline())
        return
    line = sys.stdin.buffer.readline()
    options: BootOptions | ScriptOptions
    if role == "script":
        options = msgspec.json.decode(line, type=ScriptOptions)
    else:
        options = msgspec.json.decode(line, type=BootOptions)
    boot = options.boot if isinstance(options, ScriptOptions) else options
    try:
        here = [plan for plan in boot.hosts if plan.is_local]
        elsewhere = boot.ranks - sum(plan.ranks for plan in here) if here else 0
        n_addresses = max((len(plan.addresses) for plan in here), default=0)
        sockets = stripe_sockets(elsewhere, n_addresses, boot.remote.connections_per_ip)
        allow_descriptors(boot.ranks, sockets)
        save_address_space()
        asyncio.run(_serve(options))
    except (DistributedError, OSError, MemoryError) as error:
        if boot.record_path:  # it may be too early for anybody to have taken it
            with contextlib.suppress(OSError):
                RecordFile(boot.record_fd, boot.record_path).close()
        # What this machine refuses is no mistake of ours: a line, which whoever started us says.
        sys.exit(f"it cannot run here: {error}")
    leave()


if __name__ == "__main__":
    main()
