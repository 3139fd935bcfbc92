"""Capture a rank's output and record the messages that its kernel sends.

`RankOutput` records messages before they are sent. `Stream` replaces ipykernel's stdout and stderr.
A forked child has no connection to the client: it writes its output to descriptors 1 and 2, which
the rank reads.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TextIO

import zmq
from ipykernel.iostream import IOPubThread, OutStream

from .error_text import escape_surrogates
from .record import DescriptorCapture, OutputRecord, OutputThrottle
from .widgets import OutputWidgets

Message = dict[str, Any]


class PublishThread(IOPubThread):  # type: ignore[misc]
    """Publish a rank's output; ``subscribed`` is done once the controller has subscribed.

    What is published before is lost. Output goes out also after a cell has used up all descriptors:
    ipykernel would open a socket for each thread that prints, and pyzmq opens one for the first
    long message. Without descriptors threads ended, also the one that reads descriptor 1. Later
    output then filled the pipe and blocked for ever, and only half of a message was sent.
    """

    def __init__(self, socket: Any, *args: Any, **named: Any) -> None:
        self.subscribed: Future[None] = Future()
        super().__init__(socket, *args, **named)
        zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)  # opens what long messages need
        if socket.type != zmq.XPUB:  # older versions of ipykernel cannot see subscriptions
            self.subscribed.set_result(None)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Call a function in this thread, or at once after its end."""
        if self.thread.is_alive():
            self.io_loop.add_callback(f)
        else:
            f()

    def _handle_subscription(self, frames: Any) -> None:
        super()._handle_subscription(frames)
        if not self.subscribed.done():
            self.subscribed.set_result(None)


COUNTED_CELLS = 8
MESSAGE_NBYTES = 1024  # size of a message without its content

# Characters per message. A long text goes out in pieces, each sent before the next one is made. So
# a line of 100 MB needs its own memory only, not four copies (4 bytes a character).
PIECE = 1 << 20

# Header of the request to which output of this context belongs; None: ipykernel's default.
_OWNER: ContextVar[dict[str, Any] | None] = ContextVar("phalanx_output_owner", default=None)


