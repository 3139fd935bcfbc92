"""Define a cell, its events, and the slot for one cell."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import (
    CellEnded,
    LineNeed,
    LineNotNeeded,
    Notice,
    RankLost,
    RankSays,
    TypedLine,
    name_ranks,
)
from phalanx.rank import pack_task

from ..connection.transport import Message
from ..connection.widget_relay import notebook_kernel
from ..output.front_end import WIDGET, Clear, Display, Text
from ..output.lines import StreamName

WIDGET_IS_TEXT = "widgets of ranks are shown as text here; a notebook shows them live"
CHECK_S = 0.25  # how late a waiting cell notices a stop
OUTPUT_S = 1.0  # output that comes later after the end is taken for lost
_MOST_SHOWN = 60  # characters of a cell's first line
_EMPTY_PRE = re.compile(r"\s*<pre[^>]*>\s*</pre>\s*")


Packed = dict[int, list[Any]]  # packed values by rank, as buffers
Pack = Callable[[tuple[int, ...]], Packed]  # makes a packed call for each live rank


def make_task(function: Callable[..., list[memoryview]], *args: object, **named: Any) -> Pack:
    """Return what packs a task (`phalanx.rank.tasks`), the same for each rank."""
    packed = pack_task(function, *args, **named)
    return lambda ranks: dict.fromkeys(ranks, packed)


@dataclass(frozen=True)
class Traceback:
    """A rank shows a traceback."""

    text: str


@dataclass(frozen=True)
class Output:
    """A rank has published output, or its idle status.

    The idle status follows all output. ``end`` is where the output ends in the rank's record, in bytes; None for what is not recorded.
    """

    rank: int
    end: int | None
    shown: Text | Display | Clear | Traceback | None
    is_idle: bool = False


@dataclass(frozen=True)
class Reply:
    """A rank's reply to a call, with its packed values."""

    rank: int
    end: CellEnded
    values: list[Any]


@dataclass(frozen=True)
class Ended:
    """A rank's part of the cell has ended.

    ``failure`` has the error, None for none. All its output has come, except for ``n_missing`` pieces.
    """

    rank: int
    failure: CellEnded | None
    n_missing: int = 0


@dataclass(frozen=True)
class CallInLoop:
    """A function to call once all earlier events have been handled.

    The thread that waits for the cell calls it: with an answer of the root, or to ack output.
    """

    call: Callable[[], None]


@dataclass(frozen=True)
class Interrupted:
    """Another thread stops the cell (`Workspace.interrupt`)."""


@dataclass(frozen=True)
class OwnershipLost:
    """Another process took over the workspace; the text says so."""

    text: str


@dataclass(frozen=True)
class StopRequest:
    """The user pressed stop (Ctrl-C)."""


Event = (
    Text
    | Display
    | CallInLoop
    | Clear
    | Ended
    | Output
    | Reply
    | RankSays
    | RankLost
    | Notice
    | Interrupted
    | OwnershipLost
    | StopRequest
)


