"""Make the widgets of ranks live in the notebook.

A widget's model lives in its rank; the page knows only the notebook's kernel. `WidgetRelay` passes
comm messages on, both ways, under the comm's own id. Messages from a rank go out as messages of the
notebook's kernel. Each comm has a `RankComm` in that kernel, which receives what the page sends.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.session import extract_header

from phalanx.protocol import CALLBACK

from .transport import Message

COMM_KINDS = frozenset({"comm_open", "comm_msg", "comm_close"})
# Messages from the page that wait for a busy rank, for each comm. Updates are merged into one, so
# only clicks and the like can be so many.
MOST_WAITING = 256
KEPT_REQUESTS = 256  # the last messages to ranks: what their callbacks show later belongs to them
_WIDGET_TARGET = "jupyter.widget"

Send = Callable[[int, str, Message, str, list[Any]], None]
Tell = Callable[[int, str, str], None]


def notebook_kernel() -> Any:
    """Return this process's notebook kernel, or None."""
    module = sys.modules.get("ipykernel.kernelapp")
    if module is None or not module.IPKernelApp.initialized():
        return None
    return getattr(module.IPKernelApp.instance(), "kernel", None)


@dataclass
class _Request:
    """A message from the page to a rank, or several as one.

    The page expects one answer for each name: to the last message that changed it. That is the
    message of ``header``, or for the names in ``earlier`` another one.
    """

    kind: str
    content: Message
    buffers: list[Any]
    header: Message
    earlier: dict[str, Message] = field(default_factory=dict)

    def state(self) -> Message | None:
        """Return the state that it updates, with buffers; None for no update."""
        data = self.content.get("data") or {}
        return _state_of(data, self.buffers) if data.get("method") == "update" else None

    def merged_into(self, waiting: _Request) -> _Request | None:
        """Return one update of both states; None if one is no update."""
        old, new = waiting.state(), self.state()
        if old is None or new is None:
            return None
        earlier = {
            name: waiting.earlier.get(name, waiting.header) for name in old.keys() - new.keys()
        }
        data, buffers = _packed_state(self.content["data"], old | new)
        return _Request(self.kind, {**self.content, "data": data}, buffers, self.header, earlier)


def _state_of(data: Message, buffers: Any) -> Message | None:
    """Copy the state, with its buffers, of a widget's message."""
    state = data.get("state")
    if not isinstance(state, dict):
        return None
    paths = data.get("buffer_paths") or []
    state = deepcopy(state) if paths else dict(state)  # buffers may go deep into it
    widget_module()._put_buffers(state, paths, buffers or [])
    return state


def _packed_state(data: Message, state: Message) -> tuple[Message, list[Any]]:
    """Return a message's data with another state, and its buffers."""
    plain, paths, buffers = widget_module()._remove_buffers(state)
    return {**data, "state": plain, "buffer_paths": paths}, buffers


class RankComm:
    """Stand for a rank's comm in the notebook's kernel.

    The kernel's comm manager calls the handlers. One message at a time is with the rank. Later ones
    wait, and an update is merged into one that waits, so that a slider cannot flood a busy rank.

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
        self.waiting: deque[_Request] = deque()
        self.has_warned = False  # that messages are dropped
        self._relay = relay

    @property
    def is_widget(self) -> bool:
        """Whether a widget of ipywidgets is at its ends."""
        return self.target_name == _WIDGET_TARGET

    def handle_msg(self, message: Message) -> None:
        self._relay.send(self, message)

    def handle_close(self, message: Message) -> None:
        """Free a comm that the page closed, and tell the rank."""
        self._relay.send(self, message)
        self._relay.forget([self])

    def put(self, request: _Request) -> bool:
        """Add a message to those that wait; updates become one.

        Return whether too many wait. Then the oldest that is no update was dropped.
        """
        self.waiting.append(request)
        self._merge(len(self.waiting) - 1)
        if len(self.waiting) <= MOST_WAITING:
            return False
        at = next((at for at, its in enumerate(self.waiting) if its.state() is None), 0)
        del self.waiting[at]
        self._merge(at)
        return True

    def _merge(self, at: int) -> None:
        """Merge a waiting message with the one before, if both are updates."""
        if self.is_widget and at > 0:
            merged = self.waiting[at].merged_into(self.waiting[at - 1])
            if merged is not None:
                self.waiting[at - 1] = merged
                del self.waiting[at]

    def keep_state(self, message: Message) -> None:
        """Keep what a rank's message says of the widget's state."""
        state = _state_of(message["content"].get("data") or {}, message["buffers"])
        self._state.update(state or {})

    def get_state(self, *_args: Any, **_named: Any) -> Message:
        """Return the widget's last state, as `ipywidgets.Widget.get_state` does."""
        return self._state

    def _get_embed_state(self, drop_defaults: bool = False) -> Message:
        embedded: Message = widget_module().Widget._get_embed_state(self, drop_defaults)
        return embedded

    def close(self, *_args: Any, **_named: Any) -> None:
        """Do nothing: the rank closes its comm."""


