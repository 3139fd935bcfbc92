"""Another user of the machine: memory, files and sockets of a workspace are closed to them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from support.inside import root_pid

from phalanx.workspace import Workspace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")

# Everything of these processes that can be opened, by someone who may not.
INTRUDER = textwrap.dedent(
    """
    import ctypes, json, os, sys  # all of it, before we may not read it
    libc = ctypes.CDLL(None)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    opened = []
    def attempt(path, flags):
        try:
            os.close(os.open(path, flags))
            opened.append(path)
        except OSError:
            pass
    for pid, names in json.loads(sys.argv[1]).items():
        for name in names:
            attempt(f"/proc/{pid}/fd/{name}", os.O_RDONLY)
            attempt(f"/proc/{pid}/fd/{name}", os.O_RDWR)
        for name in ("mem", "environ", "maps", "auxv"):
            attempt(f"/proc/{pid}/{name}", os.O_RDONLY)
        try:
            os.kill(int(pid), 0)
            opened.append(f"signal to {pid}")
        except (PermissionError, ProcessLookupError):  # closed to us, or it has ended
            pass
        try:
            fd = os.pidfd_open(int(pid))
            if libc.syscall(438, fd, 3, 0) >= 0:  # pidfd_getfd
                opened.append(f"descriptor of {pid}")
        except OSError:
            pass
    for folder, _, files in os.walk(sys.argv[2]):
        opened += [f for f in files if os.access(os.path.join(folder, f), os.R_OK)]
    print(json.dumps(opened))
    """
)


def links(pid):
    """What a process has open, by descriptor; it opens and closes some meanwhile."""
    found = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[link.name] = str(link.readlink())
    return found


@pytest.mark.slow
def test_nothing_of_a_workspace_opens_to_another_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Workspace.start(n=2) as ws:
        ws.run("x = px.all_sum(np.ones(1 << 20))")
        root = psutil.Process(root_pid(ws))
        processes = [root, *root.children(recursive=True)]
        opened = {p.pid: links(p.pid) for p in processes}
        assert any("memfd:phalanx" in file for files in opened.values() for file in files.values())
        targets = {pid: list(files) for pid, files in opened.items()}
        done = subprocess.run(
            [sys.executable, "-I", "-c", INTRUDER, json.dumps(targets), str(tmp_path)],
            capture_output=True, text=True, timeout=60, check=True, cwd="/",
        )  # fmt: skip
        assert json.loads(done.stdout) == []
        assert [r.value for r in ws.run("float(x[0])")] == ["2.0", "2.0"]
