"""Serve JupyterLab's debugger panel in a rank.

pydevd, debugpy's debugger, stops and inspects the code. It speaks the Debug Adapter Protocol (DAP)
itself. It gets one end of a pair of sockets instead of a connection: debugpy's own adapter listens
on a port without authentication, and this process opens none.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any

import phalanx
from phalanx.protocol import MOST_DAP_NBYTES

from ..cell import cell_name

_MISSING = "debugpy is missing in this rank's environment: pip install debugpy"
_TAKEN = "another debugger is attached to this rank"
_TOO_LONG = "the answer has {:,} bytes, and at most {:,} are sent"


class VisualDebugger:
    """Passes DAP messages between the client and pydevd.

    The control thread calls `take`, the main thread `begin` and `end`. The first message loads
    pydevd and starts two threads, which stay. The main thread is traced only in cells, and only
    while a client is attached; other threads are not traced.
    """

    def __init__(self, shell: Any, send: Callable[[bytes], None]) -> None:
        self._shell = shell
        self._send = send
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_loaded = self._is_tracing = False
        self._stopped: set[int] = set()  # pydevd's threads that stand at a breakpoint
        self._cells: dict[str, str] = {}  # the notebook's path of each cell's file name
        self.is_attached = False

    @property
    def is_stopped(self) -> bool:
        """Whether the running cell stands at a breakpoint."""
        return bool(self._stopped)

    def take(self, message: bytes) -> None:
        """Take a DAP request; b"": the client has gone."""
        if not self._is_loaded:
            if not message:
                return
            self._is_loaded = True
            _start("phalanx-debugger", self._serve)
        self._inbox.put(message or _request("disconnect", terminateDebuggee=False))

    def begin(self) -> None:
        """Trace the main thread until `end`, if a client is attached."""
        if self.is_attached and not self._is_tracing:
            self._is_tracing = True
            # An interrupt at a breakpoint leaves pydevd's thread in the state to stop again.
            importlib.import_module("_pydevd_bundle.pydevd_api").PyDevdAPI().request_resume_thread(
                "*"
            )
            _debugpy().trace_this_thread(True)

    def end(self) -> None:
        """Stop to trace the main thread at the end of a cell."""
        if self._is_tracing:
            self._is_tracing = False
            _debugpy().trace_this_thread(False)
        self._stopped.clear()  # an interrupt ends a stop without an event

    def stop_at(self, frame: Any) -> bool:
        """Stop at a call of `breakpoint`; False if no client is attached."""
        if self._is_tracing:
            named = {"trace_only_current_thread": True, "notify_stdin": False}
            importlib.import_module("pydevd").settrace(stop_at_frame=frame, **named)
        return self._is_tracing

    def _serve(self) -> None:
        try:
            sock = _connect_pydevd()
        except Exception as error:  # noqa: BLE001 - the client shows it
            while True:
                self._answer_failed(json.loads(self._inbox.get()), str(error))
        _start("phalanx-debugger-answers", lambda: self._read(sock))
        while True:
            request = json.loads(self._inbox.get())
            for each in self._prepare(request):
                body = json.dumps(each).encode()
                sock.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def _prepare(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the requests for pydevd that do what this request asks."""
        command, arguments = request["command"], request.get("arguments") or {}
        if command == "attach":
            self.is_attached = True
            return [{**request, "arguments": {**arguments, **_only_users_code()}}]
        if command == "disconnect":
            self.is_attached = False
            self._stopped.clear()
        if command == "mapCell":
            return self._map_cell(request["seq"], **arguments)
        return [request]

    def _map_cell(self, seq: int, path: str, line: int, code: str) -> list[dict[str, Any]]:
        """Map a cell's file name to the notebook's path of the cell.

        The cell's code begins at ``line`` there. Two cells of the notebook may have the same code:
        the mapping of the other one ends.
        """
        lines = code.splitlines()
        n_empty = next(
            (at for at, text in enumerate(lines) if text.strip()), 0
        )  # IPython drops them
        name = cell_name(self._shell.transform_cell(code))
        before, self._cells[name] = self._cells.get(name, path), path
        mapping = {
            "line": line + n_empty,
            "endLine": line + len(lines),
            "runtimeLine": 1,
            "runtimeSource": {"path": name},
        }
        made = {"source": {"path": path}, "pydevdSourceMaps": [mapping]}
        ended = {"source": {"path": before}, "pydevdSourceMaps": []}
        requests = [
            {"type": "request", "command": "setPydevdSourceMap", "seq": seq, "arguments": made}
        ]
        if before != path:
            requests.insert(0, {**requests[0], "seq": 0, "arguments": ended})
        return requests

    def _read(self, sock: socket.socket) -> None:
        for body in _bodies(sock):
            message = json.loads(body)
            if message["type"] == "event":
                thread = int((message.get("body") or {}).get("threadId") or 0)
                if message["event"] == "stopped":
                    if not self._is_tracing:  # the cell was interrupted just now
                        continue
                    self._stopped.add(thread)
                elif message["event"] == "continued":
                    self._stopped.discard(thread)
                else:
                    continue
            if len(body) > MOST_DAP_NBYTES:
                self._answer_failed(
                    {"seq": message.get("request_seq", 0), "command": message.get("command", "")},
                    _TOO_LONG.format(len(body), MOST_DAP_NBYTES),
                )
            else:
                self._send(body)

    def _answer_failed(self, request: dict[str, Any], why: str) -> None:
        answer = {
            "type": "response",
            "seq": 0,
            "request_seq": request["seq"],
            "command": request["command"],
            "success": False,
            "message": why,
        }
        self._send(json.dumps(answer).encode())


