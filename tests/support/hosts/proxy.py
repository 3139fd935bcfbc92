"""A wire between two ends on this machine, for tests that break it. It moves bytes of any protocol."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

_RESETS = struct.pack("ii", 1, 0)  # what is on its way is lost, and the other end is told so


class Proxy:
    """Stands in for who listens at an endpoint: resets connections, or swallows or changes what passes.

    ``change(data, source)`` returns what becomes of bytes that came from one end of a connection.
    """

    def __init__(self, endpoint, change=None):
        self._host, _, port = endpoint.rpartition("/")[2].rpartition(":")
        self._port = int(port)
        self._change = change
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
            their_reader, their_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:  # who listened there has what it wanted
            writer.transport.abort()
            return
        both = (writer, their_writer)
        self._writers.append(both)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                self._copy(reader, their_writer, both), self._copy(their_reader, writer, both)
            )
        for end in both if both not in self._silent else ():
            end.transport.abort()

    async def _copy(self, reader, writer, both):
        while data := await reader.read(1 << 16):
            if self._change is not None:
                data = await self._change(data, reader)
            if both not in self._silent:
                writer.write(data)
                await writer.drain()
        if both not in self._silent:
            writer.write_eof()

    @property
    def is_used(self):
        return bool(self._writers)

    def reset(self, *, hard=True):
        """Break all connections: with what is on its way, or as if both ends had closed them."""
        while self._writers:
            for writer in self._writers.pop():
                with contextlib.suppress(OSError):  # it has been closed
                    sock = writer.get_extra_info("socket")
                    if not hard:
                        sock.shutdown(socket.SHUT_RDWR)
                        continue
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
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