class WidgetRelay:
    """Passes the comm messages of all ranks of a workspace on.

    The socket thread calls `on_published`, `on_passed` and `on_lost`; the kernel's threads for
    requests call `send`. Without a notebook's kernel nothing is passed on, and `is_live` is False.
    ``send`` sends a shell message to a rank; ``tell`` shows a line below a cell.
    """

    def __init__(self, send: Send, tell: Tell) -> None:
        self._send = send
        self._tell = tell
        self._kernel = notebook_kernel()
        self.is_live = self._kernel is not None
        self._lock = threading.Lock()
        self._comms: dict[str, RankComm] = {}
        self._sent: dict[RankComm, int] = {}  # number of the message that is with the rank
        # The last requests, by number. With the prefix no two clients of a workspace give one id.
        self._requests: dict[int, tuple[RankComm, _Request]] = {}
        self._prefix = f"{CALLBACK}{uuid.uuid4().hex[:8]}-"
        self._numbers = itertools.count(1)
        self.newest = 0  # number of the last message to a rank, for `on_passed`

    def _message_id(self, comm: RankComm) -> str:
        return f"{self._prefix}{self._sent[comm]}#{comm.rank}"

    def _number(self, message_id: str) -> int:
        """Return the number of our message; 0 for another message."""
        number = message_id.removeprefix(self._prefix).partition("#")[0]
        return int(number) if number.isdecimal() else 0

    def cell_of(self, message_id: str) -> str:
        """Return the cell below which a callback's output is shown."""
        with self._lock:
            found = self._requests.get(self._number(message_id))
        return "" if found is None else found[0].cell

    def running(self) -> dict[int, str]:
        """Return the oldest message that each busy rank has not handled."""
        with self._lock:
            busy = sorted(self._sent, key=lambda comm: -self._sent[comm])
            return {comm.rank: self._message_id(comm) for comm in busy}

    def on_published(self, rank: int, cell: str, message: Message) -> None:
        """Take a rank's comm message, or the end of a callback."""
        kind, content = message["header"]["msg_type"], message["content"]
        cause = message["parent_header"].get("msg_id", "")
        if kind == "status":
            if content["execution_state"] == "idle" and cause.startswith(self._prefix):
                self.on_passed(rank, self._number(cause))
            return
        if self._kernel is None:
            return
        comm_id = content["comm_id"]
        with self._lock:
            if kind == "comm_open":
                comm = RankComm(self, comm_id, content.get("target_name", ""), rank, cell)
                self._comms[comm_id] = self._kernel.comm_manager.comms[comm_id] = comm
                if comm.is_widget:
                    widget_module()._instances[comm_id] = comm
            elif comm_id not in self._comms:
                return  # made before this notebook was here, or closed
            comm = self._comms[comm_id]
            sender, request = self._requests.get(self._number(cause), (None, None))
            if comm.is_widget:
                comm.keep_state(message)
            if kind == "comm_close":
                comm.waiting.clear()
        if kind == "comm_close":
            self.forget([comm])
        is_echo = (content.get("data") or {}).get("method") == "echo_update"
        if request is not None and sender is comm and is_echo and request.earlier:
            self._echo(request, message)
        else:
            parent = None if request is None else request.header
            self._publish(kind, content, parent, message.get("metadata"), message["buffers"])

    def _echo(self, request: _Request, message: Message) -> None:
        """Answer each of the page's messages that were merged into one."""
        content = message["content"]
        state = _state_of(content.get("data") or {}, message["buffers"]) or {}
        for header in (request.header, *request.earlier.values()):
            of_this = {
                name: state.pop(name)
                for name in list(state)
                if request.earlier.get(name, request.header) is header
            }
            if of_this:
                data, buffers = _packed_state(content.get("data") or {}, of_this)
                content = {**content, "data": data}
                self._publish("comm_msg", content, header, message.get("metadata"), buffers)

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
        request = _Request(
            message["header"]["msg_type"],
            message["content"],
            message.get("buffers") or [],
            extract_header(message),
        )
        with self._lock:
            if comm.comm_id not in self._comms:
                return
            is_first_lost = comm.put(request) and not comm.has_warned
            ready = [] if comm in self._sent else [self._take_next(comm)]
        if is_first_lost:
            comm.has_warned = True
            text = (
                f"rank {comm.rank} is busy: more than {MOST_WAITING} messages wait for one of its "
                "widgets, and the oldest clicks are dropped"
            )
            self._tell(comm.rank, comm.cell, f"phalanx: {text}\n")
        self._send_all(ready)

    def _take_next(self, comm: RankComm) -> tuple[RankComm, str, _Request]:
        """Take the next waiting message to be with the rank."""
        request = comm.waiting.popleft()
        self._sent[comm] = self.newest = next(self._numbers)
        self._requests[self.newest] = comm, request
        if len(self._requests) > KEPT_REQUESTS:
            del self._requests[next(iter(self._requests))]
        return comm, self._message_id(comm), request

    def _send_all(self, ready: Iterable[tuple[RankComm, str, _Request]]) -> None:
        for comm, message_id, its in ready:
            self._send(comm.rank, its.kind, its.content, message_id, its.buffers)

    def on_passed(self, rank: int, number: int) -> None:
        """Take that a rank has handled all messages up to this one.

        It handles its requests in order. So the end of a later one says so too, where the end of a
        callback was lost on its way.
        """
        ready = []
        with self._lock:
            for comm, sent in [*self._sent.items()]:
                if comm.rank != rank or sent > number:
                    continue
                del self._sent[comm]
                if comm.waiting:
                    ready.append(self._take_next(comm))
        self._send_all(ready)

    def on_lost(self, rank: int) -> None:
        """Disable the widgets of a dead rank, and forget its comms."""
        self._retire([comm for comm in list(self._comms.values()) if comm.rank == rank])
        with self._lock:
            self._sent = {comm: sent for comm, sent in self._sent.items() if comm.rank != rank}

    def close(self) -> None:
        """Disable all widgets and forget all comms; the ranks keep theirs."""
        self._retire(list(self._comms.values()))

    def _retire(self, comms: list[RankComm]) -> None:
        """Forget comms; their widgets stay on the page with their last state.

        A `comm_close` would remove them from the page, plots included. That is more than what the
        end of a plain kernel does. What a person could move is disabled, as nobody answers.
        """
        self.forget(comms)
        for comm in comms:
            if not comm.is_widget:
                self._publish("comm_close", {"comm_id": comm.comm_id, "data": {}}, None, None, None)
            elif comm.get_state().get("disabled") is False:
                data = {"method": "update", "state": {"disabled": True}, "buffer_paths": []}
                content = {"comm_id": comm.comm_id, "data": data}
                self._publish("comm_msg", content, None, None, None)

    def forget(self, comms: Iterable[RankComm]) -> None:
        """Remove comms from all tables; idempotent."""
        with self._lock:
            for comm in comms:
                self._comms.pop(comm.comm_id, None)
                self._kernel.comm_manager.comms.pop(comm.comm_id, None)
                widget_module()._instances.pop(comm.comm_id, None)


def widget_module() -> Any:
    """Return the module of ipywidgets that knows the widgets of a kernel."""
    return importlib.import_module("ipywidgets.widgets.widget")


def is_comm(message_id: str) -> bool:
    """Whether a request was a message from the page to a comm."""
    return message_id.startswith(CALLBACK)
