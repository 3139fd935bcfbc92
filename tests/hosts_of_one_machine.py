"""Worlds of several "hosts" on this machine: each a supervisor of its own, as on another machine."""

from __future__ import annotations

import psutil

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.workspace import Workspace

HOSTS = (HostPlan("a", 2, is_local=True), HostPlan("me@b", 2))
LOCAL = RemoteOptions(launcher="local")


def start(**options) -> Workspace:
    """Start ranks 0 and 1 here, 2 and 3 on b."""
    return Workspace.start(**{"hosts": HOSTS, "remote": LOCAL, "linger": 0, **options})


def family_of(ws) -> list[psutil.Process]:
    """Return all that a workspace has started, on all its hosts."""
    root = psutil.Process(ws._root.pid)
    return [root, *root.children(recursive=True)]


def host_of(ws, rank) -> psutil.Process:
    """Return the process of the supervisor of a rank's host."""
    return psutil.Process(ws.topology().ranks[rank].pid).parent()
