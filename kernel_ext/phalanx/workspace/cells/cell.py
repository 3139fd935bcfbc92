"""Turn the messages about one cell into events.

The socket thread puts Jupyter messages in, as a rank's kernel marks them
(`phalanx.rank.output.streams`). The thread that waits takes events out.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from phalanx.errors import RankFailure
from phalanx.protocol import (
    CellEnded,
    LineNeed,
    LineNotNeeded,
    Notice,
    RankCall,
    RankLost,
    RankTask,
)

from ..connection.transport import Message
from ..connection.widget_relay import notebook_kernel
from ..output.events import (
    WIDGET,
    CellNews,
    Clear,
    Display,
    Ended,
    Event,
    RankNotice,
    Text,
)
from ..output.lines import StreamName

WIDGET_IS_TEXT = "widgets of ranks are shown as text here; a notebook shows them live"
OUTPUT_S = 1.0  # output that comes later after the end is taken for lost
_EMPTY_PRE = re.compile(r"\s*<pre[^>]*>\s*</pre>\s*")


Packed = dict[int, list[Any]]  # packed values by rank, as buffers
Pack = Callable[[tuple[int, ...]], Packed]  # makes a packed call for each live rank


class Cell:
    """The work, state and events of one cell.

    A rank's part is over when the root has reported its end (`on_ended`) and the idle status has
    come, which follows all output. If the idle status is lost, `end_overdue` ends the part. Only
    the socket thread changes the maps. After `leave`, the output of the ranks' threads goes to the
    late receiver.
    """

    is_announced = True  # whether the root knows the cell by name
    is_attached = False  # whether another client has sent it
    has_reply = False  # whether the cell needs the ranks' replies: they have values
    number = 0  # of the notebook's cell, which tracebacks name; 0: none
    nbytes = 0  # size of the values sent to each rank

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        events: queue.SimpleQueue[Event] | None = None,
        *,
        work: str | RankTask | RankCall | None = None,
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.work = work  # code, a task or one of our calls; None: a packed function
        self.packed: Packed = {}
        self.values: Packed = {}  # of the replies
        self.lost: tuple[int, ...] = ()  # dead ranks that the cell runs without
        self.events = queue.SimpleQueue() if events is None else events
        self.waiting: tuple[int, ...] = ()  # for a line; set by the waiting thread
        # Those that were sent the cell, by rank; empty if another client sent it. A copy goes to the
        # same engine, never to one that replaced it.
        self.engines: dict[int, str] = {}
        self.n_widget_messages = 0  # number of the last message to a widget that was sent before
        self._ends: dict[int, CellEnded] = {}
        self._idle: set[int] = set()
        self._last_message_s = 0.0  # when the last message about the cell came
        self._over: set[int] = set()
        self._n_shown = dict.fromkeys(ranks, 0)  # output messages that have come
        self._unasked: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command
        self._has_noted_widgets = False
        self._tracebacks: dict[int, str] = {}  # the last traceback that each rank showed
        self._late: Callable[[Event], None] | None = None
        self._late_lock = threading.Lock()

    def leave(self, late: Callable[[Event], None]) -> None:
        """Give ``late`` all events that were not taken, and all later ones."""
        with self._late_lock:
            self._late = late
            while not self.events.empty():
                late(self.events.get())
        self._ends, self._tracebacks = {}, {}  # free texts that are not needed any more

    def put(self, event: Event) -> None:
        with self._late_lock:
            (self._late or self.events.put)(event)

    def on_ended(self, rank: int, end: CellEnded) -> None:
        self._last_message_s = time.monotonic()
        self._ends.setdefault(rank, end)
        self._end_if_over(rank)

    def on_reply(self, rank: int, message: Message) -> None:
        """Take a rank's reply, which only calls need."""

    def on_iopub(self, rank: int, message: Message) -> None:
        self._last_message_s = time.monotonic()
        kind, content = message["header"]["msg_type"], message["content"]
        ours = (message.get("metadata") or {}).get("phalanx") or {}
        if "end" in ours:
            self._n_shown[rank] += 1
        if kind == "stream":
            stream: StreamName = "stderr" if content["name"] == "stderr" else "stdout"
            self.put(Text(rank, stream, str(content["text"])))
        elif kind in {"display_data", "execute_result", "update_display_data"}:
            self._take_display(rank, kind, content)
        elif kind == "error":
            self._show_traceback(rank)
            self._tracebacks[rank] = "\n".join(content["traceback"]) + "\n"
            if self._late is not None:  # of a callback or a thread: nothing else comes
                self._show_traceback(rank)
        elif kind == "clear_output":
            self.put(Clear(rank, bool(content.get("wait"))))
        elif kind == "phalanx_page":
            if rank == self.ranks[0]:
                self.put(Display(rank, {"text/plain": content["text"]}, {}, is_result=False))
        elif kind == "status" and content["execution_state"] == "idle":
            self._idle.add(rank)
            self._end_if_over(rank)
        if self._unasked:
            self._ask()

    def on_news(self, rank: int, news: CellNews) -> None:
        """Take a rank's notice; a prompt waits for the output above it."""
        if isinstance(news, LineNeed):
            self._last_message_s = time.monotonic()
            self._unasked[rank, news.is_command] = news
            self._ask()
            return
        if isinstance(news, LineNotNeeded):
            self._unasked.pop((rank, False), None)
        self.put(RankNotice(rank, news))

    def _ask(self, *, is_overdue: bool = False) -> None:
        """Put each need after its earlier output, or when that is overdue."""
        for (rank, kind), need in list(self._unasked.items()):
            is_due = is_overdue or self._n_shown[rank] >= need.n_shown
            if is_due and self._unasked.pop((rank, kind), None) is not None:
                self.put(RankNotice(rank, need))

    def _take_display(self, rank: int, kind: str, content: Message) -> None:
        data = content["data"]
        if kind == "display_data" and _is_blank(data):
            return
        if WIDGET in data and notebook_kernel() is None:
            data = {name: value for name, value in data.items() if name != WIDGET}
            if not self._has_noted_widgets:
                self._has_noted_widgets = True
                self.put(Notice(WIDGET_IS_TEXT))
        self.put(
            Display(
                rank,
                data,
                content["metadata"],
                is_result=kind == "execute_result",
                display_id=str((content.get("transient") or {}).get("display_id") or ""),
                is_update=kind == "update_display_data",
            )
        )

    def end_overdue(self, ranks: Collection[int]) -> None:
        """End parts and ask prompts without output that is overdue."""
        if time.monotonic() - self._last_message_s > OUTPUT_S:
            self._ask(is_overdue=True)
            for rank in self._ends.keys() & set(ranks) - self._idle:
                self._idle.add(rank)
                self._end_if_over(rank)

    def _end_if_over(self, rank: int) -> None:
        if rank in self._over or not self._is_over(rank):
            return
        self._over.add(rank)
        end = self._ends[rank]
        if end.ok:
            self._show_traceback(rank)
        n_missing = max(0, end.n_shown - self._n_shown[rank])
        self.put(Ended(rank, self._failure(rank), n_missing))

    def _is_over(self, rank: int) -> bool:
        return rank in self._ends and rank in self._idle

    def _failure(self, rank: int) -> CellEnded | None:
        return failure_of(self._ends[rank])

    def _show_traceback(self, rank: int) -> None:
        """Show a traceback that is not the cell's final error.

        A rank publishes a traceback before it fails, and its reply contains the same one. But
        `%run` of a script that fails, or a user's ``showtraceback()``, publishes one and continues.
        """
        self.show(rank, self._tracebacks.pop(rank, ""))

    def show(self, rank: int, text: str) -> None:
        if text:
            self.put(Text(rank, "stderr", text))


