"""Send requests to ranks and match their replies to cells.

`Dispatch` keeps a table of message ids, so that each message finds its cell and rank.
`RequestResender` sends a lost request again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import (
    CellEnded,
    CellStatusReply,
    Completed,
    DebuggerSays,
    Inspected,
    OutputDrawn,
    RankCall,
    RankLost,
    RankNews,
    RankOrder,
    RankTask,
    name_ranks,
)

from ..connection.transport import Message, RankChannels, SocketThread
from ..connection.widget_relay import COMM_KINDS, WidgetRelay, is_comm
from ..output.events import CallInLoop, Event, OwnershipLost
from .cell import Cell
from .debugging import RankDebuggers
from .rank_help import Help

BEGIN_S = 2.0  # a rank begins a cell within milliseconds of the request, over any network
MOST_S = 8.0  # longest time between two copies; doubled from `BEGIN_S`
FRESH_S = 1.0  # older answers are ignored: this process may have been suspended since
SLOWEST = 10e6  # bytes/s: on a slower network a large value is taken for lost
ANSWERED_NBYTES = 1 << 20  # bytes of a rank's output, at least, between two acks
KEPT_ENDED = 256  # ended cells, the least recently used dropped first: 2 KiB each with 4 ranks


def _message_id(cell: str, rank: int) -> str:
    """Return the message id of a cell's request to a rank.

    Every client of the workspace can read the cell and the rank from the id.
    """
    return f"{cell}#{rank}"


class _Request(NamedTuple):
    """A sent request, kept to be sent again.

    A resend goes to the same ``engine``, never to an engine that replaced it.
    """

    engine: str
    kind: str
    content: Message
    metadata: Message
    message_id: str
    buffers: list[Any]
    n_before: int  # number of the last message to a widget that was sent before


class Dispatch:
    """Sends cells to engines and routes messages to cells.

    The thread that runs cells writes the table of requests, and the socket thread reads the table.
    One lock guards the table. `forget` removes the entries of a cell. ``order`` sends an order to
    ranks through the root. ``lost`` always has the ranks that are dead.
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: dict[str, Any],
        engines: tuple[str, ...],
        session: str,
        order: Callable[[Iterable[int], RankOrder], None],
        lost: Collection[int],
    ) -> None:
        self._order = order
        self.help = Help(len(engines), lost, lambda rank, question: order((rank,), question))
        self.debuggers = RankDebuggers(lost, lambda rank, request: order((rank,), request))
        self.widgets = WidgetRelay(self._send_comm, self._tell_below)
        self._engines = list(engines)  # by rank; a replaced rank has a new one
        self._lock = threading.Lock()
        self._requests: dict[str, tuple[Cell, int]] = {}  # message id -> cell, rank
        self._sent: dict[tuple[str, int], _Request] = {}  # by cell name and rank
        self._ended: dict[str, Cell] = {}  # by name, least recently used first
        self._answered: dict[str, int] = {}  # acked bytes of output by engine; socket thread only
        self._taken: OwnershipLost | None = None  # put into cells that are sent later, too
        self._channels = RankChannels(thread, connection, session, self._on_message)
        self.wait_subscribed = self._channels.wait_subscribed

    def execute(self, cell: Cell, rank: int, work: str | RankTask) -> None:
        """Send an execute request with a user's code or our task.

        The code may ask for input. An error never makes a rank skip the next request.
        """
        is_code = isinstance(work, str)
        content: Message = {
            "code": work if is_code else "",
            "silent": not is_code,
            "store_history": is_code,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": False,
        }

        said: Message = {"cell": cell.name, "lost": cell.lost, "widgets": self.widgets.is_live}
        if cell.number:
            said["number"] = cell.number
        if not is_code:
            said["task"] = msgspec.to_builtins(work)
        message_id = _message_id(cell.name, rank)
        self._request(
            message_id, cell, rank, "execute_request", content, metadata={"phalanx": said}
        )

    def apply(
        self, call: Cell, rank: int, buffers: list[Any], work: RankCall | None = None
    ) -> None:
        """Send an apply request: one of our calls, or a packed function.

        The request is ipyparallel's. Without ``work`` the function is packed in ``buffers``. An
        announced call is a cell for its ranks and for clients that attach later.
        """
        content = {} if work is None else {"call": msgspec.to_builtins(work)}
        said: Message = {"cell": call.name}
        # A uuid: ipyparallel makes variable names of the id, and no other client awaits the answer.
        message_id = str(uuid.uuid4())
        if call.is_announced:
            said |= {"lost": call.lost, "is_cell": True, "widgets": self.widgets.is_live}
            message_id = _message_id(call.name, rank)
        metadata = {"phalanx": said}
        self._request(
            message_id, call, rank, "apply_request", content, metadata=metadata, buffers=buffers
        )

    def resend(self, cell: Cell, rank: int, *, is_stopped: bool = False) -> bool:
        """Send a rank its request again; False if another client sent it.

        ``is_stopped``: a rank that has not begun the cell ends it as a stopped cell. The order to
        stop takes another way and may be the later.
        """
        with self._lock:
            sent = self._sent.get((cell.name, rank))
        if sent is None:
            return False
        metadata = sent.metadata
        if is_stopped:
            metadata = {**metadata, "phalanx": {**metadata["phalanx"], "stopped": True}}
        # `send` signs the message anew: a kernel drops a message with a signature it has seen.
        self._channels.send(
            sent.engine,
            sent.kind,
            sent.message_id,
            sent.content,
            metadata,
            sent.buffers,
        )
        return True

    def _request(
        self,
        message_id: str,
        cell: Cell,
        rank: int,
        kind: str,
        content: Message,
        *,
        metadata: Message,
        buffers: list[Any] | None = None,
    ) -> None:
        buffers = buffers or []
        engine = self._engines[rank]
        with self._lock:
            self._requests[message_id] = (cell, rank)
            self._sent[cell.name, rank] = _Request(
                engine, kind, content, metadata, message_id, buffers, self.widgets.newest
            )
            if self._taken is not None:  # the ranks are another client's now
                cell.events.put(self._taken)
                return
        self._channels.send(engine, kind, message_id, content, metadata, buffers)

    def adopt(self, cell: Cell) -> None:
        """Route the messages of a cell that another client sent."""
        with self._lock:
            for rank in cell.ranks:
                self._requests[_message_id(cell.name, rank)] = (cell, rank)

    def forget(self, cell: Cell, late: Callable[[Event], None] | None = None) -> None:
        """Stop routing messages to a cell that nobody waits for.

        ``late``, if given, gets the output that threads of the cell still publish on its ranks.
        """
        with self._lock:
            self._requests = {k: v for k, v in self._requests.items() if v[0] is not cell}
            self._sent = {k: v for k, v in self._sent.items() if k[0] != cell.name}
            if late is not None:
                self._keep_ended(cell)
        if late is not None:
            cell.leave(late)

    def _keep_ended(self, cell: Cell) -> None:
        self._ended.pop(cell.name, None)
        self._ended[cell.name] = cell
        if len(self._ended) > KEPT_ENDED:
            del self._ended[next(iter(self._ended))]

    def _find_ended(self, message_id: str) -> tuple[Cell, int] | None:
        name, _, rank = message_id.rpartition("#")
        cell = self._ended.get(name)
        if cell is None or not rank.isdecimal():
            return None
        self._keep_ended(cell)
        return cell, int(rank)

    def is_under_way(self, cell: str) -> bool:
        """Whether this process waits for a cell, so that `tell` reaches it."""
        with self._lock:
            return any(its.name == cell for its, _ in self._requests.values())

    def waiting(self) -> set[int]:
        with self._lock:
            return {rank for cell, rank in self._requests.values() if rank in cell.waiting}

    def tell(self, event: Event) -> None:
        """Send an event to every cell that is under way."""
        with self._lock:
            if isinstance(event, OwnershipLost):
                self._taken = event
            cells = {id(cell): cell for cell, _ in self._requests.values()}
        for cell in cells.values():
            cell.events.put(event)

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the current engine of each rank.

        A new engine means a new process.
        """
        return tuple(self._engines)

    def on_replaced(self, rank: int, engine: str) -> None:
        """Send to a rank's new engine from now on.

        Runs on the socket thread.
        """
        self._engines[rank] = engine
        self.widgets.on_lost(rank)

    def on_lost(self, lost: RankLost) -> None:
        """Tell every cell that waits for this rank that the rank died.

        Runs on the socket thread.
        """
        self.help.on_lost(lost.rank)
        self.debuggers.on_lost(lost.rank)
        self.widgets.on_lost(lost.rank)
        with self._lock:
            cells = {
                id(cell): cell for cell, where in self._requests.values() if where == lost.rank
            }
        for cell in cells.values():
            cell.put(lost)

    def on_ended(self, rank: int, end: CellEnded) -> None:
        """Tell a cell that a rank has ended it.

        Runs on the socket thread.
        """
        with self._lock:
            found = self._requests.get(_message_id(end.cell, rank))
            sent = self._sent.get((end.cell, rank))
        if found is not None:
            found[0].on_ended(rank, end)
        if sent is not None:
            self.widgets.on_passed(rank, sent.n_before)

    def on_rank_says(self, rank: int, news: RankNews) -> None:
        """Tell a cell or a question what a rank says.

        Runs on the socket thread.
        """
        if isinstance(news, Completed | Inspected):
            self.help.on_answer(news)
            return
        if isinstance(news, DebuggerSays):
            self.debuggers.on_says(rank, news.message)
            return
        with self._lock:
            found = self._requests.get(_message_id(news.cell, rank))
        if found is not None:
            found[0].on_news(rank, news)

    def _on_message(self, channel: str, message: Message) -> None:
        message_id = message["parent_header"]["msg_id"]
        if channel == "iopub" and (
            is_comm(message_id) or message["header"]["msg_type"] in COMM_KINDS
        ):
            self._on_widget(message_id, message)
            return
        with self._lock:
            found = self._requests.get(message_id)
            if found is None and channel == "iopub":
                found = self._find_ended(message_id)
        if found is None:
            return
        cell, rank = found
        if channel != "iopub":
            cell.on_reply(rank, message)
        else:
            cell.on_iopub(rank, message)
            self._answer_output(cell, rank, message)

    def _on_widget(self, message_id: str, message: Message) -> None:
        """Pass a comm message on.

        Output of a callback is shown below the cell that made the widget.
        """
        name, _, number = message_id.rpartition("#")
        rank = int(number) if number.isdecimal() else -1
        if is_comm(message_id):
            name = self.widgets.cell_of(message_id)
        with self._lock:
            found = self._requests.get(message_id) or self._requests.get(_message_id(name, rank))
            found = found or self._find_ended(_message_id(name, rank))
        cell, rank = found or (None, rank)
        kind = message["header"]["msg_type"]
        if rank < 0:
            return
        if kind in COMM_KINDS or kind == "status":
            self.widgets.on_published(rank, name, message)
        elif cell is not None:
            cell.on_iopub(rank, message)
        self._answer_output(cell, rank, message)

    def _tell_below(self, rank: int, cell: str, text: str) -> None:
        """Show a line below a cell, as its ranks' own output."""
        message_id = _message_id(cell, rank)
        with self._lock:
            found = self._requests.get(message_id) or self._find_ended(message_id)
        if found is not None:
            found[0].show(rank, text)

    def _send_comm(
        self, rank: int, kind: str, content: Message, message_id: str, buffers: list[Any]
    ) -> None:
        with contextlib.suppress(DistributedError):  # broken: other news tells the notebook
            self._channels.send(self._engines[rank], kind, message_id, content, {}, buffers)

    def _answer_output(self, cell: Cell | None, rank: int, message: Message) -> None:
        """Ack a rank's output after each drawn MiB.

        The rank may be waiting for the ack before it prints more.
        """
        ours = (message.get("metadata") or {}).get("phalanx") or {}
        sent, engine = ours.get("sent"), self._engines[rank]
        if not isinstance(sent, int) or sent - self._answered.get(engine, 0) < ANSWERED_NBYTES:
            return
        self._answered[engine] = sent

        def tell() -> None:
            with contextlib.suppress(DistributedError):  # broken: other news tells the cell
                self._order((rank,), OutputDrawn(sent))

        if cell is None:
            tell()
        else:
            cell.put(CallInLoop(tell))


