"""Drives a real Jupyter kernel as a front end would: cells, typed lines, the stop button, death.

It knows jupyter_client and the messages of the protocol, nothing of phalanx.
"""

from __future__ import annotations

import os
import queue
import signal
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import zmq
from jupyter_client.manager import KernelManager

Typed = Callable[[str], str] | Iterable[str] | None


@dataclass
class Prompt:
    """A question that the kernel asked its front end, and what was typed."""

    text: str
    is_password: bool
    answer: str | None


@dataclass
class CellResult:
    """What a cell did: outputs in nbformat's form, prompts, how it ended."""

    status: str = "running"
    outputs: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    seconds: float = 0.0
    n_messages: int = 0

    def stream(self, name: str) -> str:
        """All that was printed to ``stdout`` or ``stderr``."""
        return "".join(o["text"] for o in self.outputs if o.get("name") == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    @property
    def error(self) -> str:
        """``Name: text`` of the error that ended the cell, or nothing."""
        errors = [o for o in self.outputs if o["output_type"] == "error"]
        return f"{errors[-1]['ename']}: {errors[-1]['evalue']}" if errors else ""

    @property
    def text(self) -> str:
        """Everything that a reader sees, as plain text in order."""
        parts = []
        for output in self.outputs:
            if output["output_type"] == "stream":
                parts.append(output["text"])
            elif output["output_type"] == "error":
                parts.append("\n".join(output["traceback"]) + "\n")
            else:
                parts.append(output["data"].get("text/plain", "") + "\n")
        return "".join(parts)

    def mimes(self) -> set[str]:
        """Kinds of the rich outputs."""
        return {kind for o in self.outputs for kind in o.get("data", {})}


class RunningCell:
    """A cell that was sent; feed on its messages until something is so, or until it has ended."""

    def __init__(self, driver: KernelDriver, message_id: str, stdin: Typed) -> None:
        self._driver = driver
        self._id = message_id
        self._started = time.monotonic()
        self._is_idle = self._has_reply = self._clears_next = False
        self._answer = _answerer(stdin)
        self.result_so_far = CellResult()
        driver.cells[message_id] = driver.ended[message_id] = self

    @property
    def is_done(self) -> bool:
        return self._is_idle and self._has_reply

    def until(self, predicate: Callable[[CellResult], bool], timeout: float = 30.0) -> CellResult:
        """Take messages until the predicate holds; `TimeoutError` or the cell's end fail."""
        self._pump(lambda: predicate(self.result_so_far), timeout)
        if not predicate(self.result_so_far):
            msg = f"the cell ended before that was so:\n{self.result_so_far.text}"
            raise AssertionError(msg)
        return self.result_so_far

    def result(self, timeout: float = 60.0) -> CellResult:
        """Wait for the cell's end."""
        self._pump(lambda: False, timeout)
        return self.result_so_far

    def until_late(
        self, predicate: Callable[[CellResult], bool], timeout: float = 30.0
    ) -> CellResult:
        """Take what comes for the cell after its end, until the predicate holds."""
        deadline = time.monotonic() + timeout
        while not predicate(self.result_so_far):
            if time.monotonic() > deadline:
                msg = f"that was not so within {timeout} s:\n{self.result_so_far.text}"
                raise TimeoutError(msg)
            self._driver.take(0.1)
        return self.result_so_far

    def _pump(self, is_enough: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_done and not is_enough():
            if time.monotonic() > deadline:
                msg = f"no end after {timeout} s; so far:\n{self.result_so_far.text}"
                raise TimeoutError(msg)
            # Asking costs a millisecond: only where nothing came.
            if not self._driver.take(0.1) and not self._driver.is_alive():
                msg = f"the kernel died; so far:\n{self.result_so_far.text}"
                raise ConnectionError(msg)

    def take(self, channel: str, kind: str, content: dict[str, Any]) -> None:
        """Note a message of this cell, and answer if it is a question."""
        result = self.result_so_far
        if channel == "shell" and kind == "execute_reply":
            self._has_reply = True
            result.status = content["status"]
            result.seconds = time.monotonic() - self._started
        elif channel == "stdin" and kind == "input_request":
            answer = self._answer(content["prompt"])
            result.prompts.append(Prompt(content["prompt"], content["password"], answer))
            if answer is not None:
                self._driver.type_line(answer)
        elif channel == "iopub":
            result.n_messages += 1
            self._take_output(kind, content)

    def _take_output(self, kind: str, content: dict[str, Any]) -> None:
        outputs = self.result_so_far.outputs
        if kind == "status":
            self._is_idle = content["execution_state"] == "idle"
            return
        if kind == "clear_output":
            self._clears_next = content["wait"]
            if not content["wait"]:
                outputs.clear()
            return
        if kind == "update_display_data":
            for output in outputs:
                if output.get("display_id") == content["transient"].get("display_id"):
                    output["data"] = content["data"]
            return
        if kind not in ("stream", "display_data", "execute_result", "error"):
            return
        if self._clears_next:
            outputs.clear()
            self._clears_next = False
        if kind == "stream" and outputs and outputs[-1].get("name") == content["name"]:
            outputs[-1]["text"] += content["text"]
            return
        output = {"output_type": kind, **content}
        transient = output.pop("transient", {})
        if "display_id" in transient:
            output["display_id"] = transient["display_id"]
        outputs.append(output)


class KernelDriver:
    r"""One kernel and the front end that talks to it; a context manager that leaves nothing.

    Examples
    --------
    >>> with KernelDriver() as kernel:
    ...     kernel.run("print(input('who? '))", stdin=["Ada"]).stdout
    'Ada\n'
    """

    open: ClassVar[weakref.WeakSet[KernelDriver]] = weakref.WeakSet()

    def __init__(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        command: list[str] | None = None,
        interrupt_mode: str = "signal",
        **env: str,
    ) -> None:
        self.models: dict[str, dict[str, Any]] = {}  # states of widgets by comm
        self.echoes: list[tuple[str, dict[str, Any]]] = []  # updates with what they answer
        self.said: list[tuple[str, dict[str, Any]]] = []  # on comms that are no widgets
        self.debug_events: list[dict[str, Any]] = []
        self.states: list[str] = []  # of the kernel, as a page shows them
        self._manager = KernelManager(kernel_name="python3")
        if command is not None:  # another kernel than that of this environment
            self._manager.kernel_spec.argv = command
        self._manager.kernel_spec.interrupt_mode = interrupt_mode
        self._manager.start_kernel(
            cwd=None if cwd is None else os.fspath(cwd), env={**os.environ, **env}
        )
        self._client = self._manager.blocking_client()
        try:
            self._client.start_channels()
            self._client.wait_for_ready(timeout=60)
        except BaseException:
            self.close()
            raise
        self.cells: dict[str, RunningCell] = {}
        # All that a test still has in hand: what comes late is theirs.
        self.ended: weakref.WeakValueDictionary[str, RunningCell] = weakref.WeakValueDictionary()
        self._poller = zmq.Poller()
        self._channels = {
            channel.socket: (name, channel)
            for name, channel in (
                ("stdin", self._client.stdin_channel),
                ("iopub", self._client.iopub_channel),
                ("shell", self._client.shell_channel),
            )
        }
        for socket in self._channels:
            self._poller.register(socket, zmq.POLLIN)
        self.open.add(self)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.pid)

    def is_alive(self) -> bool:
        return bool(self._manager.is_alive())

    def submit(
        self,
        code: str,
        *,
        stdin: Typed = None,
        has_stdin: bool = True,
        metadata: dict[str, Any] | None = None,
    ) -> RunningCell:
        """Send a cell; lines typed come from ``stdin``, a callable of the prompt or the lines.

        A prompt for which there is no line (a callable may return None) stays open. ``has_stdin``
        False: a front end, as nbclient is, that lets no cell ask. ``metadata``: what the front end says of the cell.
        """
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": has_stdin,
            "stop_on_error": False,
        }
        message = self._client.session.msg("execute_request", content, metadata=metadata)
        self._client.shell_channel.send(message)
        return RunningCell(self, message["header"]["msg_id"], stdin)

    def run(self, code: str, *, stdin: Typed = None, timeout: float = 60.0) -> CellResult:
        """Send a cell and wait for its end."""
        return self.submit(code, stdin=stdin).result(timeout)

    def reload(self) -> None:
        """Be another front end from now on, as a page is that was loaded anew."""
        self._client.session.session = uuid.uuid4().hex

    def type_line(self, line: str) -> None:
        """Answer the open prompt."""
        self._client.input(line)

    def complete(self, code: str, cursor: int | None = None, **how: Any) -> dict[str, Any]:
        """Press Tab in a cell (at its end): the content of the reply; see `ask` for ``how``."""
        cursor = len(code) if cursor is None else cursor
        return self.ask("complete_request", {"code": code, "cursor_pos": cursor}, **how)

    def inspect(
        self, code: str, cursor: int | None = None, detail: int = 0, **how: Any
    ) -> dict[str, Any]:
        """Press Shift-Tab in a cell (at its end): the content of the reply."""
        cursor = len(code) if cursor is None else cursor
        content = {"code": code, "cursor_pos": cursor, "detail_level": detail}
        return self.ask("inspect_request", content, **how)

    def ask(
        self, kind: str, content: dict[str, Any], *, channel: str = "shell", timeout: float = 20.0
    ) -> dict[str, Any]:
        """Send a request and return its reply's content.

        The kernel takes one on ``"control"`` while a cell runs; on ``"shell"`` after it.
        """
        message = self._client.session.msg(kind, content)
        asked = getattr(self._client, f"{channel}_channel")
        asked.send(message)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if asked.socket.poll(left * 1000):
                reply = asked.get_msg(timeout=0)
                sender = reply["parent_header"].get("msg_id")
                if sender == message["header"]["msg_id"]:
                    return dict(reply["content"])
                if (cell := self.cells.get(sender)) is not None:  # it ended meanwhile
                    cell.take(channel, reply["msg_type"], reply["content"])
        msg = f"no answer to a {kind} within {timeout} s"
        raise TimeoutError(msg)

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def stop_cells(self, seconds: float = 10.0) -> None:
        """Stop what still runs, as a failed test leaves it: it is not to fail those after it."""
        deadline = time.monotonic() + seconds
        while self.cells and time.monotonic() < deadline and self.is_alive():
            self.interrupt()
            while self.cells and time.monotonic() < deadline and self.take(1.0):
                pass

    def restart(self) -> None:
        """Restart the kernel as the front end's button does."""
        self._manager.restart_kernel(now=False)
        self.cells.clear()  # which nobody answers any more
        self._client.wait_for_ready(timeout=60)

    def kill(self) -> None:
        """SIGKILL, as the kernel of Linux does when memory is short."""
        os.kill(self.pid, signal.SIGKILL)

    def take(self, seconds: float) -> int:
        """Give cells their messages that are there, or come within ``seconds``: how many came."""
        n_taken = 0
        for channel, message in self.messages(seconds):
            n_taken += 1
            sender = message["parent_header"].get("msg_id")
            self._take_state(message["msg_type"], message["content"], sender)
            if (cell := self.cells.get(sender) or self.ended.get(sender)) is not None:
                cell.take(channel, message["msg_type"], message["content"])
                if cell.is_done:
                    self.cells.pop(sender, None)
        return n_taken

    def _take_state(self, kind: str, content: dict[str, Any], sender: str) -> None:
        """Keep the states of widgets and of the kernel, as a page does."""
        if kind == "status":
            self.states.append(content["execution_state"])
        elif kind == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"].get("state", {}))
        elif kind == "comm_close":
            self.models.pop(content["comm_id"], None)
        elif kind == "comm_msg" and content["data"].get("method") in {"update", "echo_update"}:
            self.models.setdefault(content["comm_id"], {}).update(content["data"]["state"])
            self.echoes.append((sender, content["data"]))
        elif kind == "comm_msg" and "method" not in content["data"]:
            self.said.append((content["comm_id"], content["data"]))
        elif kind == "debug_event":
            self.debug_events.append(content)

    def move(self, comm_id: str, **state: Any) -> str:
        """Change a widget, as somebody does on the page; return the message's id."""
        return self.say(comm_id, {"method": "update", "state": state, "buffer_paths": []})

    def say(self, comm_id: str, data: dict[str, Any]) -> str:
        """Send a message on a comm, as a page does; return the message's id."""
        message = self._client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self._client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def messages(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Messages that are there, or come within ``seconds``."""
        for socket, _ in self._poller.poll(seconds * 1000):
            name, channel = self._channels[socket]
            try:
                while True:
                    yield name, channel.get_msg(timeout=0)
            except queue.Empty:
                pass

    def close(self) -> None:
        """End the kernel and give back its sockets; idempotent."""
        self.open.discard(self)
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=not self.is_alive())
        self._manager.cleanup_resources()
        self._manager.context.destroy(linger=0)

    def __enter__(self) -> KernelDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answerer(stdin: Typed) -> Callable[[str], str | None]:
    if stdin is None:
        return lambda _: None
    if callable(stdin):
        return stdin
    lines = iter(stdin)
    return lambda _: next(lines, None)
