"""The workspace's side of the talk with the root supervisor: requests, answers, news.

It knows the messages; what news mean to cells is its user's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import (
    BeginCell,
    Booted,
    BootFailed,
    BootProgress,
    CellAllowed,
    Failed,
    ForgetCell,
    FromRoot,
    GetOutput,
    GetStacks,
    GetStanding,
    GetTopology,
    GetTrace,
    Hello,
    KeepCell,
    LetGo,
    NotYours,
    OutputIs,
    RankLost,
    RankStack,
    Restart,
    Restarted,
    Samples,
    Settled,
    StacksAre,
    StandingIs,
    Stop,
    Stopped,
    Topology,
    TopologyIs,
    ToRoot,
    TraceIs,
)

from ._connect import Connection
from ._io import SocketThread
from ._samples import SampleLog, SampleView

__all__ = ["RootClient"]

Answer = TypeVar(
    "Answer", CellAllowed, TopologyIs, StacksAre, TraceIs, StandingIs, OutputIs, Restarted, Stopped
)

_ANSWERS = (
    CellAllowed
    | TopologyIs
    | StacksAre
    | TraceIs
    | StandingIs
    | OutputIs
    | Restarted
    | Failed
    | Stopped
)

ANSWER_S = 10.0  # the root answers in milliseconds; a cell's begin may wait 2 s for the last one
STOP_S = 5.0
END_S = 1.0  # from its last word to its end
RESTART_S = 90.0  # to end a rank, and to start one: what the root gives both, and more
POLL_S = 0.1
LAST_WORD_S = 0.5  # through a socket and two threads, on a machine that has much else to do


class RootClient:
    """Speaks with a root supervisor.

    Parameters
    ----------
    on_news : callable
        Gets `RankLost`, `Replaced`, `Notice` and `Taken`, on the socket thread; of a root that has died, on
        one of ours.
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: Connection,
        on_news: Callable[[FromRoot], None],
    ) -> None:
        self._root = connection.root
        self._on_news = on_news
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[FromRoot], None]] = {}
        self._boot: queue.SimpleQueue[FromRoot] = queue.SimpleQueue()
        self._decoder = msgspec.msgpack.Decoder(FromRoot)
        self._thread = thread
        self._samples = SampleLog(self._send)
        self._is_stopping = False
        self._is_booting = True
        self._size = connection.size
        self._watcher = threading.Thread(target=self._watch, name="phalanx-root", daemon=True)
        try:
            self._watcher.start()
            self._connect(connection)
        except BaseException:
            self._is_stopping = True
            connection.abandon()
            raise

    def _connect(self, connection: Connection) -> None:
        def configure(sock: zmq.Socket[bytes]) -> None:
            sock.curve_serverkey = self._root.address.public_key
            sock.curve_publickey = connection.public_key
            sock.curve_secretkey = connection.secret_key

        self._socket = self._thread.socket(
            zmq.DEALER, self._root.address.endpoint, self._receive, configure=configure
        )
        self._send(Hello(phalanx.__version__, os.getpid(), connection.mode))

    @property
    def pid(self) -> int:
        """Process id of the root supervisor."""
        return self._root.pid

    @property
    def is_alive(self) -> bool:
        """Whether the root supervisor runs."""
        return self._root.poll() is None

    def _watch(self) -> None:
        """Tell that all ranks are lost when the root has died: nobody else can."""
        self._root.wait()
        if not self._is_stopping:
            host = socket.gethostname()
            for rank in range(self._size):
                self._on_news(RankLost(rank, host, "is gone: its supervisor has died", ""))

    def wait_booted(
        self, timeout_s: float, on_progress: Callable[[BootProgress], None] | None = None
    ) -> Booted:
        """Wait until every rank takes cells; ``on_progress`` is told how hosts come up meanwhile.

        Raises
        ------
        DistributedError
            The boot failed, or took longer than ``timeout_s``; says why.
        """
        deadline_s = time.monotonic() + timeout_s
        what = "the ranks to start"
        answer = self._wait(self._boot, timeout_s, what)
        while isinstance(answer, BootProgress):
            if on_progress is not None:
                on_progress(answer)
            answer = self._wait(self._boot, deadline_s - time.monotonic(), what)
        self._is_booting = False
        if isinstance(answer, BootFailed | NotYours):
            raise DistributedError(answer.message)
        if not isinstance(answer, Booted):
            msg = f"the supervisor answered {type(answer).__name__} to the boot"
            raise DistributedError(msg)
        return answer

    def begin_cell(self, cell: str, ranks: tuple[int, ...]) -> CellAllowed:
        """Announce a cell."""
        return self._ask(lambda id_: BeginCell(id_, cell, ranks), CellAllowed)

    def forget_cell(self, cell: str, ranks: tuple[int, ...] = ()) -> None:
        """Take the announcement of a cell back: it was not sent to any rank, or to these."""
        self._send(ForgetCell(cell, ranks))

    def keep(self, cell: KeepCell) -> None:
        """Have a cell of every start kept for the clients to come."""
        self._send(cell)

    def settled(self, engines: Iterable[str]) -> None:
        """Say that these new ranks are as far as the others."""
        self._send(Settled(tuple(engines)))

    def standing(self) -> StandingIs:
        """Ask what was missed."""
        return self._ask(GetStanding, StandingIs)

    def output(self, rank: int, *, since: int = 0, max_lines: int = 0) -> OutputIs:
        """Ask for the end of what a rank has shown since a byte."""
        return self._ask(lambda id_: GetOutput(id_, rank, since, max_lines), OutputIs)

    def topology(self) -> Topology:
        """Ask what the world looks like."""
        return self._ask(GetTopology, TopologyIs).topology

    def look(self, take: Callable[[Topology], None]) -> None:
        """Ask what the world looks like and do not wait; ``take`` is called on the socket thread.

        It is never called where the root does not answer.
        """

        def answered(answer: FromRoot) -> None:
            if isinstance(answer, TopologyIs):
                take(answer.topology)

        self._request(GetTopology, answered)

    def see_cells(self, take: Callable[[StandingIs], None]) -> None:
        """Ask how cells stand and do not wait, as `look`."""

        def answered(answer: FromRoot) -> None:
            if isinstance(answer, StandingIs):
                take(answer)

        self._request(GetStanding, answered)

    def stacks(self, ranks: tuple[int, ...]) -> dict[int, RankStack]:
        """Ask where ranks are."""
        return self._ask(lambda id_: GetStacks(id_, ranks), StacksAre).stacks

    def trace(self) -> TraceIs:
        """Ask what ranks did last."""
        return self._ask(GetTrace, TraceIs)

    def samples(self, after: int) -> SampleView:
        """Return the samples that have come, and have them go on coming for a while."""
        return self._samples.read(after)

    def see(
        self,
        ranks: tuple[int, ...],
        is_twice: bool,
        take: Callable[[dict[int, RankStack]], None],
    ) -> None:
        """Ask where ranks are and do not wait, as `look`; ``is_twice`` as in `GetStacks`."""

        def answered(answer: FromRoot) -> None:
            if isinstance(answer, StacksAre):
                take(answer.stacks)

        self._request(lambda id_: GetStacks(id_, ranks, is_twice), answered)

    def restart(self, ranks: tuple[int, ...], *, force: bool) -> Restarted:
        """Have ranks replaced; none named: those that are dead."""
        return self._ask(lambda id_: Restart(id_, ranks, force), Restarted, RESTART_S)

    def stop(self) -> None:
        """End the ranks, the controller and the supervisor; idempotent, fine with a dead one."""
        self._is_stopping = True
        if self.is_alive:
            # Where it hangs or has just died, close() below kills it, and its children with it.
            with contextlib.suppress(DistributedError):
                self._ask(Stop, Stopped, STOP_S)
        # Its end wakes the watcher at once; `close` would look for it now and then.
        self._watcher.join(timeout=END_S)
        self._root.close(timeout_s=0.0)
        self._watcher.join()

    def leave(self) -> None:
        """Leave the root to the client that has taken it over; idempotent."""
        self._is_stopping = True
        self._root.let_go()

    def let_go(self) -> None:
        """Leave the ranks to whoever comes within their linger time; idempotent."""
        self._is_stopping = True
        if self.is_alive:
            self._send(LetGo())
            # What is sent last may be lost when sockets close: an answer says that it has come.
            with contextlib.suppress(DistributedError):
                self.standing()
        self._root.let_go()

    def _request(self, make: Callable[[int], ToRoot], answered: Callable[[FromRoot], None]) -> int:
        request_id = next(self._ids)
        with self._lock:
            self._waiting[request_id] = answered
        self._send(make(request_id))
        return request_id

    def _ask(
        self,
        make: Callable[[int], ToRoot],
        kind: type[Answer],
        timeout_s: float = ANSWER_S,
    ) -> Answer:
        inbox: queue.SimpleQueue[FromRoot] = queue.SimpleQueue()
        request_id = self._request(make, inbox.put)
        try:
            answer = self._wait(inbox, timeout_s, "an answer of the supervisor")
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)
        if isinstance(answer, Failed):
            raise DistributedError(answer.message)
        if not isinstance(answer, kind):
            msg = f"the supervisor answered {type(answer).__name__}"
            raise DistributedError(msg)
        return answer

    def _wait(self, inbox: queue.SimpleQueue[FromRoot], timeout_s: float, what: str) -> FromRoot:
        # In steps, so that the end of the supervisor is noticed, and Ctrl-C on every platform.
        for _ in range(max(1, round(timeout_s / POLL_S))):
            try:
                return inbox.get(timeout=POLL_S)
            except queue.Empty:
                if not self.is_alive:
                    return self._last_word(inbox)
        msg = f"waited {timeout_s:g} s for {what}"
        raise DistributedError(msg)

    def _last_word(self, inbox: queue.SimpleQueue[FromRoot]) -> FromRoot:
        """Wait for what the supervisor, which is gone, may have said before."""
        try:
            return inbox.get(timeout=LAST_WORD_S)
        except queue.Empty:
            log = self._root.log_tail()
            msg = f"the supervisor is gone{': ' + log if log else ''}"
            raise DistributedError(msg) from None

    def _send(self, message: ToRoot) -> None:
        self._thread.send(self._socket, [msgspec.msgpack.encode(message)])

    def _receive(self, frames: list[bytes]) -> None:
        message = self._decoder.decode(frames[-1])
        if isinstance(message, Booted | BootFailed | NotYours):
            self._boot.put(message)
        elif isinstance(message, Samples):
            self._samples.take(message)
        elif isinstance(message, BootProgress):
            if self._is_booting:  # later it is of a host that is started anew: `restart` waits
                self._boot.put(message)
        elif isinstance(message, _ANSWERS):
            with self._lock:
                take = self._waiting.pop(message.id, None)
            if take is not None:
                take(message)
        else:
            self._on_news(message)
