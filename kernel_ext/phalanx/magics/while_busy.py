"""Answer a page's questions while the notebook waits for its ranks.

A kernel handles the requests of its shell channel one after the other, and JupyterLab sends
completions there: without this they would be answered after the cell. A page that is loaded again
would not show the ranks until then.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from .patches import Patches

_REQUESTS = frozenset(
    {"complete_request", "inspect_request", "kernel_info_request", "comm_info_request"}
)


class AnswersWhileBusy:
    """Answers requests on another thread while our magics run.

    The notebook's own thread runs none of the user's code then, so that its names can be read.
    ``comm_id``: messages on this comm are handled as well.
    """

    def __init__(self, shell: Any, comm_id: str) -> None:
        self._kernel: Any = getattr(shell, "kernel", None)
        self._channel: Any = getattr(self._kernel, "shell_channel_thread", None)
        self._comm_id = comm_id
        self._one_at_a_time = threading.Lock()  # IPython's completer serves one caller
        # Held while a state of the kernel is published, and while `_cell` changes.
        self._publishing = threading.Lock()
        self._cell: dict[str, Any] | None = None  # the request that our magic serves

    def install(self, patches: Patches) -> None:
        """Take the kernel's requests of the shell channel."""
        if self._channel is not None:
            self._on_request(self._take)
            patches.callback(self._on_request, self._kernel.shell_channel_thread_main)

    def _on_request(self, take: Any) -> None:
        self._channel.io_loop.add_callback(self._kernel.shell_stream.on_recv, take, copy=False)

    @contextmanager
    def during_a_magic(self) -> Iterator[None]:
        """Answer within the context, which only the notebook's own thread enters."""
        before = self._cell
        self._set_cell(None if self._channel is None else self._kernel.get_parent("shell"))
        try:
            yield
        finally:
            self._set_cell(before)

    def _set_cell(self, cell: dict[str, Any] | None) -> None:
        with self._publishing:
            self._cell = cell

    def _take(self, message: Any) -> Any:
        """Answer a request, or leave it to the kernel.

        Runs on the thread of the shell channel.
        """
        if self._cell is not None:
            session = self._kernel.session
            idents, frames = session.feed_identities(message, copy=False)
            try:
                # Without the content a message may be read twice.
                request = session.deserialize(frames, content=False, copy=False)
                request["content"] = session.unpack(request["content"])
                is_ours = self._is_ours(request)
            except (ValueError, TypeError, KeyError, AttributeError):
                is_ours = False  # the kernel says what is wrong
            if is_ours:
                threading.Thread(
                    target=self._answer,
                    args=(message, idents, request),
                    name="phalanx-answers",
                    daemon=True,
                ).start()
                return None
        return self._kernel.shell_channel_thread_main(message)

    def _is_ours(self, request: dict[str, Any]) -> bool:
        kind = request["msg_type"]
        if kind == "comm_msg":
            return bool(request["content"].get("comm_id") == self._comm_id)
        return kind in _REQUESTS

    def _answer(self, message: Any, idents: Any, request: dict[str, Any]) -> None:
        kernel, reply, is_answered = self._kernel, _Reply(), False
        # An error is the kernel's to tell: it handles the request again after the cell.
        with self._one_at_a_time, suppress(Exception):
            said = kernel.shell_handlers[request["msg_type"]](reply, idents, request)
            if inspect.isawaitable(said):
                # Not asyncio.run: nest_asyncio replaces it, and fails outside of the main thread.
                with closing(asyncio.new_event_loop()) as loop:
                    loop.run_until_complete(said)
            is_answered = True
        with self._publishing:
            if self._cell is None or not is_answered:  # the cell has ended meanwhile
                self._channel.io_loop.add_callback(kernel.shell_channel_thread_main, message)
                return
            if reply.frames:
                send = kernel.shell_stream.send_multipart
                self._channel.io_loop.add_callback(send, reply.frames)
            # A front end waits for the end of its request, and takes the state for the kernel's:
            # the cell runs on.
            kernel._publish_status("idle", "shell", request)
            kernel._publish_status("busy", "shell", self._cell)


class _Reply:
    """Stands for the stream that a handler of the kernel replies to."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def send_multipart(self, frames: list[Any], **_: Any) -> None:
        self.frames = frames
