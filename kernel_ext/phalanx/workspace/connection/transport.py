"""Own the client's sockets and the one thread that uses them.

`SocketThread` sends and receives frames. `RootLink` exchanges messages with a root supervisor.
`RankChannels` speaks Jupyter's wire protocol
(jupyter_client's Session) with the ranks' kernels. `SharedClient` makes ipyparallel's own client.
`ctrl_c` catches SIGINT while a caller waits for messages.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
from jupyter_client.session import Session

from phalanx.errors import DistributedError
from phalanx.protocol import FrameReader, name_ranks, pack_frame

if TYPE_CHECKING:
    import ipyparallel


log = logging.getLogger(__name__)

Frames = Any  # a list of bytes, or of zmq.Frame
Stream = socket.socket

MAX_NBYTES = (1 << 32) - 1  # of a root's message: the flight recorders of 4096 ranks have 1 GiB
LOGGED = (1, 10, 100, 1_000, 10_000)  # the failed messages that are logged, by number
MAX_CHARACTERS = 300  # longest error text in a line

# Signatures that are remembered, so that no message is taken twice. A cell has about ten of them.
# With jupyter_client's 65536 a kernel grew by 10 MiB in its first hours.
KEPT_DIGESTS = 1 << 12

Message = dict[str, Any]


class SocketThread:
    """A thread that owns sockets: sends for all threads and receives.

    Only this thread touches the sockets (zmq's rule). Other threads append to ``_tasks`` (deque
    operations are atomic) and wake the thread through the inproc pair. That pair's sending end has a
    lock.

    A handler that raises does not end the thread. If the thread breaks all the same, ``on_broken``
    gets the reason and the ``way_out`` in one line; `check`, `send` and `socket` raise that text.
    """

    def __init__(
        self,
        name: str,
        on_broken: Callable[[str], None] = lambda _text: None,
        *,
        way_out: str = "",
    ) -> None:
        self._on_broken = on_broken
        self._way_out = way_out
        self._broken = ""
        self._context = zmq.Context()
        try:
            self._open(name)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _open(self, name: str) -> None:
        self._tasks: deque[Callable[[], None]] = deque()
        self._handlers: dict[zmq.Socket[bytes], tuple[Callable[[Frames], None], bool]] = {}
        self._streams: dict[int, tuple[Stream, Callable[[], object]]] = {}
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
        self._thread = own_thread(name, self._run)
        self._thread.start()

    def socket(
        self,
        kind: int,
        endpoint: str,
        handler: Callable[[Frames], None],
        *,
        configure: Callable[[zmq.Socket[bytes]], None] | None = None,
        copy: bool = True,
    ) -> zmq.Socket[bytes]:
        """Connect a socket; ``handler`` gets its messages on the thread.

        Without ``copy`` the handler gets `zmq.Frame` objects: each owns its memory, which is
        writable.
        """
        self.check()
        sock = self._context.socket(kind)
        sock.linger = 0
        sock.sndhwm = sock.rcvhwm = 0  # never drop a rank's message, never block a caller
        if configure is not None:
            configure(sock)
        sock.connect(endpoint)

        def adopt() -> None:
            self._handlers[sock] = handler, copy
            self._poller.register(sock, zmq.POLLIN)

        self.call(adopt)
        return sock

    def call(self, task: Callable[[], None]) -> None:
        """Run a task on the thread, after the caller's earlier tasks.

        Raises
        ------
        DistributedError
            The thread is broken.
        """
        self.check()
        self._tasks.append(task)
        self._ring()

    def watch(self, sock: Stream, handler: Callable[[], object], events: int) -> None:
        """Call ``handler`` on events of a stream socket; 0: close it.

        Only the thread calls this. The thread's end closes the socket as well.
        """
        if events:
            self._streams[sock.fileno()] = sock, handler
            self._poller.register(sock.fileno(), events)
        else:
            del self._streams[sock.fileno()]
            self._poller.unregister(sock.fileno())
            sock.close()

    def send(self, sock: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
        """Send from any thread; messages of one caller stay in order.

        Raises
        ------
        TypeError, BufferError
            A frame is no buffer, or is not contiguous.
        DistributedError
            The thread is broken.
        """
        self.check()
        sendable = [frame if isinstance(frame, bytes) else memoryview(frame) for frame in frames]
        if not all(isinstance(frame, bytes) or frame.contiguous for frame in sendable):
            msg = "a buffer that is not contiguous cannot be sent"
            raise BufferError(msg)
        self.call(partial(self.attempt, partial(sock.send_multipart, sendable, copy=False)))

    def check(self) -> None:
        """Raise `DistributedError` if the thread is broken."""
        if self._broken:
            raise DistributedError(self._broken)

    def _ring(self) -> None:
        with self._bell_lock:
            if not self._is_closed and not self._broken:
                self._bell.send(b"")

    def close(self) -> None:
        """End the thread and close all sockets; idempotent.

        A handler must not call this.
        """
        with self._bell_lock:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._broken:
                self._bell.send(b"close")
        self._thread.join()
        for sock, _ in self._streams.values():
            sock.close()
        self._bell.close()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            log.debug("the connection broke", exc_info=True)
            text = f"the connection to the supervisor broke ({say_error(error)})"
            with self._bell_lock:
                self._broken = f"{text}; {self._way_out}" if self._way_out else text
            self._on_broken(self._broken)

    def _step(self) -> bool:
        """Wait for work and do it; return False when closing."""
        is_open = True
        for sock, _ in self._poller.poll():
            if sock is self._inner:
                is_open = self._inner.recv() != b"close"
                while self._tasks:
                    self._tasks.popleft()()
            elif isinstance(sock, int):
                self.attempt(self._streams[sock][1])
            else:
                self.attempt(partial(self._receive, sock))
        return is_open

    def attempt(self, handle: Callable[[], object]) -> None:
        """Send or receive one message; log an error and continue.

        An error in one message must not end the thread, which serves all other messages.
        """
        try:
            handle()
        except BaseException:  # including SystemExit, which would end only this thread
            self._n_bad += 1
            if self._n_bad in LOGGED:
                log.exception("a message could not be handled (number %d)", self._n_bad)

    def _receive(self, sock: zmq.Socket[bytes]) -> None:
        handler, copy = self._handlers[sock]
        handler(sock.recv_multipart(0, copy=copy))


def own_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Make a thread that debuggers neither stop nor show."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    for mark in ("pydev_do_not_trace", "is_pydev_daemon_thread"):
        setattr(thread, mark, True)
    return thread


def say_error(error: BaseException) -> str:
    """Format an error's type and the first line of its text.

    Examples
    --------
    >>> say_error(KeyError("x")), say_error(SystemExit())
    ("KeyError: 'x'", 'SystemExit')
    """
    kind = type(error).__name__
    try:
        text = str(error).strip().partition("\n")[0]
    except BaseException:  # noqa: BLE001 - the __str__ of a user's error may raise anything
        return kind
    return f"{kind}: {text[:MAX_CHARACTERS]}" if text else kind


# A child that this process forks must not hold a link open after this process has ended.
_links: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_links() -> None:
    for sock in tuple(_links):
        sock.close()


os.register_at_fork(after_in_child=_close_links)


class RootLink:
    """Exchange messages with a root supervisor over a stream socket.

    ``take`` gets each message of type ``messages``, and ``on_end`` is called once when the root has
    gone; both on the socket thread.
    """

    def __init__(
        self,
        thread: SocketThread,
        sock: socket.socket,
        messages: Any,
        take: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        _links.add(sock)
        self._thread = thread
        self._sock = sock
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._reader = FrameReader(MAX_NBYTES)
        self._take = take
        self._on_end = on_end
        self._unsent = bytearray()
        self._is_finished = False
        thread.call(self._flush)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message from any thread, without waiting.

        Messages of one caller stay in order.

        Raises
        ------
        DistributedError
            The thread is broken.
        """
        frame = pack_frame(message)

        def put() -> None:
            self._unsent += frame
            self._flush()

        self._thread.call(put)

    def finish(self) -> None:
        """End the connection after all that was sent, from any thread.

        The root then closes its end.
        """

        def finish() -> None:
            self._is_finished = True
            self._flush()

        try:
            self._thread.call(finish)
        except DistributedError:
            self._shut()

    def _shut(self) -> None:
        with suppress(OSError):  # the root has gone
            self._sock.shutdown(socket.SHUT_WR)

    def _flush(self) -> None:
        if self._sock.fileno() < 0:  # the root has gone
            return
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the root has gone, as `_on_ready` finds
        if self._is_finished and not self._unsent:
            self._shut()
        events = zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0)
        self._thread.watch(self._sock, self._on_ready, events)

    def _on_ready(self) -> None:
        if self._unsent:
            self._flush()
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for body in self._reader.feed(data):
            self._thread.attempt(lambda body=body: self._take(self._decoder.decode(body)))  # type: ignore[misc]
        if not data:
            self._thread.watch(self._sock, self._on_ready, 0)
            self._on_end()


