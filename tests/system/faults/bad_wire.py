"""A bad wire between ranks: it delays, drops, cuts or changes what passes.

`BadWire.reroute` puts it between the ranks of a farm's world: it changes the addresses that they
tell each other in the first round of their rendezvous.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
import msgspec.structs
from support.hosts.proxy import Proxy
from support.promise import PATIENCE_S

from phalanx.distributed.connect.endpoints import Endpoint, Share

FLIPPED_BIT = 0x10


class BadWire:
    """All connections between the ranks of a world; good until told otherwise. A context manager."""

    def __init__(self) -> None:
        self._proxies: list[Proxy] = []
        self._passes = asyncio.Event()
        self._passes.set()
        self._drops = False
        self._delay_s = 0.0
        self._change_at: int | None = None
        self._n_since_armed: Counter[asyncio.StreamReader] = Counter()
        self.n_bytes = 0
        self.n_held = 0
        self.n_changed = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the thread of the wire."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def reroute(self, number: int, rank: int, data: bytes) -> bytes:
        """Put a proxy where a rank listens, which the second round tells; others pass."""
        if number != 1:
            return data
        share = msgspec.msgpack.decode(data, type=Share)
        endpoints = tuple(self._do(self._stand_in(endpoint)) for endpoint in share.endpoints)
        return msgspec.msgpack.encode(msgspec.structs.replace(share, endpoints=endpoints))

    async def _stand_in(self, endpoint: Endpoint) -> Endpoint:
        proxy = Proxy(f"{endpoint.host}:{endpoint.port}", self._pass_on)
        self._proxies.append(proxy)
        host, _, port = (await proxy.open()).removeprefix("tcp://").rpartition(":")
        return msgspec.structs.replace(endpoint, host=host, port=int(port))

    async def _pass_on(self, data: bytes, source: asyncio.StreamReader) -> bytes:
        if not self._passes.is_set():
            self.n_held += len(data)
            await self._passes.wait()
        await asyncio.sleep(self._delay_s)
        self.n_bytes += len(data)
        if self._drops:
            return b""
        if self._change_at is None:
            return data
        at = self._change_at - self._n_since_armed[source]
        self._n_since_armed[source] += len(data)
        if at >= len(data):
            return data
        self._change_at = None
        self.n_changed += 1
        changed = bytearray(data)
        changed[at] ^= FLIPPED_BIT
        return bytes(changed)

    # -- what a wire does -----------------------------------------------------------------------

    def drop(self) -> None:
        """Swallow everything from now on, and say nothing."""
        self._drops = True

    def hold(self) -> None:
        """Let nothing pass until `release`."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def release(self) -> None:
        """Let everything pass that was held."""
        self._loop.call_soon_threadsafe(self._passes.set)

    def delay(self, seconds: float) -> None:
        """Keep each piece for so long."""
        self._delay_s = seconds

    def change_at(self, byte: int) -> None:
        """Flip a bit of the byte with this number, from 0, of one direction of one connection.

        The bytes are counted from now on, of the direction that comes to it first. Armed while the
        ranks are idle, the number is a place in their first message.
        """
        self._n_since_armed.clear()
        self._change_at = byte

    def cut(self, *, hard: bool) -> None:
        """End all connections, with or without what is on its way (RST or FIN)."""

        async def cut() -> None:
            for proxy in self._proxies:
                proxy.reset(hard=hard)

        self._do(cut())

    def __enter__(self) -> BadWire:
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            self._do(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