class Cell:
    """A cell or call, from its announcement to its late output.

    Any thread may `put` events; the socket thread makes them of Jupyter messages. The thread that
    waits for the cell gives them to `take`, which passes on to ``emit`` what is to be shown, asked or
    ended. After `leave`, `put` does that at once.

    A rank's part is over when the root has reported its end and the idle status has come, which
    follows all output. If the idle status is lost, `end_overdue` ends the part. A call also needs
    the rank's reply with values, and a call that is not announced needs nothing else.

    ``work`` is code, or a function that packs a call for each rank; None for a cell that another
    client has sent. ``is_task``: our function is called (`phalanx.rank.tasks`). ``code`` is shown where
    another cell is refused meanwhile, as is ``what``. ``is_all``: the user named no ranks, so dead ones
    are left out. The root does not know a cell that is not ``is_announced``: a task that needs no
    world.
    """

    number = 0  # of the notebook's cell, which tracebacks name; 0: none
    nbytes = 0  # size of the values sent to each rank
    n_widget_messages = 0  # number of the last message to a widget that was sent before

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        work: str | Pack | None = None,
        events: queue.SimpleQueue[Event] | None = None,
        *,
        what: str = "a cell",
        code: str = "",
        is_all: bool = False,
        is_task: bool = False,
        is_announced: bool = True,
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.work = work
        self.what = what
        self.code = work if isinstance(work, str) else code
        self.is_all = is_all
        self.is_task = is_task
        self.is_announced = is_announced
        self.is_attached = work is None
        self.is_call = callable(work)
        self.since_s = time.monotonic()
        self.packed: Packed = {}
        self.values: Packed = {}  # of the replies
        self.lost: tuple[int, ...] = ()  # dead ranks that the cell runs without
        self.events = queue.SimpleQueue() if events is None else events
        self.emit: Callable[[Event], None] = lambda _event: None
        self.waiting: tuple[int, ...] = ()  # for a line; set by the waiting thread
        # Those that were sent the cell, by rank; empty if another client sent it. A copy goes to the
        # same engine, never to one that replaced it.
        self.engines: dict[int, str] = {}
        # Of an attached cell: the end of the output that was shown, in bytes of each rank's record;
        # the events before those of the queue, and the lines typed so far.
        self.shown: Mapping[int, int] = {}
        self.missed: list[Event] = []
        self.typed: tuple[TypedLine, ...] = ()
        self.over: set[int] = set()  # ranks with a part that is over
        self._ends: dict[int, CellEnded] = {}
        self._replies: dict[int, CellEnded] = {}
        self._idle: set[int] = set()
        self._last_message_s = 0.0  # when the last message about the cell came
        self._n_shown = dict.fromkeys(ranks, 0)  # output messages that have come
        self._unasked: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command
        self._has_noted_widgets = False
        self._tracebacks: dict[int, str] = {}  # the last traceback that each rank showed
        self._is_left = False
        self._lock = threading.Lock()  # of `_is_left`, and of `take` after the end

    @property
    def title(self) -> str:
        """Return the first line of the code, shortened; "" without code."""
        first = next((line.strip() for line in self.code.splitlines() if line.strip()), "")
        return first if len(first) <= _MOST_SHOWN else first[: _MOST_SHOWN - 1] + "…"

    @property
    def text(self) -> str:
        """Describe in one line what runs, and where."""
        lasted_s = time.monotonic() - self.since_s
        return (
            f"{self.what} runs already on {name_ranks(self.ranks)}"
            + (f", for {lasted_s:.0f} s" if lasted_s >= 1 else "")
            + (f": `{self.title}`" if self.code else "")
        )

    def put(self, event: Event) -> None:
        with self._lock:
            (self.take if self._is_left else self.events.put)(event)

    def leave(self, late: Callable[[Event], None]) -> None:
        """Give ``late`` all events that were not taken, and all later ones."""
        with self._lock:
            self.emit, self._is_left = late, True
            while not self.events.empty():
                self.take(self.events.get())
        self._ends, self._tracebacks = {}, {}  # free texts that are not needed any more

    def on_iopub(self, rank: int, message: Message) -> None:
        """Put what a rank's kernel published (`phalanx.rank.output.streams`)."""
        kind, content = message["header"]["msg_type"], message["content"]
        end = ((message.get("metadata") or {}).get("phalanx") or {}).get("end")
        shown: Text | Display | Clear | Traceback | None = None
        is_idle = False
        if kind == "stream":
            stream: StreamName = "stderr" if content["name"] == "stderr" else "stdout"
            shown = Text(rank, stream, str(content["text"]))
        elif kind in {"display_data", "execute_result", "update_display_data"}:
            shown = self._display_of(rank, kind, content)
        elif kind == "error":
            shown = Traceback("\n".join(content["traceback"]) + "\n")
        elif kind == "clear_output":
            shown = Clear(rank, bool(content.get("wait")))
        elif kind == "phalanx_page":
            if rank == self.ranks[0]:
                shown = Display(rank, {"text/plain": content["text"]}, {}, is_result=False)
        elif kind == "status":
            is_idle = content["execution_state"] == "idle"
        if shown is not None or end is not None or is_idle:
            self.put(Output(rank, end, shown, is_idle))

    def _display_of(self, rank: int, kind: str, content: Message) -> Display | None:
        data = content["data"]
        if kind == "display_data" and _is_blank(data):
            return None
        if WIDGET in data and notebook_kernel() is None:
            data = {name: value for name, value in data.items() if name != WIDGET}
            if not self._has_noted_widgets:
                self._has_noted_widgets = True
                self.put(Notice(WIDGET_IS_TEXT))
        return Display(
            rank,
            data,
            content["metadata"],
            is_result=kind == "execute_result",
            display_id=str((content.get("transient") or {}).get("display_id") or ""),
            is_update=kind == "update_display_data",
        )

    def on_reply(self, rank: int, message: Message) -> None:
        """Put a rank's reply to a call.

        The values are unpickled elsewhere, because that may run the user's code. It is safe: the
        answers are signed with the key of our own controller, and a process that has the key can run
        code as this user anyway.
        """
        reply = message["content"]
        if reply["status"] == "ok":
            self.put(Reply(rank, CellEnded(self.name, ok=True), message["buffers"]))
            return
        error = CellEnded(
            self.name,
            ok=False,
            ename=str(reply["ename"]),
            evalue=str(reply["evalue"]),
            traceback=tuple(reply["traceback"]),
        )
        self.put(Reply(rank, error, []))

    def take(self, event: Event) -> None:
        """Take what a rank did; pass any other event on."""
        if not isinstance(event, Output | Reply | RankSays):
            self.emit(event)
            return
        self._last_message_s = time.monotonic()
        if isinstance(event, Output):
            self._take_output(event)
        elif isinstance(event, Reply):
            self._take_reply(event)
        else:
            self._take_news(event)

    def _take_output(self, event: Output) -> None:
        rank, shown = event.rank, event.shown
        if event.end is not None:
            if event.end <= self.shown.get(rank, -1):
                return
            self._n_shown[rank] += 1
        if isinstance(shown, Traceback):
            self._show_traceback(rank)
            self._tracebacks[rank] = shown.text
            if self._is_left:  # of a callback or a thread: nothing else comes
                self._show_traceback(rank)
        elif shown is not None:
            self.emit(shown)
        elif event.is_idle:
            self._idle.add(rank)
            self._end_if_over(rank)
        if self._unasked:
            self._ask()

    def _take_reply(self, reply: Reply) -> None:
        rank = reply.rank
        if rank in self._replies:
            return
        self._replies[rank] = reply.end
        if reply.end.ok:
            self.values[rank] = reply.values
        if not self.is_announced:
            self._ends[rank] = reply.end
            self._idle.add(rank)
        self._end_if_over(rank)

    def _take_news(self, event: RankSays) -> None:
        """Take a rank's news; a prompt waits for the output above it."""
        rank, news = event.rank, event.news
        if isinstance(news, CellEnded):
            self._ends.setdefault(rank, news)
            self._end_if_over(rank)
        elif isinstance(news, LineNeed):
            self._unasked[rank, news.is_command] = news
            self._ask()
        else:
            if isinstance(news, LineNotNeeded):
                self._unasked.pop((rank, False), None)
            self.emit(event)

    def _ask(self, *, is_overdue: bool = False) -> None:
        """Pass on needs after their earlier output, or when that is overdue."""
        for (rank, kind), need in list(self._unasked.items()):
            # Output from before an attach does not come as messages.
            if is_overdue or self.is_attached or self._n_shown[rank] >= need.n_shown:
                del self._unasked[rank, kind]
                self.emit(RankSays(rank, need))

    def end_overdue(self, ranks: Collection[int]) -> None:
        """End parts and ask prompts without output that is overdue."""
        if time.monotonic() - self._last_message_s > OUTPUT_S:
            self._ask(is_overdue=True)
            for rank in self._ends.keys() & set(ranks) - self._idle:
                self._idle.add(rank)
                self._end_if_over(rank)

    def _end_if_over(self, rank: int) -> None:
        end, reply = self._ends.get(rank), self._replies.get(rank)
        if rank in self.over or end is None or rank not in self._idle:
            return
        if self.is_call and end.ok and reply is None:
            return
        self.over.add(rank)
        if end.ok:
            self._show_traceback(rank)
        n_missing = 0 if self.is_attached else max(0, end.n_shown - self._n_shown[rank])
        self.emit(Ended(rank, failure_of(end) or failure_of(reply), n_missing))

    def _show_traceback(self, rank: int) -> None:
        """Show a traceback that is not the cell's final error.

        A rank publishes a traceback before it fails, and its reply contains the same one. But
        `%run` of a script that fails, or a user's ``showtraceback()``, publishes one and continues.
        """
        if text := self._tracebacks.pop(rank, ""):
            self.emit(Text(rank, "stderr", text))


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


