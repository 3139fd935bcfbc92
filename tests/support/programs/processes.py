"""Find processes by a variable that they have inherited, and wait for processes to be gone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from support.promise import PATIENCE_S


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that its new parent has not reaped yet has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(
    processes: Iterable[psutil.Process], timeout_s: float = PATIENCE_S
) -> list[psutil.Process]:
    """Wait for processes to end; return those that still live when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    alive = [process for process in processes if not is_gone(process)]
    while alive and time.monotonic() < deadline_s:
        psutil.wait_procs(alive, timeout=0.02)
        alive = [process for process in alive if not is_gone(process)]
    return alive


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """Return the living processes, but this one, that have a variable in their environment."""
    mark = f"{name}={value}".encode()
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
    return [its for its in found if its.pid != os.getpid() and not is_gone(its)]
