"""Send requests to ranks and match their replies to cells.

A message id names the cell and the rank, and `Dispatch` keeps the cells by name. `RequestResender` sends a lost request again.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from phalanx.errors import DistributedError
from phalanx.protocol import (
    Booted,
    CellEnded,
    CellStatusReply,
    Completed,
    DebuggerSays,
    FromRoot,
    Inspected,
    Notice,
    OutputDrawn,
    RankLost,
    RankOrder,
    RankSays,
    Replaced,
    name_ranks,
)

from ..connection.transport import Message, RankChannels, SharedClient, SocketThread
from ..connection.widget_relay import COMM_KINDS, WidgetRelay, is_comm
from ..output.front_end import Text
from .cell import CallInLoop, Cell, Event, OwnershipLost
from .debugging import RankDebuggers
from .rank_help import Help

if TYPE_CHECKING:
    import ipyparallel


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


class Dispatch:
    """Sends cells to engines and routes messages to cells.

    The thread that runs cells writes the tables of cells, and the socket thread reads them; one lock
    guards them. `forget` removes a cell. ``order`` sends an order to ranks through the root.
    """

    def __init__(
        self,
        thread: SocketThread,
        booted: Booted,
        order: Callable[[Iterable[int], RankOrder], None],
    ) -> None:
        self._order = order
        self.lost: dict[int, RankLost] = {}  # the dead ranks
        self.has_new_ranks = False  # whether replaced ranks may have to be prepared
        dead, size = self.lost.keys(), len(booted.engines)
        self.help = Help(size, dead, lambda rank, question: order((rank,), question))
        self.debuggers = RankDebuggers(dead, lambda rank, request: order((rank,), request))
        self.widgets = WidgetRelay(self._send_comm, self._tell_below)
        self._client = SharedClient(booted.connection)
        self._engines = list(booted.engines)  # by rank; a replaced rank has a new one
        self._lock = threading.Lock()
        self._cells: dict[str, Cell] = {}  # that are under way, by name
        self._ended: dict[str, Cell] = {}  # by name, least recently used first
        self._answered: dict[str, int] = {}  # acked bytes of output by engine; socket thread only
        self._taken: OwnershipLost | None = None  # put into cells that are sent later, too
        self._channels = RankChannels(thread, booted.connection, booted.session, self._on_message)
        self.wait_subscribed = self._channels.wait_subscribed

    def execute(self, cell: Cell, rank: int) -> None:
        """Send a cell to a rank."""
        with self._lock:
            if not cell.engines:
                cell.n_widget_messages = self.widgets.newest
            self._cells[cell.name] = cell
            cell.engines[rank] = self._engines[rank]
            nbytes = sum(memoryview(one).nbytes for one in cell.packed.get(rank, ()))
            cell.nbytes = max(cell.nbytes, nbytes)
            if self._taken is not None:  # the ranks are another client's now
                cell.events.put(self._taken)
                return
        self._send(cell, rank)

    def resend(self, cell: Cell, rank: int, *, is_stopped: bool = False) -> bool:
        """Send a rank its request again; False if another client sent it.

        ``is_stopped``: a rank that has not begun the cell ends it as a stopped cell. The order to
        stop takes another way and may be the later.
        """
        if rank not in cell.engines:
            return False
        self._send(cell, rank, is_stopped=is_stopped)
        return True

    def _send(self, cell: Cell, rank: int, *, is_stopped: bool = False) -> None:
        """Send a request, signed anew.

        A kernel drops a message with a signature that it has seen.
        """
        said: Message = {"cell": cell.name}
        if cell.is_announced:
            said |= {"lost": cell.lost, "widgets": self.widgets.is_live}
        if cell.number:
            said["number"] = cell.number
        if is_stopped:
            said["stopped"] = True
        if cell.is_call:
            # ipyparallel's request. An announced one is a cell for its ranks and for clients that
            # attach later.
            kind = "apply_request"
            content: Message = {}
            said |= {"is_cell": cell.is_announced, "is_task": cell.is_task}
        else:
            kind = "execute_request"
            content = {
                "code": cell.work,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": True,
                "stop_on_error": False,  # an error never makes a rank skip the next request
            }
        self._channels.send(
            cell.engines[rank],
            kind,
            _message_id(cell.name, rank),
            content,
            {"phalanx": said},
            cell.packed.get(rank, []),
        )

    def adopt(self, cell: Cell) -> None:
        """Route the messages of a cell that another client sent."""
        with self._lock:
            self._cells[cell.name] = cell

    def forget(self, cell: Cell, late: Callable[[Event], None] | None = None) -> None:
        """Stop routing messages to a cell that nobody waits for.

        ``late``, if given, gets the output that threads of the cell still publish on its ranks.
        """
        with self._lock:
            self._cells.pop(cell.name, None)
            cell.packed = {}  # the values may be large
            if late is not None:
                self._keep_ended(cell)
        if late is not None:
            cell.leave(late)

    def _keep_ended(self, cell: Cell) -> None:
        self._ended.pop(cell.name, None)
        self._ended[cell.name] = cell
        if len(self._ended) > KEPT_ENDED:
            del self._ended[next(iter(self._ended))]

    def _find(self, message_id: str, *, is_output: bool) -> tuple[Cell | None, int]:
        """Return the cell and rank of a message; -1: another message.

        Output is also shown below a cell that has ended.
        """
        name, _, number = message_id.rpartition("#")
        rank = int(number) if number.isdecimal() else -1
        with self._lock:
            cell = self._cells.get(name)
            if cell is None and is_output and (cell := self._ended.get(name)) is not None:
                self._keep_ended(cell)
        return (cell if cell is not None and rank in cell.ranks else None), rank

    def is_under_way(self, cell: str) -> bool:
        """Whether this process waits for a cell, so that `tell` reaches it."""
        with self._lock:
            return cell in self._cells

    def waiting(self) -> set[int]:
        with self._lock:
            return {rank for cell in self._cells.values() for rank in cell.waiting}

    def tell(self, event: Event) -> None:
        """Send an event to every cell that is under way."""
        with self._lock:
            if isinstance(event, OwnershipLost):
                self._taken = event
            cells = [*self._cells.values()]
        for cell in cells:
            cell.events.put(event)

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the current engine of each rank.

        A new engine means a new process.
        """
        return tuple(self._engines)

    def client(self) -> ipyparallel.Client:
        return self._client.get(self._engines, tuple(self.lost))

    def close(self) -> None:
        """Close ipyparallel's client and the ranks' widgets on the page."""
        self._client.close()
        self.widgets.close()

    def on_news(self, message: FromRoot) -> None:
        """Take the root's news: a death, a replacement, an end.

        The running cell gets it too. Runs on the socket thread.
        """
        if isinstance(message, RankSays):
            self._on_rank_says(message)
        elif isinstance(message, RankLost):
            self._on_lost(message)
        elif isinstance(message, Replaced):
            self._engines[message.rank] = message.engine
            self.has_new_ranks = True
            self.lost.pop(message.rank, None)
            self.widgets.on_lost(message.rank)
        elif isinstance(message, Notice):
            self.tell(message)

    def _on_lost(self, lost: RankLost) -> None:
        """Tell every cell that waits for this rank that the rank died."""
        self.lost.setdefault(lost.rank, lost)
        self._client.lose(lost.rank, self._engines[lost.rank])
        self.help.on_lost(lost.rank)
        self.debuggers.on_lost(lost.rank)
        self.widgets.on_lost(lost.rank)
        with self._lock:
            cells = [cell for cell in self._cells.values() if lost.rank in cell.ranks]
        for cell in cells:
            cell.put(lost)

    def _on_rank_says(self, message: RankSays) -> None:
        """Tell a cell or a question what a rank says."""
        rank, news = message.rank, message.news
        if isinstance(news, Completed | Inspected):
            self.help.on_answer(news)
        elif isinstance(news, DebuggerSays):
            self.debuggers.on_says(rank, news.message)
        else:
            cell, _ = self._find(_message_id(news.cell, rank), is_output=False)
            if cell is None:
                return
            cell.put(message)
            if isinstance(news, CellEnded):
                self.widgets.on_passed(rank, cell.n_widget_messages)

    def _on_message(self, channel: str, message: Message) -> None:
        """Pass a message on to its cell, or to the widgets.

        Output of a callback is shown below the cell that made the widget.
        """
        message_id, kind = message["parent_header"]["msg_id"], message["header"]["msg_type"]
        is_output = channel == "iopub"
        is_callback = is_output and is_comm(message_id)
        name, _, number = message_id.rpartition("#")
        if is_callback:
            name = self.widgets.cell_of(message_id)
        cell, rank = self._find(f"{name}#{number}", is_output=is_output)
        is_widgets = is_output and (kind in COMM_KINDS or (is_callback and kind == "status"))
        if is_widgets and rank >= 0:
            self.widgets.on_published(rank, name, message)
        elif cell is not None and is_output:
            cell.on_iopub(rank, message)
        elif cell is not None and cell.is_call:
            cell.on_reply(rank, message)
        if is_output and rank >= 0 and (is_widgets or is_callback or cell is not None):
            self._answer_output(cell, rank, message)

    def _tell_below(self, rank: int, name: str, text: str) -> None:
        """Show a line below a cell, as its ranks' own output."""
        cell, _ = self._find(_message_id(name, rank), is_output=True)
        if cell is not None:
            cell.put(Text(rank, "stderr", text))

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
        if cell.is_call:
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