def failure_of(end: CellEnded | None) -> CellEnded | None:
    """Return the error that ended a rank's part; None if none."""
    return None if end is None or end.ok else end


def failure_of_rank(lost: RankLost) -> RankFailure:
    """Make the error of work that needed a dead rank."""
    return RankFailure(lost.rank, lost.host, lost.reason)


class CellRuns(DistributedError):
    """The ranks already run something; the text names it."""


class ExecutionSlot:
    """Gives the ranks to one cell at a time.

    The lock guards all fields.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.cell: Cell | None = None  # the cell that runs, even if nobody waits for it
        self.is_taken = False  # whether this process waits for a running cell
        self._line: list[Cell] = []  # calls that wait, the next one first
        self.n_ended = 0

    def _say_why(self) -> str:
        # The cell may have ended just now.
        found = self.cell or next(iter(self._line), None)
        return "a cell ran already" if found is None else found.text

    @contextmanager
    def take(
        self,
        cell: Cell,
        tell: Callable[[str], None] = lambda _text: None,
        check: Callable[[], object] | None = None,
    ) -> Iterator[None]:
        """Hold the ranks inside the context.

        With ``check`` wait in line for them: ``tell`` gets one line about the cell that is waited
        for, if there is one. ``check`` is called four times a second, and raises to end the waiting.

        Raises
        ------
        CellRuns
            Another cell has the ranks; only without ``check``.
        """
        if check is not None:
            self._wait_for(cell, tell, check)
        with self._changed:
            if not self._is_free_for(cell):
                way_out = "wait for it, or stop it with %distributed interrupt"
                msg = f"{self._say_why()}; {way_out}"
                raise CellRuns(msg)
            # From here on the cell can be interrupted: a rank remembers an interrupt until the
            # cell arrives.
            self.is_taken, self.cell, cell.since_s = True, cell, time.monotonic()
            del self._line[:1]
        try:
            yield
        finally:
            with self._changed:
                self.is_taken, self.cell = False, None
                self.n_ended += 1
                self._changed.notify_all()

    def _is_free_for(self, cell: Cell) -> bool:
        return not self.is_taken and (not self._line or self._line[0] is cell)

    def line_up(self, cell: Cell) -> None:
        """Append a cell to the queue, for which `take` waits; idempotent."""
        with self._changed:
            if cell not in self._line:
                self._line.append(cell)

    def leave_line(self, cell: Cell) -> None:
        """Remove a cell from the queue; idempotent."""
        with self._changed:
            if cell in self._line:
                self._line.remove(cell)
            self._changed.notify_all()

    def _wait_for(
        self, cell: Cell, tell: Callable[[str], None], check: Callable[[], object]
    ) -> None:
        self.line_up(cell)
        try:
            check()
            if not self._is_free_within(cell, 0.0):
                tell(f"{cell.what} waits: {self._say_why()}")
                while not self._is_free_within(cell, CHECK_S):
                    check()
                check()  # the cell before may have ended for the reason that ends this wait
        except BaseException:
            self.leave_line(cell)
            raise

    def _is_free_within(self, cell: Cell, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_free_for(cell), timeout_s)
