"""Make the widgets of ranks live in the notebook.

A widget's model lives in its rank; the page knows only the notebook's kernel. `WidgetRelay` passes
comm messages on, both ways, under the comm's own id. Messages from a rank go out as messages of the
notebook's kernel. Each comm has a `RankComm` in that kernel, which receives what the page sends.
"""

from __future__ import annotations

import base64
import importlib
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from jupyter_client.session import extract_header

from ..connection.transport import Message

COMM_KINDS = frozenset({"comm_open", "comm_msg", "comm_close"})
# Messages from the page that wait for a busy rank, for each comm. Moves of a slider are merged.
MOST_WAITING = 256
_PREFIX = "comm-"
_WIDGET_TARGET = "jupyter.widget"

Send = Callable[[int, str, Message, str, list[Any]], None]


def notebook_kernel() -> Any:
    """Return this process's notebook kernel, or None."""
    module = sys.modules.get("ipykernel.kernelapp")
    if module is None or not module.IPKernelApp.initialized():
        return None
    return getattr(module.IPKernelApp.instance(), "kernel", None)


class RankComm:
    """Stand for a rank's comm in the notebook's kernel.

    The kernel's comm manager calls the handlers. One message at a time is with the rank. Later ones
    wait, and an update replaces the one that waits, so that a slider cannot flood a busy rank.

    ipywidgets counts it among the kernel's widgets. So a page that is loaded again, or an export,
    gets the widget's last state, also while the rank is busy.
    """

    primary = False
    _model_name = property(lambda self: self._state.get("_model_name"))
    _model_module = property(lambda self: self._state.get("_model_module"))
    _model_module_version = property(lambda self: self._state.get("_model_module_version"))

    def __init__(self, relay: WidgetRelay, comm_id: str, target: str, rank: int, cell: str) -> None:
        self.comm_id = self.model_id = comm_id
        self._state: Message = {}
        self.target_name = target
        self.rank = rank
        self.cell = cell  # the cell that opened it: output of its callbacks belongs there
        self.is_busy = False
        self.waiting: deque[Message] = deque()
        self._relay = relay

    def handle_msg(self, message: Message) -> None:
        """Pass a message from the page to the rank."""
        self._relay.send(self, message)

    def handle_close(self, message: Message) -> None:
        """Tell the rank that the page has closed the comm."""
        self._relay.send(self, message)

    def keep_state(self, message: Message) -> None:
        """Keep what a rank's message says of the widget's state."""
        data = message["content"].get("data") or {}
        state = data.get("state")
        if isinstance(state, dict):
            state = dict(state)
            widget_module()._put_buffers(state, data.get("buffer_paths") or [], message["buffers"])
            self._state.update(state)

    def get_state(self, *_args: Any, **_named: Any) -> Message:
        """Return the widget's last state, as `ipywidgets.Widget.get_state` does."""
        return self._state

    def _get_embed_state(self, drop_defaults: bool = False) -> Message:
        state, paths, buffers = widget_module()._remove_buffers(self._state)
        embedded = {
            "model_name": self._model_name,
            "model_module": self._model_module,
            "model_module_version": self._model_module_version,
            "state": state,
        }
        if buffers:
            data = [base64.standard_b64encode(its).decode() for its in buffers]
            embedded["buffers"] = [
                {"encoding": "base64", "path": path, "data": its}
                for path, its in zip(paths, data, strict=True)
            ]
        return embedded

    def close(self, *_args: Any, **_named: Any) -> None:
        """Do nothing: the rank closes its comm."""


