"""The workspace's sockets and the one thread that touches them.

Frames in, frames out; it knows zmq and nothing of what the frames say.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

import zmq

__all__ = ["SocketThread"]

log = logging.getLogger(__name__)

Frames = list[bytes]

TOLD = (1, 10, 100, 1_000, 10_000)  # of the messages that could not be handled, these are told of


class SocketThread:
    """Owns sockets: sends what any thread gives it, hands on what comes, on a thread of its own.

    Only that thread touches the sockets (zmq's rule). Other threads append to ``_outgoing`` or
    ``_tasks`` (deque operations are atomic) and ring the inproc pair, whose sending end has a
    lock as several threads use it.
    """

    def __init__(self, name: str) -> None:
        self._context = zmq.Context()
        try:
            self._open(name)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _open(self, name: str) -> None:
        self._outgoing: deque[tuple[zmq.Socket[bytes], Frames]] = deque()
        self._tasks: deque[Callable[[], None]] = deque()
        self._handlers: dict[zmq.Socket[bytes], Callable[[Frames], None]] = {}
        self._poller = zmq.Poller()
        self._bell_lock = threading.Lock()
        inner = self._context.socket(zmq.PAIR)
        self._bell = self._context.socket(zmq.PAIR)
        inner.bind("inproc://bell")
        self._bell.connect("inproc://bell")
        self._poller.register(inner, zmq.POLLIN)
        self._inner = inner
        self._is_closed = False
        self._n_bad = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def socket(
        self,
        kind: int,
        endpoint: str,
        handler: Callable[[Frames], None],
        *,
        configure: Callable[[zmq.Socket[bytes]], None] | None = None,
    ) -> zmq.Socket[bytes]:
        """Connect a socket whose messages go to ``handler`` (on the thread)."""
        sock = self._context.socket(kind)
        sock.linger = 0
        sock.sndhwm = sock.rcvhwm = 0  # never drop a rank's words, never block a caller
        if configure is not None:
            configure(sock)
        sock.connect(endpoint)

        def adopt() -> None:
            self._handlers[sock] = handler
            self._poller.register(sock, zmq.POLLIN)

        self._tasks.append(adopt)
        self._ring()
        return sock

    def send(self, sock: zmq.Socket[bytes], frames: Frames) -> None:
        """Send from any thread; in order per caller."""
        self._outgoing.append((sock, frames))
        self._ring()

    def _ring(self) -> None:
        with self._bell_lock:
            if not self._is_closed:
                self._bell.send(b"")

    def close(self) -> None:
        """End the thread and close all sockets; idempotent. Not from a handler."""
        with self._bell_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._bell.send(b"close")
        self._thread.join()
        self._bell.close()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while True:
            for sock, _ in self._poller.poll():
                if sock is self._inner:
                    is_close = self._inner.recv() == b"close"
                    while self._tasks:
                        self._tasks.popleft()()
                    while self._outgoing:
                        target, frames = self._outgoing.popleft()
                        target.send_multipart(frames, copy=False)
                    if is_close:
                        return
                else:
                    self._receive(sock)

    def _receive(self, sock: zmq.Socket[bytes]) -> None:
        frames = sock.recv_multipart()
        try:
            self._handlers[sock](frames)
        except Exception:
            # One bad message must not end the thread that all ranks' messages come through.
            self._n_bad += 1
            if self._n_bad in TOLD:
                log.exception("a message could not be handled (number %d)", self._n_bad)
