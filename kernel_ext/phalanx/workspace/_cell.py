"""One cell on its ranks: what came of it so far, and what to show.

The socket thread puts messages in, the thread that waits takes events out. It knows Jupyter's
message types; it sends nothing.
"""

from __future__ import annotations

import queue
import time

import msgspec

from phalanx.protocol import LineNeed

from ._events import Clear, Display, Ended, Event, Failure, Lost, NeedLine, NeedOver, Text
from ._lines import StreamName
from ._messages import Message

__all__ = ["Cell", "UnannouncedCell"]

# A widget's model is in its rank, whom no front end reaches: shown is the text that comes with it.
WIDGET = "application/vnd.jupyter.widget-view+json"


class Cell:
    """The events of one cell.

    A rank's part is over when both its reply (shell) and its idle status (iopub) have come: they
    travel apart, and all output lies before the idle. Either may come twice, where a rank was asked
    again. The maps are touched by the socket thread only; the queue joins the threads. `heard` are
    the ranks that have said anything about it: the thread that waits looks there now and then.
    """

    is_announced = True  # the root knows it by name
    nbytes = 0  # of what is sent to each rank, where it is long

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        events: queue.SimpleQueue[Event] | None = None,
        lost: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.lost = lost  # the dead that it runs without
        self.events = queue.SimpleQueue() if events is None else events
        self.waiting: tuple[int, ...] = ()  # for a line; the thread that waits says so
        self._replies: dict[int, Failure | None] = {}
        self._idle: set[int] = set()
        self.heard: set[int] = set()
        self._n_shown = dict.fromkeys(ranks, 0)  # messages that have come, of what it shows
        self._n_said = dict.fromkeys(ranks, 0)  # and that were sent
        self._tracebacks: dict[int, str] = {}  # the last that each rank showed

    def on_shell(self, rank: int, message: Message) -> None:
        """Take a rank's reply."""
        if rank in self._replies:
            return
        content = message["content"]
        failure = None
        if content["status"] != "ok":
            failure = Failure(
                str(content.get("ename", "Aborted")),
                str(content.get("evalue", "the rank did not run the cell")),
                tuple(str(line) for line in content.get("traceback", ())),
            )
        if rank == self.ranks[0]:
            self._take_pages(rank, content)
        self._replies[rank] = failure
        self._end_if_over(rank)

    def _take_pages(self, rank: int, reply: Message) -> None:
        """Show what `obj?` found: Jupyter's pager text, which comes with the reply."""
        for payload in reply.get("payload") or ():
            if payload.get("source") == "page":
                text = {"text/plain": str(payload["data"].get("text/plain", ""))}
                self.events.put(Display(rank, text, {}, is_result=False))

    def on_iopub(self, rank: int, message: Message) -> None:
        """Take what a rank published."""
        self.heard.add(rank)
        kind, content = message["header"]["msg_type"], message["content"]
        ours = (message.get("metadata") or {}).get("phalanx") or {}
        if "end" in ours:
            self._n_shown[rank] += 1
        if kind == "stream":
            stream: StreamName = "stderr" if content["name"] == "stderr" else "stdout"
            self.events.put(Text(rank, stream, str(content["text"])))
        elif kind in {"display_data", "execute_result", "update_display_data"}:
            self.events.put(
                Display(
                    rank,
                    {kind: data for kind, data in content["data"].items() if kind != WIDGET},
                    content["metadata"],
                    is_result=kind == "execute_result",
                    display_id=str((content.get("transient") or {}).get("display_id") or ""),
                    is_update=kind == "update_display_data",
                )
            )
        elif kind == "error":
            self._show_traceback(rank)
            self._tracebacks[rank] = "\n".join(content["traceback"]) + "\n"
        elif kind == "clear_output":
            self.events.put(Clear(rank, bool(content.get("wait"))))
        elif kind == "phalanx_need_line":
            self.events.put(NeedLine(rank, msgspec.convert(content, LineNeed)))
        elif kind == "phalanx_need_over":
            self.events.put(NeedOver(rank))
        elif kind == "status" and content["execution_state"] == "idle" and rank not in self._idle:
            self._idle.add(rank)
            self._n_said[rank] = ours.get("shown", 0)
            self._end_if_over(rank)

    def wait_ended(self, ranks: set[int], timeout_s: float) -> set[int]:
        """Return those of ``ranks`` that have ended (or died) when all have, or time is over."""
        ended: set[int] = set()
        deadline_s = time.monotonic() + timeout_s
        while ended < ranks and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                event = self.events.get(timeout=left_s)
            except queue.Empty:
                break
            if isinstance(event, Ended | Lost):
                ended.add(event.rank)
        return ended

    def on_lost(self, lost: Lost) -> None:
        """Take the news of a rank's death."""
        self.events.put(lost)

    def _end_if_over(self, rank: int) -> None:
        if rank in self._replies and rank in self._idle:
            if self._replies[rank] is None:
                self._show_traceback(rank)
            n_missing = max(0, self._n_said[rank] - self._n_shown[rank])
            self.events.put(Ended(rank, self._replies[rank], n_missing))

    def _show_traceback(self, rank: int) -> None:
        """Show a traceback that the rank's part of the cell did not end in.

        A rank shows one before it fails, and its reply has the same; but `%run` of a script that
        fails, or a user's ``showtraceback()``, shows one and goes on.
        """
        traceback = self._tracebacks.pop(rank, "")
        if traceback:
            self.events.put(Text(rank, "stderr", traceback))


class UnannouncedCell(Cell):
    """A cell of our own that the root does not know of."""

    is_announced = False
