"""Find a root supervisor, and list this user's workspaces."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import (
    Hello,
    RootAnswered,
    Stopped,
    WorkspaceRecord,
    pack_frame,
    read_frame,
)
from phalanx.supervisor import RootProcess, find_root, list_records

from ..output.status_line import format_time
from .transport import ctrl_c

END_S = 1.0  # from the root's last message to its exit
STOP_S = 10.0  # a root that has not ended its ranks so long after their grace is killed


def attach_root(name: str | None, *, is_taking: bool) -> RootProcess:
    """Ask the root of a workspace to attach this process.

    Without a name, take the only workspace without an owner, or else the only workspace.

    Raises
    ------
    DistributedError
        There is no such workspace, it cannot be attached to, or several match; says so in one line.
    """
    root = _find(_only_one() if name is None else name)
    if problem := _problem(root.record):
        root.abandon()
        raise DistributedError(problem)
    with contextlib.suppress(ConnectionError):  # it has just ended, as its client finds
        root.sock.sendall(pack_frame(Hello(is_taking)))
    return root


def _find(name: str) -> RootProcess:
    root = find_root(name)
    if root is None:
        known = ", ".join(found.name for found in list_records())
        there = f"there are: {known}" if known else "none runs"
        msg = f"there is no workspace {name!r}; {there}"
        raise DistributedError(msg)
    return root


def _problem(record: WorkspaceRecord) -> str:
    """Return why no process can attach to a workspace; "": any can."""
    if record.is_silent:
        return (
            f"the supervisor of the workspace {record.name!r} (process {record.pid}) does not "
            f"answer; phalanx stop {record.name} ends it"
        )
    if record.is_stopping:
        return f"the workspace {record.name!r} is being stopped"
    if record.version != phalanx.__version__:
        return (
            f"the workspace {record.name!r} was started by phalanx "
            f"{record.version or 'of another version'}, this is {phalanx.__version__}: attach with that version, or end it with phalanx stop "
            f"{record.name}"
        )
    return ""


def _only_one() -> str:
    records = list_records()
    # Without a name a workspace without an owner is meant.
    meant = [r for r in records if not r.owner_pid and not r.is_stopping] or records
    if not meant:
        msg = "there is no workspace to attach to; start one with %distributed start -n 4"
        raise DistributedError(msg)
    if len(meant) > 1:
        names = ", ".join(record.name for record in meant)
        msg = f"there are several workspaces, say which: {names}"
        raise DistributedError(msg)
    return meant[0].name


@dataclass(frozen=True)
class WorkspaceInfo:
    """A running workspace.

    ``owner_pid`` is the process that uses the workspace, 0 for none. The workspace ends in
    ``ends_in_s`` seconds unless a process attaches. ``is_foreign``: another version of phalanx
    started it.
    """

    name: str
    size: int
    pid: int
    age_s: float
    owner_pid: int
    ends_in_s: float | None
    is_stopping: bool
    is_silent: bool = False
    is_foreign: bool = False

    @property
    def state(self) -> str:
        """Describe in one line who uses the workspace."""
        if self.is_silent:
            return "does not answer"
        if self.is_stopping:
            return "is being stopped"
        if self.is_foreign:
            return "of another version of phalanx"
        if self.owner_pid:
            return f"used by process {self.owner_pid}"
        if self.ends_in_s is None:
            return "free"
        return f"free; ends in {format_time(self.ends_in_s)} unless attached"


def list_workspaces() -> tuple[WorkspaceInfo, ...]:
    """Return this user's workspaces on this machine, by name.

    Raises
    ------
    DistributedError
        The folder of sockets belongs to another user, or is open to others.
    """
    now_s = time.time()
    return tuple(_info(record, now_s) for record in list_records())


def _info(record: WorkspaceRecord, now_s: float) -> WorkspaceInfo:
    return WorkspaceInfo(
        name=record.name,
        size=record.size,
        pid=record.pid,
        age_s=max(0.0, now_s - record.started),
        owner_pid=record.owner_pid,
        ends_in_s=None if record.ends_at is None else max(0.0, record.ends_at - now_s),
        is_stopping=record.is_stopping,
        is_silent=record.is_silent,
        is_foreign=record.version != phalanx.__version__,
    )


def free_workspaces() -> tuple[str, ...]:
    """Return the names of workspaces that `Workspace.attach` can take now."""
    with contextlib.suppress(DistributedError):  # the folder of sockets belongs to another user
        return tuple(info.name for info in list_workspaces() if info.state.startswith("free"))
    return ()


def format_workspaces(infos: Sequence[WorkspaceInfo]) -> str:
    """Format workspaces as a table, or say that there are none."""
    if not infos:
        return "no workspaces"
    width = max(4, *(len(info.name) for info in infos))
    rows = [f"{'name':<{width}}  ranks  up for       state"]
    rows += [
        f"{info.name:<{width}}  {info.size or '?':>5}  {format_time(info.age_s):<11}  {info.state}"
        for info in infos
    ]
    return "\n".join(rows)


def stop_workspace(name: str, timeout_s: float = STOP_S) -> tuple[int, str]:
    """End a workspace of this user.

    Returns its size and a text that names the ranks that did not end within their grace time; "": all did. The workspace
    may be in use, and may be of another version of phalanx. A Ctrl-C meanwhile kills the ranks.

    Raises
    ------
    DistributedError
        There is no workspace of this name.
    """
    root = _find(name)
    if not root.pid:
        root.abandon()
        msg = f"the workspace {name!r} runs in another container: stop it there"
        raise DistributedError(msg)
    root.sock.settimeout(root.record.grace_s + timeout_s)
    cut_off = ""
    with root.sock, ctrl_c(lambda: root.signal(signal.SIGTERM)):
        root.signal(signal.SIGTERM)
        with contextlib.suppress(OSError, ValueError):  # its end, silence, or another form
            while True:
                body = read_frame(root.sock)
                with contextlib.suppress(ValueError):  # another message
                    answer = msgspec.msgpack.decode(body, type=RootAnswered).answer
                    cut_off = answer.cut_off if isinstance(answer, Stopped) else cut_off
        root.close(END_S)
        return root.record.size, cut_off
