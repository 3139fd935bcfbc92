"""Worlds of several "hosts" on this machine: each a supervisor of its own, as on another machine."""

from __future__ import annotations

import threading

import psutil

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.workspace import Workspace

HOSTS = (HostPlan("a", 2, is_local=True), HostPlan("me@b", 2))
LOCAL = RemoteOptions(launcher="local")


def start(**options) -> Workspace:
    """Start ranks 0 and 1 here, 2 and 3 on b."""
    return Workspace.start(**{"hosts": HOSTS, "remote": LOCAL, "linger": 0, **options})


def family_of(ws) -> list[psutil.Process]:
    """All that a workspace has started, on all its hosts."""
    root = psutil.Process(ws._root.pid)
    return [root, *root.children(recursive=True)]


def host_of(ws, rank) -> psutil.Process:
    """The process of the supervisor of a rank's host."""
    return psutil.Process(ws.topology().ranks[rank].pid).parent()


class Cell(threading.Thread):
    """A cell that runs meanwhile; `end` is its results, or the error that it raised."""

    def __init__(self, ws, code, *, timeout_s=20.0):
        super().__init__()
        self._ws, self._code, self._timeout_s = ws, code, timeout_s
        self._end = None
        self.start()

    def run(self):
        try:
            self._end = self._ws.run(self._code)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self._end = error

    def end(self):
        self.join(self._timeout_s)
        assert not self.is_alive(), self._ws.stacks()
        return self._end
