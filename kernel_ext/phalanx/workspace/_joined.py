"""A cell that another client began: what it shows from now on, on top of what was missed.

It knows Jupyter's messages as a rank's kernel marks them (`supervisor._outgoing`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ._cell import Cell
from ._events import Ended, Failure, Told
from ._messages import Message

__all__ = ["Greeting", "JoinedCell", "WatchedCell", "failure_of"]


def failure_of(text: str) -> Failure | None:
    """Turn the root's word on how a rank ended a cell into a failure; None if it ended well."""
    if not text:
        return None
    ename, _, evalue = text.partition(": ")
    return Failure(ename, evalue, ())


class JoinedCell(Cell):
    """Holds back what comes until it is known what of it was shown already (`begin`).

    The reply of a rank goes to the client that asked, so a rank's part is over with its idle
    status, which says what the reply says.
    """

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        super().__init__(name, ranks)
        self.heard.update(ranks)  # whether a rank has it at all is known from elsewhere (`CatchUp`)
        self._lock = threading.Lock()
        self._held: list[tuple[int, Message]] | None = []
        self._shown: Mapping[int, int] = {}
        self._is_over: set[int] = set()

    def begin(self, shown: Mapping[int, int], over: set[int]) -> None:
        """Let through what comes, but what ends at or before ``shown`` (by rank) in the record.

        ``over`` are ranks whose end is known from elsewhere.
        """
        with self._lock:
            held, self._held = self._held or [], None
            self._shown = shown
            self._is_over |= over
            for rank, message in held:
                self._take(rank, message)

    def on_shell(self, rank: int, message: Message) -> None:
        """Nothing: the reply is another's."""

    def on_iopub(self, rank: int, message: Message) -> None:
        """Take what a rank published."""
        with self._lock:
            if self._held is not None:
                self._held.append((rank, message))
            else:
                self._take(rank, message)

    def _take(self, rank: int, message: Message) -> None:
        ours = message["metadata"].get("phalanx") or {}
        end = ours.get("end")
        if end is not None and end <= self._shown.get(rank, 0):
            return
        if message["header"]["msg_type"] != "status":
            super().on_iopub(rank, message)
        elif "reply" in ours and rank not in self._is_over:
            self._is_over.add(rank)
            self.events.put(Ended(rank, _failure(ours["reply"])))


class WatchedCell(JoinedCell):
    """A cell that is only looked at: what it asks is told of, and answered elsewhere."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        super().__init__(name, ranks)
        self._asked: set[str] = set()

    def _take(self, rank: int, message: Message) -> None:
        kind = message["header"]["msg_type"]
        if kind == "phalanx_need_line":
            prompt = str(message["content"]["prompt"])
            if prompt not in self._asked:
                self._asked.add(prompt)
                asks = f"rank {rank} asks {prompt.strip()!r}"
                self.events.put(Told(f"{asks}; it is answered where the cell was run"))
        elif kind != "phalanx_need_over":
            super()._take(rank, message)


def _failure(reply: Message) -> Failure | None:
    if reply.get("status", "ok") == "ok":
        return None
    return Failure(
        str(reply.get("ename", "Aborted")),
        str(reply.get("evalue", "the rank did not run the cell")),
        tuple(str(line) for line in reply.get("traceback", ())),
    )


class Greeting(Cell):
    """A new client's first word to ranks that may be busy, and what they say of themselves.

    A rank has answered when its reply has come, and something on iopub: then nothing that it
    publishes is missed any more.
    """

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        super().__init__(name, ranks)
        self.answers: dict[int, dict[str, Any]] = {}
        self._heard: set[int] = set()

    def on_control(self, rank: int, message: Message) -> None:
        """Take a rank's answer."""
        self.answers[rank] = message["content"]
        self._look(rank)

    def on_iopub(self, rank: int, message: Message) -> None:
        """Note that a rank is heard."""
        self._heard.add(rank)
        self._look(rank)

    def _look(self, rank: int) -> None:
        if rank in self._heard and rank in self.answers:
            self.events.put(Ended(rank, None))