class RequestResender:
    """Sends a request again to ranks that did not begin the cell.

    A broken connection may have lost the request; the rank drops a copy. `RequestResender` runs on
    the thread of the cell's loop. A cell that ends within `BEGIN_S`, or that all ranks have begun
    by then, is sent once. ``ask`` asks the root how cells stand; the answer comes to `take`, or
    never. ``resend`` is `Dispatch.resend`.
    """

    def __init__(
        self,
        cell: Cell,
        ask: Callable[[], None],
        resend: Callable[..., bool],
        notice: Callable[[str], None],
        started_s: float,
    ) -> None:
        self._cell = cell
        self._ask = ask
        self._resend = resend
        self._notice = notice
        # All ranks may share one network link, and a copy of a large value takes as long again.
        self._on_way_s = cell.nbytes * len(cell.ranks) / SLOWEST
        self._wait_s = BEGIN_S
        self._n_copies = 0
        self._due_s = started_s + BEGIN_S + self._on_way_s
        self._started_s = started_s
        self._is_stopping = False

    def step(self, running: set[int], now_s: float, *, is_stopping: bool) -> None:
        """Query the root, if it is time."""
        if is_stopping and not self._is_stopping:
            # A rank cannot stop a request that it never got: send the request again, as stopped.
            self._is_stopping = True
            self._due_s = min(self._due_s, max(now_s, self._started_s + self._on_way_s))
        if running and now_s >= self._due_s:
            self._due_s = now_s + self._wait_s + self._on_way_s
            self._wait_s = min(2 * self._wait_s, MOST_S)
            self._ask()

    def take(
        self, status: CellStatusReply, asked_s: float, running: set[int], now_s: float
    ) -> None:
        """Take the root's answer; resend to the ranks without the request.

        A rank also gets a call again that it has ended without a reply. It answers that the values
        were lost.
        """
        if now_s - asked_s > FRESH_S:
            return
        cell = self._cell
        listed = {known.cell: known.ended.keys() for known in status.cells}
        # The root lists no cell that all ranks have ended, and none that was cancelled.
        ended = set(listed.get(cell.name, cell.ranks if cell.is_announced else ()))
        begun = {rank for rank, name in status.begun.items() if name == cell.name} | ended
        lost = running - begun
        if cell.has_reply:
            lost |= running & ended
        elif not lost:
            self._due_s = math.inf
        sent = [
            rank for rank in sorted(lost) if self._resend(cell, rank, is_stopped=self._is_stopping)
        ]
        missed = [rank for rank in sent if rank not in begun]
        self._n_copies += bool(missed)
        if missed and self._n_copies == 2:
            self._notice(f"{name_ranks(missed)} did not begin the cell yet; it is sent again")