class WidgetRelay:
    """Passes the comm messages of all ranks of a workspace on.

    The socket thread calls `on_published` and `on_lost`; the kernel's main thread calls `send`.
    Without a notebook's kernel nothing is passed on, and `is_live` is False.

    Parameters
    ----------
    send : callable
        Sends a shell message to a rank: ``(rank, kind, content, message id, buffers)``.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._kernel = notebook_kernel()
        self._lock = threading.Lock()
        self._comms: dict[str, RankComm] = {}
        # By message id: the comm and the header of the page's message that the rank handles.
        self._handled: dict[str, tuple[RankComm, Message]] = {}
        self._numbers = itertools.count(1)

    @property
    def is_live(self) -> bool:
        """Whether a page can show widgets."""
        return self._kernel is not None

    def cell_of(self, message_id: str) -> str:
        """Return the cell below which a callback's output is shown."""
        with self._lock:
            found = self._handled.get(message_id)
        return "" if found is None else found[0].cell

    def on_published(self, rank: int, cell: str, message: Message) -> None:
        """Take a rank's comm message, or the end of a callback."""
        kind, content = message["header"]["msg_type"], message["content"]
        cause = message["parent_header"].get("msg_id", "")
        if kind == "status":
            if content["execution_state"] == "idle":
                self._on_handled(cause)
            return
        if self._kernel is None:
            return
        comm_id = content["comm_id"]
        with self._lock:
            if kind == "comm_open":
                comm = RankComm(self, comm_id, content.get("target_name", ""), rank, cell)
                self._comms[comm_id] = self._kernel.comm_manager.comms[comm_id] = comm
                if comm.target_name == _WIDGET_TARGET:
                    widget_module()._instances[comm_id] = comm
            elif comm_id not in self._comms:
                return  # made before this notebook was here
            _, parent = self._handled.get(cause, (None, None))
            if self._comms[comm_id].target_name == _WIDGET_TARGET:
                self._comms[comm_id].keep_state(message)
        if kind == "comm_close":
            self._forget([comm_id])
        self._publish(kind, content, parent, message.get("metadata"), message["buffers"])

    def _publish(
        self, kind: str, content: Message, parent: Message | None, metadata: Any, buffers: Any
    ) -> None:
        kernel = self._kernel
        # A page waits for the echo of its own message: it names that message.
        header = parent or extract_header(kernel.get_parent("shell"))
        ours = {key: value for key, value in (metadata or {}).items() if key != "phalanx"}
        kernel.session.send(
            kernel.iopub_socket,
            kind,
            content,
            parent=header,
            metadata=ours,
            buffers=buffers,
            ident=f"comm-{content['comm_id']}".encode(),
        )

    def send(self, comm: RankComm, message: Message) -> None:
        """Send the page's message to the rank, after those that wait."""
        with self._lock:
            if comm.is_busy:
                _add_waiting(comm.waiting, message)
                return
            comm.is_busy = True
        self._send_now(comm, message)

    def _send_now(self, comm: RankComm, message: Message) -> None:
        message_id = f"{_PREFIX}{next(self._numbers)}#{comm.rank}"
        with self._lock:
            self._handled[message_id] = comm, extract_header(message)
        kind = message["header"]["msg_type"]
        self._send(comm.rank, kind, message["content"], message_id, message.get("buffers") or [])

    def _on_handled(self, message_id: str) -> None:
        with self._lock:
            comm, _ = self._handled.pop(message_id, (None, None))
            if comm is None:
                return
            comm.is_busy = bool(comm.waiting)
            following = comm.waiting.popleft() if comm.waiting else None
        if following is not None:
            self._send_now(comm, following)

    def on_lost(self, rank: int) -> None:
        """Close the comms of a dead rank on the page."""
        with self._lock:
            ids = [comm_id for comm_id, comm in self._comms.items() if comm.rank == rank]
        self._close(ids)

    def close(self) -> None:
        """Close all comms on the page; the ranks keep theirs."""
        self._close(list(self._comms))

    def _close(self, ids: Iterable[str]) -> None:
        ids = list(ids)
        self._forget(ids)
        for comm_id in ids:
            self._publish("comm_close", {"comm_id": comm_id, "data": {}}, None, None, None)

    def _forget(self, ids: Iterable[str]) -> None:
        with self._lock:
            gone = {comm_id for comm_id in ids if self._comms.pop(comm_id, None) is not None}
            for comm_id in gone:
                self._kernel.comm_manager.comms.pop(comm_id, None)
                widget_module()._instances.pop(comm_id, None)
            self._handled = {
                key: value for key, value in self._handled.items() if value[0].comm_id not in gone
            }


def widget_module() -> Any:
    """Return the module of ipywidgets that knows the widgets of a kernel."""
    return importlib.import_module("ipywidgets.widgets.widget")


def is_comm(message_id: str) -> bool:
    """Whether a request was a message from the page to a comm."""
    return message_id.startswith(_PREFIX)


def _state_of(message: Message) -> Any:
    """Return the state that a message updates; None for any other message."""
    data = message["content"].get("data") or {}
    is_update = data.get("method") == "update" and not message.get("buffers")
    return data.get("state") if is_update else None


def _add_waiting(waiting: deque[Message], message: Message) -> None:
    """Add a message, or replace the last waiting update by it.

    Only an update of the same names is replaced: the page expects an answer to its last message for
    each name.
    """
    state = _state_of(message)
    last = _state_of(waiting[-1]) if waiting else None
    if state is not None and last is not None and last.keys() <= state.keys():
        waiting[-1] = message
        return
    waiting.append(message)
    if len(waiting) > MOST_WAITING:
        waiting.popleft()