def _is_blank(data: Message) -> bool:
    """Whether a display has no visible content.

    Progress bars of rich send such displays. Output that is drawn within their `Output` widget
    arrives separately.
    """
    text = str(data.get("text/plain", ""))
    if WIDGET in data:
        return notebook_kernel() is None and text.startswith("Output(")
    html = data.get("text/html")
    return not text and html is not None and _EMPTY_PRE.fullmatch(str(html)) is not None


def failure_of(end: CellEnded) -> CellEnded | None:
    """Return the error that ended a rank's part; None if none."""
    return None if end.ok else end


class AttachedCell(Cell):
    """A cell of another client, attached to while it runs.

    Messages are held back until `begin` tells which of them were shown already.
    """

    is_attached = True

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        super().__init__(name, ranks)
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] | None = []
        self._shown: Mapping[int, int] = {}

    def begin(self, shown: Mapping[int, int], over: set[int]) -> None:
        """Release the messages, except output that was shown already.

        ``shown`` has the end of the output that was shown, in bytes of each rank's record. ``over`` has
        the ranks that are known to have ended the cell.
        """
        with self._lock:
            held, self._held = self._held or [], None
            self._shown = shown
            self._over |= over
            for take in held:
                take()

    def on_iopub(self, rank: int, message: Message) -> None:
        self._hold_or_take(lambda: self._take(rank, message))

    def on_ended(self, rank: int, end: CellEnded) -> None:
        # Output from before the attach did not come as messages and is not missing.
        end = msgspec.structs.replace(end, n_shown=0)
        self._hold_or_take(lambda: super(AttachedCell, self).on_ended(rank, end))

    def on_news(self, rank: int, news: CellNews) -> None:
        if isinstance(news, LineNeed):
            news = msgspec.structs.replace(news, n_shown=0)
        self._hold_or_take(lambda: super(AttachedCell, self).on_news(rank, news))

    def _hold_or_take(self, take: Callable[[], None]) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(take)
            else:
                take()

    def _take(self, rank: int, message: Message) -> None:
        end = ((message.get("metadata") or {}).get("phalanx") or {}).get("end")
        if end is None or end > self._shown.get(rank, 0):
            super().on_iopub(rank, message)


