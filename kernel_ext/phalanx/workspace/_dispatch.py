"""Cells to ranks and their news back: which message belongs to which cell on which rank.

It knows our execute request and our control messages; not how a cell is shown or begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from phalanx.protocol import TypedLine

from ._cell import Cell
from ._events import Event, Lost
from ._help import Help
from ._io import SocketThread
from ._messages import Message, RankChannels

__all__ = ["Dispatch"]


class Dispatch:
    """Sends cells to the engines of all ranks and hands their messages to the cells.

    The table of requests is written by the thread that runs cells and read by the socket
    thread, under one lock; an entry goes with its cell (`forget`).
    """

    def __init__(
        self, thread: SocketThread, connection: dict[str, Any], engines: tuple[str, ...]
    ) -> None:
        self.help = Help(len(engines), self._ask)
        self._engines = engines
        self._lock = threading.Lock()
        self._requests: dict[str, tuple[Cell, int]] = {}  # message id -> cell, rank
        self._channels = RankChannels(thread, connection, self._on_message)

    def execute(self, cell: Cell, rank: int, code: str, *, silent: bool) -> None:
        """Send our execute request: it may ask for input, and never makes a rank skip the next."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": False,
        }

        metadata = {"phalanx": {"cell": cell.name, "lost": cell.lost}}
        self._request(cell, rank, "execute_request", content, metadata=metadata)

    def apply(self, call: Cell, rank: int, buffers: list[Any]) -> None:
        """Send ipyparallel's request to call a function, packed in ``buffers``."""
        self._request(call, rank, "apply_request", {}, buffers=buffers)

    def _request(
        self,
        cell: Cell,
        rank: int,
        kind: str,
        content: Message,
        *,
        metadata: Message | None = None,
        buffers: list[Any] | None = None,
    ) -> None:
        def register(message_id: str) -> None:
            with self._lock:
                self._requests[message_id] = (cell, rank)

        self._channels.shell(
            self._engines[rank], kind, content, metadata or {}, register, buffers or []
        )

    def forget(self, cell: Cell) -> None:
        """Drop what still comes for a cell that nobody waits for any more."""
        with self._lock:
            self._requests = {k: v for k, v in self._requests.items() if v[0] is not cell}

    def send_line(self, cell: str, index: int, entry: TypedLine) -> None:
        """Tell all ranks an entry of the cell's log."""
        content = {"cell": cell, "index": index, "entry": msgspec.to_builtins(entry)}
        self._to_all("phalanx_line", content)

    def refuse_line(self, cell: str, message: str) -> None:
        """Tell all ranks that nobody can be asked."""
        self._to_all("phalanx_line", {"cell": cell, "refusal": message})

    def interrupt_cell(self, cell: str, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""
        for rank in ranks:
            self._channels.control(self._engines[rank], "phalanx_interrupt", {"cell": cell})

    def _ask(self, rank: int, kind: str, content: Message, register: Callable[[str], None]) -> None:
        self._channels.control(self._engines[rank], kind, content, register)

    def _to_all(self, kind: str, content: Message) -> None:
        for engine in self._engines:
            self._channels.control(engine, kind, content)

    def tell(self, event: Event) -> None:
        """Tell every cell that is under way."""
        with self._lock:
            cells = {id(cell): cell for cell, _ in self._requests.values()}
        for cell in cells.values():
            cell.events.put(event)

    def on_lost(self, lost: Lost) -> None:
        """Tell every cell that waits for this rank that it died."""
        self.help.on_lost(lost.rank)
        with self._lock:
            cells = {
                id(cell): cell for cell, where in self._requests.values() if where == lost.rank
            }
        for cell in cells.values():
            cell.on_lost(lost)

    def _on_message(self, channel: str, message: Message) -> None:
        if channel == "control":
            self.help.on_reply(message)
            return
        with self._lock:
            found = self._requests.get(message["parent_header"]["msg_id"])
        if found is None:
            return
        cell, rank = found
        if channel == "shell":
            cell.on_shell(rank, message)
        else:
            cell.on_iopub(rank, message)
