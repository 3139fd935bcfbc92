"""The process of the root supervisor: `python -m phalanx.supervisor`.

It reads one line of options from its standard input, answers with its address on its standard
output, and serves one workspace until that is over. Started by the workspace, not by hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import msgspec
import zmq
import zmq.asyncio

from phalanx.protocol import BootOptions, RootAddress

from ._curve import only_client
from ._root import RootSupervisor


async def _serve(options: BootOptions) -> None:
    public_key, secret_key = zmq.curve_keypair()
    with zmq.asyncio.Context() as context, only_client(context, options.client_public_key):
        client = context.socket(zmq.ROUTER)
        client.linger = 500  # ms: the last word (`Stopped`) still goes out
        client.curve_server = True
        client.curve_publickey, client.curve_secretkey = public_key, secret_key
        port = client.bind_to_random_port("tcp://127.0.0.1")
        _answer(RootAddress(f"tcp://127.0.0.1:{port}", public_key))
        root = RootSupervisor(options, client)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, root.end)
        try:
            await root.run()
        finally:
            client.close()


def _answer(address: RootAddress) -> None:
    """Say the address and let go of the pipe: nobody reads it again."""
    sys.stdout.buffer.write(msgspec.json.encode(address) + b"\n")
    sys.stdout.buffer.flush()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Run one root supervisor."""
    # A Ctrl-C in the workspace's terminal is the workspace's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="phalanx supervisor: %(message)s")
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=BootOptions)
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
