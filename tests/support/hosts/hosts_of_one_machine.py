"""Worlds of several "hosts" on this machine: each a supervisor of its own, as on another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from support.inside import root_pid

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.workspace import Workspace

HOSTS = (HostPlan("a", 2, is_local=True), HostPlan("me@b", 2))
LOCAL = RemoteOptions(launcher="local")


def start(**options) -> Workspace:
    """Start ranks 0 and 1 here, 2 and 3 on b."""
    return Workspace.start(**{"hosts": HOSTS, "remote": LOCAL, "linger": 0, **options})


# The versions of a supervisor are changed where it looks them up; its ranks run this very Python.
OTHER_NUMPY = """#!/bin/sh
if [ "$2" != phalanx.supervisor ]; then exec {python} "$@"; fi
exec {python} -c "
import runpy
from importlib import metadata
version = metadata.version
metadata.version = lambda name: '1.2.3' if name == 'numpy' else version(name)
runpy.run_module('phalanx.supervisor', run_name='__main__', alter_sys=True)
" host
"""


def python_of_other_numpy(folder: Path) -> str:
    """Make a Python for a host whose supervisor says that numpy is 1.2.3 there."""
    path = folder / "other_numpy"
    path.write_text(OTHER_NUMPY.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def family_of(ws) -> list[psutil.Process]:
    """Return all that a workspace has started, on all its hosts."""
    root = psutil.Process(root_pid(ws))
    return [root, *root.children(recursive=True)]


def host_of(ws, rank) -> psutil.Process:
    """Return the process of the supervisor of a rank's host."""
    return psutil.Process(ws.topology().ranks[rank].pid).parent()
