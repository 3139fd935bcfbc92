"""Reach the private parts of running objects; no other file of the tests names them.

A test uses this only where no public name shows what it needs, such as the supervisor's process or a
message on its way. `tests/system/project/test_layers.py` refuses the names elsewhere.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

import msgspec
import pytest
from support.promise import PATIENCE_S

from phalanx.protocol import AskRoot, RootAnswered, RootRequest, pack_frame, read_frame
from phalanx.supervisor import find_root
from phalanx.workspace import Workspace
from phalanx.workspace.connection.root_client import RootClient
from phalanx.workspace.lifecycle import Lifecycle

# Expressions for a rank: the key of its world, and the addresses that it listens on.
WORLD_KEY_CODE = "world._current.spec.key.hex()"
WORLD_ADDRESSES_CODE = "world._current.spec.addresses"

Step = Literal["announce", "begin_cell", "execute", "receive", "send", "resend"]
# Where each step of a cell is: the object that takes it, and the name of the method.
_STEPS: Mapping[Step, Callable[[Any], tuple[Any, str]]] = {
    "announce": lambda ws: (ws._life.runner, "_announce"),
    "begin_cell": lambda ws: (ws._life.runner._root, "begin_cell"),
    "execute": lambda ws: (ws._life.runner._dispatch, "execute"),
    "receive": lambda ws: (ws._life.runner._dispatch._channels, "_on_message"),
    "resend": lambda ws: (ws._life.runner._dispatch, "resend"),
    "send": lambda ws: (ws._life.runner._dispatch._channels._thread, "send"),
}


def replace_step(
    patch: pytest.MonkeyPatch, ws: Workspace, step: Step, make: Callable[[Any], Any]
) -> None:
    """Replace one step of a workspace's cells by what ``make`` returns for the method that was there."""
    owner, name = _STEPS[step](ws)
    patch.setattr(owner, name, make(getattr(owner, name)))


def ask_root(name: str, question: RootRequest) -> Any:
    """Ask the root of a workspace without owning it, and return its answer."""
    root = find_root(name)
    assert root is not None, f"there is no workspace {name}"
    try:
        root.sock.settimeout(PATIENCE_S)
        root.sock.sendall(pack_frame(AskRoot(1, question)))
        return msgspec.msgpack.decode(read_frame(root.sock), type=RootAnswered).answer
    finally:
        root.abandon()


def root_client(ws: Any) -> RootClient:
    """Return the connection of a workspace to its root supervisor."""
    return ws._root


def root_pid(ws: Any) -> int:
    """Return the process id of a workspace's root supervisor."""
    return ws._root.pid


def root_pid_code(ws: str) -> str:
    """Return `root_pid` as an expression, for a script whose workspace has this name."""
    return f"{ws}._root.pid"


def begin_cell_code(ws: str) -> str:
    """Return an expression that begins a cell of ranks 0 and 1 and sends it to nobody."""
    return f"{ws}._root.begin_cell('lost', (0, 1))"


def root_process(ws: Any) -> subprocess.Popen[bytes]:
    """Return the root supervisor that this process has started."""
    return ws._root._root._popen


def n_unanswered(ws: Any) -> int:
    """Return how many requests to the root supervisor have no answer yet."""
    return len(ws._root._waiting)


def is_running(ws: Any) -> bool:
    """Whether a workspace runs a cell now."""
    return ws._life.runner.slot.is_taken


def engines(ws: Any) -> Any:
    """Return the engine of each rank, as cells are sent there."""
    return ws._life.runner.engines


def engine_of(ws: Any, rank: int) -> bytes:
    """Return the first frame of a message to a rank."""
    return ws._life.runner._dispatch._engines[rank].encode()


def has_replaced(ws: Any) -> bool:
    """Whether the root has told of replaced ranks that are not prepared yet."""
    return bool(ws._life.runner._dispatch.has_new_ranks)


def send_again(ws: Any, cell: Any, rank: int) -> None:
    """Send a copy of a cell's request to one rank."""
    ws._life.runner._dispatch.resend(cell, rank)


def root_client_of(root: Any) -> RootClient:
    """Make a client of a supervisor that the test plays, and that has ended."""
    client = RootClient.__new__(RootClient)
    client._root = root
    client._has_ended = threading.Event()
    client._has_ended.set()
    return client


def lose_callback_ends_code(ws: str) -> str:
    """Code for a kernel: lose what ranks tell of the ends of widgets' callbacks."""
    return (
        f"relay = {ws}._life.runner._dispatch.widgets\n"
        "take = relay.on_published\n"
        "relay.on_published = lambda rank, cell, message: (\n"
        "    message['header']['msg_type'] != 'status' and take(rank, cell, message))"
    )


def lifecycle(ws: Any) -> Lifecycle:
    """Return what starts, loses and closes a workspace."""
    return ws._life


def break_connection(ws: Any, error: Exception) -> None:
    """Have the thread of a workspace's sockets fail with this error."""

    class Broken:
        def poll(self) -> None:
            raise error

    ws._life.thread._poller = Broken()
    ws._life.thread._ring()


def shut_down(ws: Any) -> None:
    """Tell a workspace that the kernel shuts down, as the kernel's own thread does."""
    ws._life._on_shutdown()


def stopped_workspace() -> Workspace:
    """Make a workspace that was stopped, without ranks."""
    workspace = Workspace.__new__(Workspace)
    workspace._life = life = Lifecycle.__new__(Lifecycle)
    life._is_closed, life._why_closed = True, "this workspace was stopped"
    return workspace


def kept_progress(patch: pytest.MonkeyPatch, ws: Any) -> list[Any]:
    """Return a list that gets every progress of measured links, which the workspace is told as well."""
    kept: list[Any] = []
    keep = ws._links._note
    patch.setattr(ws._links, "_note", lambda n: (keep(n), kept.append(ws.links_progress)))
    return kept


def wait_for_answer(client: RootClient, answers: Any, timeout_s: float) -> Any:
    """Wait for the next answer in a queue, as a client of the root does."""
    return client._wait(answers, timeout_s, "it")


def registered_engine(client: Any, rank: int) -> str:
    """Return the name by which a client of ipyparallel knows the engine of a rank."""
    return client._engines[rank]


def unregister_again(client: Any, rank: int, engine: str) -> None:
    """Send a client of ipyparallel that a rank's former engine has gone."""
    content = {"id": rank, "uuid": engine}
    client._send(client._query_socket, "unregistration_request", content=content)


def is_closed(client: Any) -> bool:
    """Whether a client of ipyparallel has been closed."""
    return client._closed


def host_server(root: Any) -> Any:
    """Return the server of a root to which the supervisors of other hosts connect."""
    return root._host._server


def is_booted(root: Any) -> bool:
    """Whether all ranks of a root have been ready."""
    return root._is_booted


def dead_ranks(root: Any) -> Any:
    """Return the dead ranks that a root knows."""
    return root._world.dead


def root_end(root: Any) -> asyncio.Event:
    """Return the event that ends a root."""
    return root._over


def spawn_in(root: Any, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine among the tasks of a root."""
    root._tasks.spawn(work)


def abort_reason(root: Any, rank: int) -> Any:
    """Return what a root has told a rank of the end of its epoch, or None."""
    return root._host.abort_reason(rank)
