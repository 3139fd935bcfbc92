"""Cells to ranks and their news back: which message belongs to which cell on which rank.

It knows our execute request and our control messages; not how a cell is shown or begun.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from phalanx.protocol import TypedLine

from ._cell import Cell
from ._events import Event, Lost, TakenAway
from ._help import Help
from ._io import SocketThread
from ._joined import Greeting
from ._messages import Message, RankChannels

__all__ = ["Dispatch"]


def _message_id(cell: str, rank: int) -> str:
    """Name a request so that every client of the workspace knows which cell and rank it means."""
    return f"{cell}#{rank}"


class _Request(NamedTuple):
    """What was sent to a rank, to be sent again if need be: to the same engine, or to nobody."""

    engine: str
    kind: str
    content: Message
    metadata: Message
    message_id: str
    buffers: list[Any]


class Dispatch:
    """Sends cells to the engines of all ranks and hands their messages to the cells.

    The table of requests is written by the thread that runs cells and read by the socket
    thread, under one lock; an entry goes with its cell (`forget`).
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: dict[str, Any],
        engines: tuple[str, ...],
        session: str,
    ) -> None:
        self.help = Help(len(engines), self._ask)
        self._engines = list(engines)  # a replaced rank has another
        self._lock = threading.Lock()
        self._requests: dict[str, tuple[Cell, int]] = {}  # message id -> cell, rank
        self._sent: dict[tuple[str, int], _Request] = {}  # by the cell's name
        self._stop = "", ""  # the last interrupt: of which cell, and its name
        self._taken: TakenAway | None = None  # also for a cell that was about to be sent then
        self._channels = RankChannels(thread, connection, session, self._on_message)

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
        message_id = _message_id(cell.name, rank)
        with self._lock:
            if message_id in self._requests:  # a ping that is repeated
                message_id += f"~{len(self._requests)}"
        self._request(message_id, cell, rank, "execute_request", content, metadata=metadata)

    def apply(self, call: Cell, rank: int, buffers: list[Any]) -> None:
        """Send ipyparallel's request to call a function, packed in ``buffers``."""
        metadata = {"phalanx": {"cell": call.name}}
        # ipyparallel makes names of variables of it; no other client waits for the answer.
        message_id = str(uuid.uuid4())
        self._request(
            message_id, call, rank, "apply_request", {}, metadata=metadata, buffers=buffers
        )

    def again(self, cell: Cell, rank: int, *, is_whole: bool, is_stopped: bool = False) -> None:
        """Send a rank its request again, or (not ``is_whole``) have it say again how it ended.

        One that ``is_stopped`` ends as a stopped cell does if it has not begun there.
        """
        with self._lock:
            sent = self._sent.get((cell.name, rank))
        if sent is None:  # another client's
            sent = _Request(self._engines[rank], "", {}, {}, _message_id(cell.name, rank), [])
        kind, content, metadata, buffers = sent.kind, sent.content, sent.metadata, sent.buffers
        if is_stopped and "phalanx" in metadata:
            metadata = {**metadata, "phalanx": {**metadata["phalanx"], "stopped": True}}
        if not is_whole:
            kind, content, buffers = "execute_request", {}, []
            metadata = {"phalanx": {"cell": cell.name, "again": True}}
        if kind:
            # Signed anew: a kernel takes no message twice that is the same to the last bit.
            self._channels.shell(sent.engine, kind, content, metadata, sent.message_id, buffers)

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
                engine, kind, content, metadata, message_id, buffers
            )
            if self._taken is not None:
                cell.events.put(self._taken)
        self._channels.shell(engine, kind, content, metadata, message_id, buffers)

    def adopt(self, cell: Cell) -> None:
        """Take what still comes for a cell that another client has sent."""
        with self._lock:
            for rank in cell.ranks:
                self._requests[_message_id(cell.name, rank)] = (cell, rank)

    def greet(self, greeting: Greeting, rank: int) -> None:
        """Tell a rank, busy or not, that a new client is here."""

        def register(message_id: str) -> None:
            with self._lock:
                self._requests[message_id] = (greeting, rank)

        self._channels.control(self._engines[rank], "phalanx_greet", {}, register)

    def forget(self, cell: Cell) -> None:
        """Drop what still comes for a cell that nobody waits for any more."""
        with self._lock:
            self._requests = {k: v for k, v in self._requests.items() if v[0] is not cell}
            self._sent = {k: v for k, v in self._sent.items() if k[0] != cell.name}

    def send_line(self, cell: str, index: int, entry: TypedLine) -> None:
        """Tell all ranks an entry of the cell's log."""
        content = {"cell": cell, "index": index, "entry": msgspec.to_builtins(entry)}
        self._to_all("phalanx_line", content)

    def refuse_line(self, cell: str, message: str) -> None:
        """Tell all ranks that nobody can be asked."""
        self._to_all("phalanx_line", {"cell": cell, "refusal": message})

    def interrupt_cell(self, cell: str, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""
        self._stop = cell, uuid.uuid4().hex
        self.interrupt_again(cell, ranks)

    def interrupt_again(self, cell: str, ranks: Iterable[int]) -> None:
        """Send the last interrupt again, which ranks that have heard of it leave alone."""
        named, stop = self._stop
        if named == cell:
            content = {"cell": cell, "stop": stop}
            for rank in ranks:
                self._channels.control(self._engines[rank], "phalanx_interrupt", content)

    def _ask(self, rank: int, kind: str, content: Message, register: Callable[[str], None]) -> None:
        self._channels.control(self._engines[rank], kind, content, register)

    def _to_all(self, kind: str, content: Message) -> None:
        for engine in self._engines:
            self._channels.control(engine, kind, content)

    def waiting(self) -> set[int]:
        """Ranks that wait for a person to type."""
        with self._lock:
            return {rank for cell, rank in self._requests.values() if rank in cell.waiting}

    def tell(self, event: Event) -> None:
        """Tell every cell that is under way."""
        with self._lock:
            if isinstance(event, TakenAway):
                self._taken = event
            cells = {id(cell): cell for cell, _ in self._requests.values()}
        for cell in cells.values():
            cell.events.put(event)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine of each rank as of now: another one is another process."""
        return tuple(self._engines)

    def on_replaced(self, rank: int, engine: str) -> None:
        """Send to a rank's new engine from now on; on the socket thread, as `on_lost`."""
        self._engines[rank] = engine
        self.help.on_replaced(rank)

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
        with self._lock:
            found = self._requests.get(message["parent_header"]["msg_id"])
        if found is None:
            if channel == "control":
                self.help.on_reply(message)
            return
        cell, rank = found
        if channel == "control":
            if isinstance(cell, Greeting):
                cell.on_control(rank, message)
        elif channel == "shell":
            cell.on_shell(rank, message)
        else:
            cell.on_iopub(rank, message)
