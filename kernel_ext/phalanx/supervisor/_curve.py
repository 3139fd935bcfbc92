"""Who may speak to a supervisor or its controller: exactly one client, known by its CURVE key.

It knows keys and zmq's authentication protocol (ZAP), nothing of what is said.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager

import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

__all__ = ["OneKey", "only_client"]


class OneKey:
    """A credentials provider, as pyzmq calls it, that knows one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this (Z85) key is let in."""
        return hmac.compare_digest(self._key, key)


@contextmanager
def only_client(context: zmq.asyncio.Context, key: bytes) -> Iterator[None]:
    """Let only the holder of the secret half of ``key`` (Z85) connect to the context's sockets."""
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain="*", credentials_provider=OneKey(key))
    try:
        yield
    finally:
        authenticator.stop()
