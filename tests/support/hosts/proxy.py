"""A wire between two ends on this machine, for tests that break it. It moves bytes of any protocol."""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    """A wire between a host and its root: it resets connections, or swallows what passes."""

    def __init__(self, endpoint):
        self._port = int(endpoint.rpartition(":")[2])
        self._writers = []
        self._silent = set()
        self._server = None
        self._tasks = set()
        self._own_port = 0
        self.n_came = 0

    async def open(self):
        """Listen, the second time on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]
        return f"tcp://127.0.0.1:{self._own_port}"

    async def _serve(self, reader, writer):
        self.n_came += 1
        self._tasks.add(asyncio.current_task())
        try:
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, their_writer)
        self._writers.append(both)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(
                self._copy(reader, their_writer, both), self._copy(their_reader, writer, both)
            )
        for end in both if both not in self._silent else ():
            end.transport.abort()

    async def _copy(self, reader, writer, both):
        while data := await reader.read(1 << 12):
            if both not in self._silent:
                writer.write(data)
                await writer.drain()
        if both not in self._silent:
            writer.transport.abort()

    @property
    def is_used(self):
        return bool(self._writers)

    def reset(self):
        """Break all connections, with what is on its way."""
        while self._writers:
            for writer in self._writers.pop():
                writer.transport.abort()

    def swallow(self):
        """Let nothing pass any more on the connections that there are, not even their end."""
        self._silent.update(self._writers)

    def stop(self):
        """Listen no more, and break all connections."""
        self._server.close()
        self.reset()

    async def close(self):
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