class Call(Cell):
    """A cell that ranks answer with values.

    A call that is not announced is unknown to the root: a rank's part is over with the reply.

    The thread that waits unpickles the values, not the socket
    thread, because unpickling may run the user's code. Unpickling is safe here: the answers are
    signed with the key of our own controller, and a process that has the key can run code as this
    user anyway.
    """

    has_reply = True

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        events: queue.SimpleQueue[Event] | None = None,
        *,
        work: RankCall | None = None,
        is_announced: bool = True,
    ) -> None:
        super().__init__(name, ranks, events, work=work)
        self.is_announced = is_announced
        self._replies: dict[int, CellEnded] = {}

    def on_reply(self, rank: int, message: Message) -> None:
        """Take a rank's reply and keep its packed values."""
        if rank in self._replies:
            return
        reply = message["content"]
        if reply["status"] == "ok":
            self._replies[rank] = CellEnded(self.name, ok=True)
            self.values[rank] = message["buffers"]
        else:
            self._replies[rank] = CellEnded(
                self.name,
                ok=False,
                ename=str(reply["ename"]),
                evalue=str(reply["evalue"]),
                traceback=tuple(reply["traceback"]),
            )
        if not self.is_announced:
            self._ends[rank] = self._replies[rank]
            self._idle.add(rank)
        self._end_if_over(rank)

    def _is_over(self, rank: int) -> bool:
        return super()._is_over(rank) and (rank in self._replies or not self._ends[rank].ok)

    def _failure(self, rank: int) -> CellEnded | None:
        return super()._failure(rank) or failure_of(self._replies[rank])


def failure_of_rank(lost: RankLost) -> RankFailure:
    """Make the error of work that needed a dead rank."""
    return RankFailure(lost.rank, lost.host, lost.reason)
