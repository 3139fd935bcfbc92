"""Send requests to the root supervisor; receive replies and events.

`RootClient` matches replies to requests. `SampleLog` keeps the samples that the root sends.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from phalanx.errors import DistributedError
from phalanx.protocol import (
    AskRoot,
    BeginCell,
    Booted,
    BootProgress,
    CancelCell,
    CellAllowed,
    CellEnded,
    CellStatusReply,
    Failed,
    FromRoot,
    GetCellStatus,
    GetOutput,
    GetStacks,
    GetTopology,
    Notice,
    OrderRanks,
    OutputIs,
    OwnershipTransferred,
    RankLost,
    RankOrder,
    RankSays,
    RankStack,
    Replaced,
    Restart,
    Restarted,
    RootAnswer,
    RootAnswered,
    RootRequest,
    Samples,
    StacksAre,
    Stop,
    StopCell,
    Stopped,
    TopologyIs,
    ToRoot,
    WatchSamples,
    WorldTopology,
)
from phalanx.supervisor import RootProcess

from .transport import RootLink, SocketThread, ctrl_c

LEASE_S = 10.0  # a cell may keep the kernel from reading for most of that, and no sample is lost
# Each renewal wakes the supervisor, which costs busy ranks as much as taking a sample.
RENEW_S = 3.0
AGAIN_S = 1.0  # if no sample came since the last renewal: the renewal may have been lost
KEPT = 64  # twice the samples of one lease; about 3 MB with 64 busy ranks

log = logging.getLogger(__name__)
Answer = TypeVar("Answer", bound=RootAnswer)
_Message = TypeVar("_Message")

ANSWER_S = 10.0  # the root answers in milliseconds
# A new cell may wait 5 s for replaced ranks, 2 s for the last cell, and 30 s for ranks to join.
BEGIN_S = 45.0
STOP_S = 5.0  # in addition to the ranks' grace time
END_S = 1.0  # from the root's last message to its exit
RESTART_S = 90.0  # more than the root's own limits to kill a rank and to start one
POLL_S = 0.1
CHANGES_S = 0.2  # five times a second is enough for what a person sees


@dataclass(frozen=True)
class SampleView:
    """Samples, oldest first; see `Workspace.samples`."""

    samples: tuple[Samples, ...]
    dropped: int = 0
    waiting: frozenset[int] = frozenset()


class SampleLog:
    """Keeps the newest samples, and requests more while it is read.

    The socket thread calls `take`; any thread may call `read`.
    """

    def __init__(
        self,
        send: Callable[[ToRoot], None],
        *,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Samples] = deque(maxlen=kept)
        self._asked_s = self._came_s = -math.inf

    def take(self, samples: Samples) -> None:
        with self._lock:
            self._samples.append(samples)
            self._came_s = self._clock()

    def read(self, after: int) -> SampleView:
        """Return the samples after a number, and request more."""
        with self._lock:
            found = tuple(its for its in self._samples if its.number > after)
            now_s = self._clock()
            wait_s = RENEW_S if self._came_s > self._asked_s else AGAIN_S
            is_due = now_s >= self._asked_s + wait_s
            if is_due:
                self._asked_s = now_s
        if is_due:
            self._send(WatchSamples(LEASE_S))
        # Numbers continue while this process does not watch: a gap before a first read is no loss.
        is_known = after and found and found[0].number > after + 1
        return SampleView(found, found[0].number - after - 1 if is_known else 0)


class ChangeWatch:
    """Asks for the topology after changes, at most five times a second.

    Any thread may call `changed`. ``ask`` is called on any thread, and does not wait. The last
    change is never left out: what comes within the interval is asked for at its end.
    """

    def __init__(
        self,
        ask: Callable[[], None],
        *,
        make_timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        self._ask = ask
        self._make_timer = make_timer
        self._lock = threading.Lock()
        self._is_resting = self._is_due = False

    def changed(self) -> None:
        """Ask now, or when the interval since the last question ends."""
        with self._lock:
            self._is_due = self._is_resting
            if self._is_resting:
                return
            self._is_resting = True
        self._ask_and_rest()

    def _ask_and_rest(self) -> None:
        timer = self._make_timer(CHANGES_S, self._rested)
        timer.daemon = True
        timer.start()
        self._ask()

    def _rested(self) -> None:
        with self._lock:
            self._is_resting, self._is_due = self._is_due, False
            if not self._is_resting:
                return
        self._ask_and_rest()


class RootClient:
    """Client of a root supervisor.

    ``root`` has this client as its owner, or has a `Hello`. ``on_taken`` gets the process that took
    the workspace over, on the socket thread. `pass_news` passes all other news on.
    """

    def __init__(
        self,
        thread: SocketThread,
        root: RootProcess,
        on_taken: Callable[[int], None],
    ) -> None:
        self._root = root
        self._on_taken = on_taken
        self._early: list[FromRoot] = []  # news before `pass_news`; socket thread only
        self._on_news: Callable[[FromRoot], None] = self._early.append
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[RootAnswer], None]] = {}
        self._boot: queue.SimpleQueue[FromRoot] = queue.SimpleQueue()
        self._thread = thread
        self._samples = SampleLog(self.send)
        self._is_stopping = False
        self._is_booting = True
        self._has_ended = threading.Event()
        self._stop_id = 0
        self._stopped: queue.SimpleQueue[RootAnswer] = queue.SimpleQueue()  # the answer to `Stop`
        self._changes: ChangeWatch | None = None
        try:
            self._link = RootLink(thread, root.sock, FromRoot, self._receive, self._on_end)
        except BaseException:
            root.abandon()
            raise

    @property
    def pid(self) -> int:
        return self._root.pid

    @property
    def is_alive(self) -> bool:
        """Whether the root supervisor can be reached."""
        return not self._has_ended.is_set()

    def _on_end(self) -> None:
        """Report all ranks as lost when the root dies.

        No other process can report the root's death.
        """
        self._has_ended.set()
        if not self._is_stopping:
            host = socket.gethostname()
            for rank in range(self._root.record.size):
                self._on_news(RankLost(rank, host, "is gone: its supervisor has died"))
            self._changed()

    def wait_booted(
        self, timeout_s: float, on_progress: Callable[[BootProgress], None] | None = None
    ) -> Booted:
        """Wait until every rank takes cells.

        ``on_progress`` gets the progress of the hosts meanwhile. A notice about the start is logged
        as a warning, because no cell runs that could show it.

        Raises
        ------
        DistributedError
            The boot failed, or took longer than ``timeout_s``; says why.
        """
        deadline_s = time.monotonic() + timeout_s
        what = "the ranks to start"
        answer = self._wait(self._boot, timeout_s, what)
        while isinstance(answer, BootProgress | Notice):
            if isinstance(answer, Notice):
                log.warning("%s", answer.text)
            elif on_progress is not None:
                on_progress(answer)
            answer = self._wait(self._boot, deadline_s - time.monotonic(), what)
        self._is_booting = False
        if isinstance(answer, Failed):
            raise DistributedError(answer.message)
        if not isinstance(answer, Booted):
            msg = f"the supervisor answered {type(answer).__name__} to the boot"
            raise DistributedError(msg)
        return answer

    def pass_news(self, on_news: Callable[[FromRoot], None]) -> None:
        """Call ``on_news`` with all news, also the earlier ones.

        The socket thread calls it with each `RankLost`, `RankSays`, `Notice` and others. If the root
        dies, it gets a `RankLost` for each rank.
        """

        def begin() -> None:
            self._on_news = on_news
            for message in self._early:
                self._thread.attempt(partial(on_news, message))
            self._early.clear()

        self._thread.call(begin)

    def begin_cell(
        self,
        cell: str,
        ranks: tuple[int, ...],
        title: str = "",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> CellAllowed:
        """Announce a cell, and return the root's permission.

        Raises KeyboardInterrupt if ``is_stopped`` says so meanwhile.
        """
        allowed = self.ask(BeginCell(cell, ranks, title), CellAllowed, BEGIN_S, is_stopped)
        self._changed()
        return allowed

    def forget_cell(self, cell: str, ranks: tuple[int, ...] = ()) -> None:
        """Cancel an announced cell that was not sent to (these) ranks.

        Without ``ranks`` the cell was sent to no rank.
        """
        self.send(CancelCell(cell, ranks))
        self._changed()

    def order(self, ranks: Iterable[int], order: RankOrder) -> None:
        """Send an order to ranks; dead ranks do not get it."""
        self.send(OrderRanks(tuple(ranks), order))

    def stop_cell(self, cell: str, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in a cell, or a widget's callback, on these ranks."""
        self.order(ranks, StopCell(cell, uuid.uuid4().hex))

    def cell_status(self) -> CellStatusReply:
        """Ask how cells and ranks stand, and what was missed."""
        return self.ask(GetCellStatus(), CellStatusReply)

    def output(self, rank: int, *, since: int = 0, max_lines: int = 0) -> OutputIs:
        """Ask for the end of a rank's output since a byte."""
        return self.ask(GetOutput(rank, since, max_lines), OutputIs)

    def topology(self) -> WorldTopology:
        return self.ask(GetTopology(), TopologyIs).topology

    def follow(self, take: Callable[[WorldTopology | None], None]) -> None:
        """Call ``take`` with the topology, now and after each change.

        None means that the root has died. ``take`` is called on a thread of this client, and
        replaces an earlier one.
        """

        def ask() -> None:
            if not self.is_alive:
                take(None)
            elif not self._is_stopping:
                with contextlib.suppress(DistributedError):  # of a broken connection: cells say so
                    self.ask_later(GetTopology(), TopologyIs, lambda its: take(its.topology))

        self._changes = ChangeWatch(ask)
        self._changed()

    def _changed(self) -> None:
        if self._changes is not None:
            self._changes.changed()

    def stacks(self, ranks: tuple[int, ...]) -> dict[int, RankStack]:
        return self.ask(GetStacks(ranks), StacksAre).stacks

    def samples(self, after: int) -> SampleView:
        """Return the samples that have come, and request more for a while."""
        return self._samples.read(after)

    def restart(
        self,
        ranks: tuple[int, ...],
        *,
        force: bool,
        copy_from: int | None = None,
        init: bool = True,
    ) -> Restarted:
        """Replace ranks; without ranks the dead ones.

        The options are those of `Restart`.
        """
        limit_s = self._root.record.grace_s + RESTART_S
        return self.ask(Restart(ranks, force, copy_from, init), Restarted, limit_s)

    def ask_to_stop(self) -> None:
        """Ask the root to end the ranks, without waiting.

        Only the first call asks.
        """
        if not self._stop_id:
            self._stop_id = self._request(Stop(), self._stopped.put)

    def kill_ranks(self) -> None:
        """Repeat the request of `ask_to_stop`: the root kills the ranks."""
        self.send(AskRoot(self._stop_id, Stop()))

    def stop(self) -> str:
        """End the ranks, the controller and the supervisor; idempotent.

        A Ctrl-C meanwhile kills the ranks. A supervisor that is already dead is no error.

        Returns
        -------
        str
            One line that names the ranks that were killed; "": all ended in time.
        """
        self._is_stopping = True
        cut_off = ""
        if self.is_alive:
            # If the root hangs or has just died, close() below kills it with its children.
            with contextlib.suppress(DistributedError), ctrl_c(self.kill_ranks):
                self.ask_to_stop()
                limit_s = self._root.record.grace_s + STOP_S
                answer = self._wait(self._stopped, limit_s, "the end of the ranks")
                cut_off = answer.cut_off if isinstance(answer, Stopped) else ""
        self._root.close(END_S)
        return cut_off

    def let_go(self) -> None:
        """Leave the ranks running; idempotent."""
        self._is_stopping = True
        self._link.finish()
        self._root.let_go()

    def detach(self) -> None:
        """Leave the ranks running, and wait until the root knows that."""
        self.let_go()
        self._has_ended.wait(END_S)

    def _request(self, question: RootRequest, answered: Callable[[RootAnswer], None]) -> int:
        request_id = next(self._ids)
        with self._lock:
            self._waiting[request_id] = answered
        self.send(AskRoot(request_id, question))
        return request_id

    def ask_later(
        self, question: RootRequest, kind: type[Answer], take: Callable[[Answer], None]
    ) -> None:
        """Ask without waiting.

        ``take`` is called on the socket thread, or never if the root does not answer.
        """

        def answered(answer: RootAnswer) -> None:
            if isinstance(answer, kind):
                take(answer)

        self._request(question, answered)

    def ask(
        self,
        question: RootRequest,
        kind: type[Answer],
        timeout_s: float = ANSWER_S,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Ask, and wait for the answer.

        Raises
        ------
        DistributedError
            The root refused, or did not answer in time; says why.
        KeyboardInterrupt
            ``is_stopped`` said so meanwhile.
        """
        inbox: queue.SimpleQueue[RootAnswer] = queue.SimpleQueue()
        request_id = self._request(question, inbox.put)
        try:
            answer = self._wait(inbox, timeout_s, "an answer of the supervisor", is_stopped)
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)
        if isinstance(answer, Failed):
            raise DistributedError(answer.message)
        if not isinstance(answer, kind):
            msg = f"the supervisor answered {type(answer).__name__}"
            raise DistributedError(msg)
        return answer

    def _wait(
        self,
        inbox: queue.SimpleQueue[_Message],
        timeout_s: float,
        what: str,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> _Message:
        # In steps, so that the supervisor's exit is noticed, and Ctrl-C on every platform.
        for _ in range(max(1, round(timeout_s / POLL_S))):
            try:
                return inbox.get(timeout=POLL_S)
            except queue.Empty:
                if not self.is_alive:
                    break
                self._thread.check()
                if is_stopped():
                    raise KeyboardInterrupt from None
        else:
            msg = f"waited {timeout_s:g} s for {what}"
            raise DistributedError(msg)
        with contextlib.suppress(queue.Empty):
            return inbox.get_nowait()  # the root's last message
        said = self._root.last_output()
        msg = f"the supervisor is gone{': ' + said if said else ''}"
        raise DistributedError(msg)

    def send(self, message: ToRoot) -> None:
        self._link.send(message)

    def _receive(self, message: FromRoot) -> None:
        if isinstance(message, Booted | Failed):
            self._boot.put(message)
        elif isinstance(message, Samples):
            self._samples.take(message)
        elif isinstance(message, BootProgress):
            if self._is_booting:  # later progress is of a restarted host: `restart` waits for that
                self._boot.put(message)
        elif isinstance(message, Notice) and self._is_booting:
            self._boot.put(message)
        elif isinstance(message, RootAnswered):
            with self._lock:
                take = self._waiting.pop(message.id, None)
            if take is not None:
                take(message.answer)
        elif isinstance(message, OwnershipTransferred):
            self._on_taken(message.pid)
        else:
            self._on_news(message)
            is_end = isinstance(message, RankSays) and isinstance(message.news, CellEnded)
            if is_end or isinstance(message, RankLost | Replaced):
                self._changed()