class RankOutput:
    """Record, count and limit what a rank shows.

    Each message of ``session`` that shows output is recorded before it is sent. Its metadata get
    ``{"phalanx": {"end": ..., "sent": ...}}``: the position in the record after the message, and
    the total amount sent, for the flow control of ``throttle``. What ``widgets`` takes is not sent.
    """

    stdout: Stream
    stderr: Stream

    def __init__(self, session: Any, record: OutputRecord) -> None:
        self.throttle = OutputThrottle()
        self.widgets = OutputWidgets()
        self._record = record
        self._shown: Counter[Any] = Counter()  # messages of each of the last cells
        self._lock = threading.Lock()  # threads of a cell may outlive the cell
        self._pid = os.getpid()
        self._send, session.send = session.send, self._send_recorded

    def capture(self, stdout: Stream, stderr: Stream, stdout_fd: int, stderr_fd: int) -> None:
        """Also take output from these pipes, in the order of writing."""
        self.stdout, self.stderr = stdout, stderr
        stdout.other, stderr.other = stderr, stdout
        stdout.throttle = stderr.throttle = self.throttle
        self.throttle.never_in(stdout.pub_thread.thread.ident)
        stdout.capture(stdout_fd)
        stderr.capture(stderr_fd)

    def begin(self, *, has_page: bool) -> None:
        """Begin a cell; ``has_page``: the page of its notebook can draw widgets."""
        self.throttle.begin()
        self.widgets.is_on = has_page

    def end(self) -> None:
        """Send what the cell has written, before the notice of its end."""
        self.stdout.drain()
        self.stderr.drain()
        self.flush()
        self.throttle.end()

    def flush(self) -> None:
        """Flush stdout and stderr on the main thread.

        Flushing waits for the output thread. Only the main thread may do that safely.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for name, own in (("stdout", self.stdout), ("stderr", self.stderr)):
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001 - a user's stream; ipykernel flushes it, too
                setattr(sys, name, own)
            own.flush()

    def n_shown(self, request: Message) -> int:
        """Return how many messages with an ``"end"`` answer a request.

        The client compares the number with what has come: a broken connection may have lost some.
        """
        return self._shown[_parent_id(request)]

    def _send_recorded(
        self,
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,
        header: Any = None,
        metadata: Any = None,
    ) -> Any:
        is_made = not isinstance(msg_or_type, str)
        kind = msg_or_type["header"]["msg_type"] if is_made else msg_or_type
        said = msg_or_type["content"] if is_made else content
        if os.getpid() != self._pid:
            return _send_in_child(kind, said)
        request = _parent_id(msg_or_type.get("parent_header") if is_made else parent)
        if self.widgets.take(kind, said, request):
            return None
        ours: Message = {}
        if cost := _cost_of(kind, said):
            ours = {"sent": self.throttle.add(cost)}
            if (text := _text_of(kind, said)) and (end := self._record.append(text)) is not None:
                ours["end"] = end
        if ours and is_made:
            msg_or_type["metadata"] = {**msg_or_type["metadata"], "phalanx": ours}
        elif ours:
            metadata = {**(metadata or {}), "phalanx": ours}
        sent = self._send(
            stream, msg_or_type, content, parent, ident, buffers, track, header, metadata
        )
        if "end" in ours:  # only now: an end that counts it must not overtake it
            with self._lock:
                self._shown[request] += 1
                if len(self._shown) > COUNTED_CELLS:
                    del self._shown[next(iter(self._shown))]
        if "sent" in ours:
            self.throttle.wait()
        return sent


def _send_in_child(kind: str, content: Message) -> None:
    """Write a forked child's output; end the child with its cell.

    A child that ran on would be a second kernel with the same connections.
    """
    if kind in {"execute_reply", "apply_reply"}:
        os._exit(0 if content["status"] == "ok" else 1)
    text = _text_of(kind, content)
    _write_all(2 if kind == "error" or content.get("name") == "stderr" else 1, text)


def _write_all(fd: int, text: str) -> None:
    data = memoryview(text.encode(errors="replace"))
    while data:
        data = data[os.write(fd, data) :]


class _ChildLines:
    """Write text of a forked child to a descriptor, in whole lines.

    Lines of several children do not mix. A flush writes an unfinished line.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.RLock()
        self._unfinished = ""

    def write(self, text: str) -> None:
        """Write the lines that ``text`` ends; keep the rest."""
        with self._lock:
            whole, end, rest = (self._unfinished + text).rpartition("\n")
            self._unfinished = rest
            _write_all(self._fd, whole + end)

    def flush(self) -> None:
        with self._lock:
            text, self._unfinished = self._unfinished, ""
            _write_all(self._fd, text)


def _parent_id(parent: Message | None) -> Any:
    if not parent:
        return None
    return parent.get("header", parent).get("msg_id")


def _cost_of(kind: str, content: Message) -> int:
    """Estimate the memory in bytes of a waiting message; 0: shows nothing."""
    if kind == "stream":
        return MESSAGE_NBYTES + len(content["text"])
    if kind in {"display_data", "execute_result", "update_display_data"}:
        parts = content["data"].values()
        return MESSAGE_NBYTES + sum(len(part) for part in parts if isinstance(part, (str, bytes)))
    return MESSAGE_NBYTES if kind in {"error", "comm_open", "comm_msg"} else 0


def _text_of(kind: str, content: Message) -> str:
    """Return a message's content as text; a figure is only named."""
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join(content["traceback"]) + "\n"
    if kind not in {"display_data", "execute_result"}:
        return ""
    rich = [name for name in content["data"] if name != "text/plain" and "vnd.phalanx" not in name]
    text = str(content["data"].get("text/plain", ""))
    if kind == "execute_result":
        return f"Out: {text}\n"
    if rich:
        return f"<{rich[0]}: {text}>\n" if text else f"<{rich[0]}>\n"
    return f"{text}\n" if text else ""


def speak_for(header: dict[str, Any]) -> None:
    """Assign output written in this context from now on to this request."""
    _OWNER.set(header)


