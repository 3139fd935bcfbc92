"""Where a workspace's root comes from: started anew, or found by its record.

It knows the supervisor's door and the keys; what is said to a root is `RootClient`'s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, WorkspaceRecord
from phalanx.supervisor import (
    FoundRoot,
    RootProcess,
    claim_name,
    find_record,
    launch_root,
    list_records,
)

from ._start import StartOptions

__all__ = ["Connection", "Mode", "choose_record", "connect_to", "start_root"]

Mode = Literal["own", "take", "watch"]


@dataclass(frozen=True, repr=False)
class Connection:
    """A root that runs, and the keys of its clients."""

    name: str
    size: int
    root: RootProcess | FoundRoot
    public_key: bytes
    secret_key: bytes
    mode: Mode = "own"

    def abandon(self) -> None:
        """Leave a root that cannot be used after all: one that was started here ends."""
        if isinstance(self.root, RootProcess):
            self.root.close(timeout_s=0.0)
        else:
            self.root.let_go()


def start_root(options: StartOptions) -> Connection:
    """Start a root under a name that is free."""
    public_key, secret_key = zmq.curve_keypair()
    with claim_name(options.name, is_fixed=options.is_named) as claim:
        boot = BootOptions(
            name=claim.name,
            ranks=options.ranks,
            client_pid=os.getpid(),
            client_public_key=public_key,
            transport=options.transport,
            linger_s=options.linger_s,
            silence_s=options.silence_s,
            cwd=str(Path.cwd()),
            quiet_s=options.quiet_s,
            auto_restart=options.auto_restart,
            client_secret_key=secret_key,
            record_fd=claim.fd,
            record_path=str(claim.path),
            hosts=options.hosts,
            remote=options.remote,
        )
        try:
            root = launch_root(boot, pass_fds=[claim.fd])
        except BaseException:
            claim.give_up()
            raise
    return Connection(claim.name, options.ranks, root, public_key, secret_key)


def connect_to(record: WorkspaceRecord, mode: Mode) -> Connection:
    """Reach a root by its record."""
    return Connection(
        record.name,
        record.size,
        FoundRoot(record),
        record.client_public_key,
        record.client_secret_key,
        mode,
    )


def choose_record(name: str | None) -> WorkspaceRecord:
    """Return the record of the workspace of this name; without one, of the one that is meant.

    Raises
    ------
    DistributedError
        There is none, it cannot be attached to, or several may be meant; in one line.
    """
    record = _only_one() if name is None else find_record(name)
    if record is None:
        known = ", ".join(found.name for found in list_records())
        there = f"there are: {known}" if known else "none of yours runs here"
        msg = f"there is no workspace {name!r}; {there}"
        raise DistributedError(msg)
    if record.kind != "cells":
        msg = f"{record.name!r} runs a script, not cells; its output is in {record.log_dir}"
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
    records = [record for record in list_records() if record.kind == "cells"]
    # Who says no name means the one that nobody has.
    meant = [r for r in records if not r.owner_pid and not r.is_stopping] or records
    if not meant:
        msg = "there is no workspace to attach to; start one with %distributed start -n 4"
        raise DistributedError(msg)
    if len(meant) > 1:
        names = ", ".join(record.name for record in meant)
        msg = f"there are several workspaces, say which: {names}"
        raise DistributedError(msg)
    return meant[0]
