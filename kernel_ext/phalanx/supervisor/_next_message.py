"""The next message of a client that can be understood, for both kinds of root.

It knows frames and records; whose they are and what they mean is the root's business.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec
import zmq.asyncio

__all__ = ["next_message"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")


async def next_message(
    socket: zmq.asyncio.Socket, decoder: msgspec.msgpack.Decoder[_T]
) -> tuple[bytes, _T]:
    """Wait for a message; the client's routing id, and what it says.

    What another version says, or nobody of ours, is logged and dropped: it must not be the end of
    the ranks.
    """
    while True:
        identity, *bodies = await socket.recv_multipart()
        try:
            (body,) = bodies
            return identity, decoder.decode(body)
        except (ValueError, RecursionError) as error:  # also a text that is no UTF-8
            log.warning("a message of a client was not understood: %s", error)