def _start(name: str, run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run, name=name, daemon=True)
    _hide(thread)
    thread.start()


def _hide(thread: threading.Thread) -> None:
    """Make pydevd neither stop nor show a thread."""
    for name in ("pydev_do_not_trace", "is_pydev_daemon_thread"):
        setattr(thread, name, True)


def _debugpy() -> Any:
    return importlib.import_module("debugpy")


def _request(command: str, **arguments: Any) -> bytes:
    message = {"type": "request", "seq": 0, "command": command, "arguments": arguments}
    return json.dumps(message).encode()


def _connect_pydevd() -> socket.socket:
    """Load pydevd and return the other end of its connection."""
    hook = sys.breakpointhook
    # Else it warns of Python's frozen modules on stderr, and stops no thread that `begin` starts to
    # trace where Python has sys.monitoring (3.12).
    options = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYDEVD_USE_SYS_MONITORING": "0"}
    before = {name: os.environ.get(name) for name in options}
    os.environ.update(options)
    try:
        importlib.import_module("debugpy.server.api")
    except ImportError:
        raise ImportError(_MISSING) from None
    finally:
        sys.breakpointhook = hook  # pydevd replaces it
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    pydevd: Any = importlib.import_module("pydevd")
    if pydevd.get_global_debugger() is not None:
        raise RuntimeError(_TAKEN)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            _hide(thread)
    ours, theirs = socket.socketpair()
    connect, pydevd.start_client = pydevd.start_client, lambda *_: theirs
    try:
        pydevd.settrace(
            host="localhost",
            port=0,
            protocol="dap",
            suspend=False,
            trace_only_current_thread=True,
            wait_for_ready_to_run=False,
            notify_stdin=False,
        )
    finally:
        pydevd.start_client = connect
    # Else sys.settrace warns, which we and the user's other debuggers call.
    importlib.import_module("pydevd_tracing").restore_sys_set_trace_func()
    _debugpy().trace_this_thread(False)
    # A forked child has none of pydevd's threads, and would stand at a breakpoint for ever.
    os.register_at_fork(after_in_child=lambda: _debugpy().trace_this_thread(False))
    return ours


def _only_users_code() -> dict[str, Any]:
    """Return arguments of ``attach`` that hide libraries and our own code."""
    libraries = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    folders = [*libraries, *phalanx.__path__]
    rules = [{"path": f"{folder}/**", "include": False} for folder in folders]
    return {"justMyCode": False, "rules": rules, "stopAllThreadsOnSuspend": False}


def _bodies(sock: socket.socket) -> Iterator[bytes]:
    """Read the bodies of DAP messages until the end of the connection."""
    with sock.makefile("rb") as file:
        n_bytes = 0
        while line := file.readline():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                n_bytes = int(value)
            elif not line.strip():
                yield file.read(n_bytes)
