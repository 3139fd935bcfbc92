"""A proxy between ranks that delays, drops, cuts or changes what passes: a bad wire.

`BadWire.reroute` puts it between the ranks of a farm's world: it changes the addresses that they
tell each other in the first round of their rendezvous.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import Counter

import msgspec
import msgspec.structs

from phalanx.distributed.connect.endpoints import Endpoint, Share

CHUNK = 1 << 16
FLIPPED_BIT = 0x10


class _Wire:
    """One connection through the proxy: two threads copy, each in one direction."""

    def __init__(self, owner: BadWire, client: socket.socket, address: tuple[str, int]) -> None:
        self._owner = owner
        self._ends = (client, socket.create_connection(address))
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pairs = (self._ends, self._ends[::-1])
        self.threads = [threading.Thread(target=self._copy, args=pair) for pair in pairs]
        for thread in self.threads:
            thread.start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(CHUNK):
                changed = self._owner.pass_on(data, source)
                if changed:
                    target.sendall(changed)
            target.shutdown(socket.SHUT_WR)

    def cut(self, *, hard: bool) -> None:
        """End the connection, with or without what is on its way (RST or FIN)."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                if hard:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut(hard=False)
        for thread in self.threads:
            thread.join()
        for end in self._ends:
            end.close()


class BadWire:
    """All connections between the ranks of a world; good until told otherwise. A context manager."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
        self._wires: list[_Wire] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._wake = socket.socketpair()
        self._pass: threading.Event = threading.Event()
        self._pass.set()
        self._drops = False
        self._delay_s = 0.0
        self._change_at: int | None = None
        self._n_since_armed: Counter[socket.socket] = Counter()
        self.n_bytes = 0
        self.n_held = 0
        self.n_changed = 0
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def reroute(self, number: int, rank: int, data: bytes) -> bytes:
        """Put this proxy where a rank listens, which the second round tells; others pass."""
        if number != 1:
            return data
        share = msgspec.msgpack.decode(data, type=Share)
        endpoints = tuple(self._stand_in(endpoint) for endpoint in share.endpoints)
        return msgspec.msgpack.encode(msgspec.structs.replace(share, endpoints=endpoints))

    def _stand_in(self, endpoint: Endpoint) -> Endpoint:
        listener = socket.create_server(("127.0.0.1", 0))
        with self._lock:
            self._listeners[listener.fileno()] = (listener, (endpoint.host, endpoint.port))
        self._wake[1].send(b"!")
        return msgspec.structs.replace(endpoint, host="127.0.0.1", port=listener.getsockname()[1])

    def _accept(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                waiting = [listener for listener, _ in self._listeners.values()]
            ready, _, _ = select.select([self._wake[0], *waiting], [], [])
            for listener in ready:
                if listener is self._wake[0]:
                    listener.recv(64)
                    continue
                client, _ = listener.accept()
                _, address = self._listeners[listener.fileno()]
                try:
                    wire = _Wire(self, client, address)
                except OSError:
                    client.close()  # who listened there has what it wanted
                    continue
                with self._lock:
                    self._wires.append(wire)

    # -- what a wire does -----------------------------------------------------------------------

    def pass_on(self, data: bytes, source: socket.socket) -> bytes:
        """Return what becomes of bytes that came from one end of a connection."""
        if not self._pass.is_set():
            with self._lock:
                self.n_held += len(data)
            self._pass.wait()
        if self._delay_s:
            self._is_over.wait(self._delay_s)
        with self._lock:
            self.n_bytes += len(data)
            if self._drops:
                return b""
            if self._change_at is not None:
                data = self._change_if_there(data, source, self._change_at)
        return data

    def _change_if_there(self, data: bytes, source: socket.socket, wanted: int) -> bytes:
        """Flip a bit of the wanted byte if it is among these, and count them if not."""
        at = wanted - self._n_since_armed[source]
        self._n_since_armed[source] += len(data)
        if at >= len(data):
            return data
        self._change_at = None
        self.n_changed += 1
        changed = bytearray(data)
        changed[at] ^= FLIPPED_BIT
        return bytes(changed)

    def drop(self) -> None:
        """Swallow everything from now on, and say nothing."""
        with self._lock:
            self._drops = True

    def hold(self) -> None:
        """Let nothing pass until `release`."""
        self._pass.clear()

    def release(self) -> None:
        """Let everything pass that was held."""
        self._pass.set()

    def delay(self, seconds: float) -> None:
        """Keep each piece for so long."""
        self._delay_s = seconds

    def change_at(self, byte: int) -> None:
        """Flip a bit of the byte with this number, from 0, of one direction of one connection.

        The bytes are counted from now on, of the direction that comes to it first. Armed while the
        ranks are idle, the number is a place in their first message.
        """
        with self._lock:
            self._change_at = byte
            self._n_since_armed.clear()

    def cut(self, *, hard: bool) -> None:
        """End all connections."""
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.cut(hard=hard)

    def __enter__(self) -> BadWire:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pass.set()
        self._wake[1].send(b"!")
        self._thread.join()
        for wire in self._wires:
            wire.close()
        for listener, _ in self._listeners.values():
            listener.close()
        for end in self._wake:
            end.close()