class BytesToText(io.BufferedIOBase):
    """Binary ``buffer`` of a text stream: decodes the bytes that are written.

    Bytes and text keep the order in which they were written. Invalid UTF-8 becomes ``U+FFFD``.
    """

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._text.write(self._decoder.decode(view.tobytes()))
        return view.nbytes

    def flush(self) -> None:
        self._text.flush()


class Stream(OutStream):  # type: ignore[misc]
    """Extend ipykernel's stream, without its own capture of descriptors.

    ipykernel's capture loses output at a cell's end. Output of the user's threads belongs to the
    cell that started them (`speak_for`). Output that was written to the descriptor, or by a thread
    pool, names no cell: it belongs to the last cell that is not the workspace's own.
    """

    def __init__(self, session: Any, pub_thread: Any, name: str) -> None:
        super().__init__(session, pub_thread, name, watchfd=False)
        self.buffer = BytesToText(self)
        self._last_cell: dict[str, Any] = {}
        self._capture: DescriptorCapture | None = None
        self._n_unsent = 0  # approximate: a count lost between threads only delays a flush
        self.throttle: OutputThrottle | None = None
        self.other: Stream | None = None  # stdout of stderr, and the reverse
        self._child_lines: _ChildLines | None = None  # in a forked child
        # New in each child: another thread may have held the parent's locks at the fork.
        os.register_at_fork(after_in_child=self._enter_child)

    def _enter_child(self) -> None:
        self._child_lines = _ChildLines(self.fileno())
        self._capture = None  # the parent reads the pipe

    def fileno(self) -> int:
        """Return the descriptor that a subprocess may write to."""
        return 2 if self.name == "stderr" else 1

    def capture(self, read_fd: int) -> None:
        self._capture = DescriptorCapture(read_fd, self._take_captured)

    def drain(self) -> None:
        """Take what was written to the descriptor so far."""
        if self._capture is not None:
            self._capture.drain()

    @property
    def parent_header(self) -> Any:
        """Return the header of the request to which current output belongs."""
        owner = _OWNER.get()
        return super().parent_header if owner is None else owner

    @parent_header.setter
    def parent_header(self, header: Any) -> None:
        OutStream.parent_header.fset(self, header)

    def set_parent(self, parent: Any) -> None:
        """Begin a request; one of the workspace's takes only main-thread output."""
        super().set_parent(parent)
        if _is_ours(parent):
            self._parent_header_global = self._last_cell
        else:
            self._last_cell = super().parent_header

    def _take_captured(self, text: str) -> None:
        before = _OWNER.set(self._last_cell)
        try:
            self._take(text)
        finally:
            _OWNER.reset(before)

    def write(self, string: Any) -> int | None:
        """Write text of any content and length."""
        if self._child_lines is not None and isinstance(string, str):
            self._child_lines.write(escape_surrogates(string))
            return len(string)
        # First send what was written to the descriptor earlier. Not in the output thread, because a
        # drain may wait for that thread.
        if threading.current_thread() is not getattr(self.pub_thread, "thread", None):
            self.drain()
        return self._take(string)

    def _take(self, string: Any) -> int | None:
        if not isinstance(string, str):
            refused: int | None = super().write(string)  # raises TypeError
            return refused
        text = escape_surrogates(string)
        for begin in range(0, len(text), PIECE):
            super().write(text[begin : begin + PIECE])
            self._n_unsent += min(PIECE, len(text) - begin)
            if self._n_unsent >= PIECE:
                self.flush()
            if self.throttle is not None:
                self.throttle.wait()
        return len(string)

    def flush(self) -> None:
        """Send what was written, here and before in the other stream."""
        if self._child_lines is not None:
            self._child_lines.flush()
            return
        self._n_unsent = 0
        if self.other is not None and self.other._n_unsent:
            self.other.flush()
        super().flush()


def _is_ours(request: Any) -> bool:
    """Whether a request is the workspace's own, not a user's cell."""
    if not request:
        return True
    ours = (request.get("metadata") or {}).get("phalanx")
    return ours is not None and (
        "task" in ours or request["header"]["msg_type"] != "execute_request"
    )
