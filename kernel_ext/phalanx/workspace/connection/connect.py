"""Start or find a root supervisor, and list this user's workspaces.

`RootClient` speaks with the root of the returned `Connection`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import GRACE_S, BootOptions, WorkspaceRecord
from phalanx.supervisor import (
    FoundRoot,
    RootProcess,
    claim_name,
    find_record,
    kept_record,
    launch_root,
    list_records,
)

from ..options import StartOptions
from ..output.view import format_time
from .transport import ctrl_c

Mode = Literal["own", "take"]

STOP_S = 10.0  # a root that has not ended its ranks so long after their grace is killed


@dataclass(frozen=True, repr=False)
class Connection:
    """A running root and the keys of its clients."""

    name: str
    size: int
    root: RootProcess | FoundRoot
    public_key: bytes
    secret_key: bytes
    mode: Mode = "own"
    is_detached: bool = False  # the ranks outlive an orderly end of the client
    grace_s: float = GRACE_S

    def abandon(self) -> None:
        """Give up a root that cannot be used.

        A root that was started here ends.
        """
        if isinstance(self.root, RootProcess):
            self.root.close(timeout_s=0.0)
        else:
            self.root.let_go()


def start_root(options: StartOptions) -> Connection:
    """Start a root under a free name."""
    public_key, secret_key = zmq.curve_keypair()
    with claim_name(options.name, is_fixed=options.is_named) as claim:
        boot = BootOptions(
            options.world(claim.name),
            client_pid=os.getpid(),
            client_public_key=public_key,
            linger_s=options.linger_s,
            cwd=str(Path.cwd()),
            slow_operation_s=options.slow_operation_s,
            auto_restart=options.auto_restart,
            client_secret_key=secret_key,
            record_fd=claim.fd,
            record_path=str(claim.path),
            hosts=options.hosts,
            remote=options.remote,
            is_detached=options.is_detached,
            grace_s=options.grace_s,
        )
        try:
            root = launch_root(boot, pass_fds=[claim.fd])
        except BaseException:
            claim.give_up()
            raise
    return Connection(
        claim.name,
        options.ranks,
        root,
        public_key,
        secret_key,
        is_detached=options.is_detached,
        grace_s=options.grace_s,
    )


def connect_to(record: WorkspaceRecord, mode: Mode) -> Connection:
    """Connect to the root of a record."""
    return Connection(
        record.name,
        record.size,
        FoundRoot(record),
        record.client_public_key,
        record.client_secret_key,
        mode,
        record.is_detached,
        record.grace_s,
    )


def choose_record(name: str | None) -> WorkspaceRecord:
    """Return the record of the named workspace.

    Without a name, take the only workspace without an owner, or else the only workspace.

    Raises
    ------
    DistributedError
        There is no such workspace, it cannot be attached to, or several match; says so in one line.
    """
    record = _only_one() if name is None else find_record(name)
    if record is None:
        known = ", ".join(found.name for found in list_records())
        there = f"there are: {known}" if known else "none of yours runs here"
        msg = f"there is no workspace {name!r}; {there}"
        raise DistributedError(msg)
    if record.is_stopping:
        msg = f"the workspace {record.name!r} is being stopped"
        raise DistributedError(msg)
    if record.version != phalanx.__version__:
        msg = (
            f"the workspace {record.name!r} was started by phalanx {record.version}, this is "
            f"{phalanx.__version__}: attach with that version, or end it with phalanx stop "
            f"{record.name}"
        )
        raise DistributedError(msg)
    return record


def _only_one() -> WorkspaceRecord:
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
    return meant[0]


@dataclass(frozen=True)
class WorkspaceInfo:
    """A running workspace.

    ``owner_pid`` is the process that uses the workspace, 0 for none. The workspace ends in
    ``ends_in_s`` seconds unless a process attaches.
    """

    name: str
    size: int
    pid: int
    age_s: float
    owner_pid: int
    ends_in_s: float | None
    is_stopping: bool

    @property
    def state(self) -> str:
        """Describe in one line who uses the workspace."""
        if self.is_stopping:
            return "is being stopped"
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
        The folder of records belongs to another user, or is open to others.
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
    )


def free_workspaces() -> tuple[str, ...]:
    """Return the names of workspaces that `Workspace.attach` can take now."""
    with contextlib.suppress(DistributedError):  # the folder of records belongs to another user
        return tuple(
            info.name for info in list_workspaces() if not info.owner_pid and not info.is_stopping
        )
    return ()


def format_workspaces(infos: Sequence[WorkspaceInfo]) -> str:
    """Format workspaces as a table, or say that there are none."""
    if not infos:
        return "no workspaces"
    width = max(4, *(len(info.name) for info in infos))
    rows = [f"{'name':<{width}}  ranks  up for       state"]
    rows += [
        f"{info.name:<{width}}  {info.size:>5}  {format_time(info.age_s):<11}  {info.state}"
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
    record = find_record(name)
    if record is None:
        known = ", ".join(info.name for info in list_workspaces())
        msg = f"there is no workspace {name!r}; " + (
            f"there are: {known}" if known else "none runs"
        )
        raise DistributedError(msg)
    root = FoundRoot(record)
    with kept_record(record) as read, ctrl_c(lambda: root.signal(signal.SIGTERM)):
        root.signal(signal.SIGTERM)
        root.close(record.grace_s + timeout_s)
        return record.size, read().cut_off
