"""Who may speak to a supervisor or its controller: those whose CURVE keys it knows.

It knows keys and zmq's authentication protocol (ZAP), nothing of what is said.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

__all__ = ["KnownKeys", "only_client", "only_clients"]


class KnownKeys:
    """A credentials provider, as pyzmq calls it, that knows some keys."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this (Z85) key is let in."""
        return any(hmac.compare_digest(known, key) for known in self._keys)


@contextmanager
def only_clients(
    context: zmq.asyncio.Context, keys: Collection[bytes], domain: str = "*"
) -> Iterator[None]:
    """Let only holders of the secret halves of ``keys`` (Z85) connect to the context's sockets.

    ``keys`` may change meanwhile. ``domain`` is that of the sockets, if they have one.
    """
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain=domain, credentials_provider=KnownKeys(keys))
    try:
        yield
    finally:
        authenticator.stop()


def only_client(context: zmq.asyncio.Context, key: bytes) -> AbstractContextManager[None]:
    """Let only the holder of the secret half of ``key`` (Z85) connect to the context's sockets."""
    return only_clients(context, (key,))