class RankChannels:
    """Shell (mux) and iopub channels of all ranks.

    Engines are addressed by uuid. ``on_message(channel, message)`` runs on the socket thread. It
    gets every reply ("shell") and every published message ("iopub") that answers a request of this
    client, or of another client with the same ``session``.
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: dict[str, Any],
        session: str,
        on_message: Callable[[str, Message], None],
    ) -> None:
        self._thread = thread
        self._on_message = on_message
        self._lock = threading.Lock()
        self._session = Session(
            session=session,
            key=connection["key"].encode(),
            signature_scheme=connection["signature_scheme"],
            packer=connection["pack"],
            unpacker=connection["unpack"],
            digest_history_size=KEPT_DIGESTS,
        )
        base = connection["interface"]
        self._shell = thread.socket(
            zmq.DEALER,
            f"{base}:{connection['mux']}",
            lambda frames: self._receive("shell", frames, copy=False),
            copy=False,  # arrays of any size come here
        )

        def subscribe(sock: zmq.Socket[bytes]) -> None:
            sock.subscribe(b"")
            self._subscribed = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)

        self._iopub = thread.socket(
            zmq.SUB,
            f"{base}:{connection['iopub']}",
            lambda frames: self._receive("iopub", frames),
            configure=subscribe,
        )

    def wait_subscribed(self) -> None:
        """Wait until what ranks publish comes here.

        The controller gets the subscription before any later request of this process.

        Raises
        ------
        DistributedError
            The controller does not answer within 10 s.
        """
        if not self._subscribed.poll(int(CLIENT_TIMEOUT_S * 1000)):
            msg = "ipyparallel's controller does not answer"
            raise DistributedError(msg)

    def send(
        self,
        engine: str,
        kind: str,
        message_id: str,
        content: Message | None = None,
        metadata: Message | None = None,
        buffers: Sequence[Any] = (),
    ) -> None:
        """Send a request with a message id chosen by the caller."""
        with self._lock:
            header = {**self._session.msg_header(kind), "msg_id": message_id}
            message = self._session.msg(kind, content=content, header=header, metadata=metadata)
            frames = self._session.serialize(message, ident=engine.encode())
        self._thread.send(self._shell, [*frames, *buffers])

    def _receive(self, channel: str, frames: Any, *, copy: bool = True) -> None:
        _, rest = self._session.feed_identities(frames, copy=copy)
        message = self._session.deserialize(rest, copy=copy)
        if message["parent_header"].get("session") == self._session.session:
            self._on_message(channel, message)


CLIENT_TIMEOUT_S = 10.0  # for the controller's first answer (milliseconds) and its heartbeat (1 s)
_CLIENT_POLL_S = 0.01


class SharedClient:
    """Makes the client on first use and removes dead ranks from it.

    ipyparallel's heartbeat is off: only the supervisor decides which ranks are dead. The client
    tells the hub, and tasks that run on a dead rank end in ipyparallel's ``EngineError``. The lock
    guards the client.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: ipyparallel.Client | None = None

    def get(self, engines: Sequence[str], lost: Collection[int]) -> ipyparallel.Client:
        """Return the client; wait until it knows all live ranks.

        Raises
        ------
        DistributedError
            The controller does not know an engine within 10 s.
        """
        with self._lock:
            if self._client is None or self._client._closed:
                import ipyparallel  # takes a third of a second

                self._client = ipyparallel.Client(dict(self._connection), timeout=CLIENT_TIMEOUT_S)
            client = self._client
        for rank in lost:
            self.lose(rank, engines[rank])
        # The hub registers an engine at the hub's next heartbeat: up to one second after the engine
        # has begun to take cells.
        deadline_s = time.monotonic() + CLIENT_TIMEOUT_S
        while missing := [
            rank
            for rank, engine in enumerate(engines)
            if rank not in lost and client._engines.get(rank) != engine
        ]:
            if time.monotonic() > deadline_s:
                msg = f"ipyparallel's controller does not know {name_ranks(missing)}"
                raise DistributedError(msg)
            time.sleep(_CLIENT_POLL_S)
        return client

    def lose(self, rank: int, engine: str) -> None:
        """Remove a dead rank from the client at once; from any thread."""
        client = self._client
        if client is not None and not client._closed:
            content = {"id": rank, "uuid": engine}
            client._send(client._query_socket, "unregistration_request", content=content)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close(linger=0)


@contextmanager
def ctrl_c(on_ctrl_c: Callable[[], None]) -> Iterator[None]:
    """Call ``on_ctrl_c`` for each SIGINT while the context is open.

    Only the main thread gets it. A KeyboardInterrupt at an arbitrary place could lose an event that
    was just taken from a queue. The callback runs between two bytecodes: it must be re-entrant (as
    `queue.SimpleQueue.put` is).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: on_ctrl_c())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
