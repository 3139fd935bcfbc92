"""The user's workspaces on this machine, for a person to choose from, and to end.

It knows the supervisor's records, without their keys.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.errors import DistributedError
from phalanx.protocol import WorkspaceRecord
from phalanx.supervisor import FoundRoot, find_record, list_records

from ._status import format_time

__all__ = ["WorkspaceInfo", "format_workspaces", "list_workspaces", "stop_workspace"]

STOP_S = 10.0  # a script's ranks have their grace twice, and are killed then


@dataclass(frozen=True)
class WorkspaceInfo:
    """A workspace that runs: ranks for cells, or those of a detached ``phalanx launch``.

    ``owner_pid`` is the process that uses it, 0 for none; ``ends_in_s`` seconds from now it ends
    unless somebody attaches. ``log_dir`` is where a script's output goes.
    """

    name: str
    kind: Literal["cells", "script"]
    size: int
    pid: int
    age_s: float
    owner_pid: int
    ends_in_s: float | None
    is_stopping: bool
    log_dir: str

    @property
    def state(self) -> str:
        """One line on who has it."""
        if self.is_stopping:
            return "is being stopped"
        if self.kind == "script":
            return f"a script; output in {self.log_dir}"
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
        The folder of records is another user's, or open to others.
    """
    now_s = time.time()
    return tuple(_info(record, now_s) for record in list_records())


def _info(record: WorkspaceRecord, now_s: float) -> WorkspaceInfo:
    return WorkspaceInfo(
        name=record.name,
        kind=record.kind,
        size=record.size,
        pid=record.pid,
        age_s=max(0.0, now_s - record.started),
        owner_pid=record.owner_pid,
        ends_in_s=None if record.ends_at is None else max(0.0, record.ends_at - now_s),
        is_stopping=record.is_stopping,
        log_dir=record.log_dir,
    )


def format_workspaces(infos: Sequence[WorkspaceInfo]) -> str:
    """Write workspaces as a table, or that there are none."""
    if not infos:
        return "no workspaces"
    width = max(4, *(len(info.name) for info in infos))
    rows = [f"{'name':<{width}}  ranks  up for       state"]
    rows += [
        f"{info.name:<{width}}  {info.size:>5}  {format_time(info.age_s):<11}  {info.state}"
        for info in infos
    ]
    return "\n".join(rows)


def stop_workspace(name: str, timeout_s: float = STOP_S) -> None:
    """End a workspace of this user, whoever uses it, whichever version it is.

    Raises
    ------
    DistributedError
        There is none of this name.
    """
    record = find_record(name)
    if record is None:
        known = ", ".join(info.name for info in list_workspaces())
        msg = f"there is no workspace {name!r}; " + (
            f"there are: {known}" if known else "none runs"
        )
        raise DistributedError(msg)
    root = FoundRoot(record)
    root.signal(signal.SIGTERM)
    root.close(timeout_s)
