"""The first process of a batch job: it starts a host's supervisor on each of the job's nodes.

It finds the nodes and the way to them as a start within a job does (`_in_job`), and ends when all of
them have ended, and the job with it. Which supervisor comes first to which node does not matter:
each takes a key of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from phalanx.hosts import job_hosts
from phalanx.protocol import HostPlan, RemoteOptions

from ._in_job import start_words
from ._key_folder import say_in
from ._process import exit_reason

__all__ = ["run_job"]

_TAIL_NBYTES = 4096


def run_job(folder: str, launcher: str) -> None:
    """Start the supervisors whose keys are in a folder; `SystemExit` with one line if not."""
    keys = [path for path in Path(folder).glob("host-*") if path.suffix == ""]
    keys.sort(key=lambda path: int(path.name.partition("-")[2]))
    try:
        hosts = job_hosts(launcher, os.environ, with_slots=False).hosts
    except ValueError as error:
        sys.exit(str(error))
    if len(hosts) < len(keys):
        sys.exit(f"the job has {len(hosts)} nodes, and {len(keys)} were asked for")
    own = socket.gethostname().partition(".")[0]
    is_starting = is_over = False

    def end(*_: object) -> None:
        # Not while a child is started: it would run on, and nobody would know of it.
        nonlocal is_over
        is_over = True
        if not is_starting:
            sys.exit(143)

    signal.signal(signal.SIGTERM, end)  # its end is also theirs
    # Blocked until now (`__main__`); a child would inherit that, and outlive our word to end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threads = []
    started: list[subprocess.Popen[bytes]] = []
    try:
        for host, key in zip(hosts, keys, strict=False):
            words: list[str] = []
            if host.ssh.partition(".")[0] != own:
                words = start_words(HostPlan(host.ssh, 1), RemoteOptions(launcher=launcher))
            command = [*words, sys.executable, "-m", "phalanx.supervisor", "host", str(key)]
            is_starting = True
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
                started.append(child)
            except OSError as error:
                say_in(key, f"{host.ssh}: it cannot be started: {error}")
                continue
            finally:
                is_starting = False
                if is_over:
                    sys.exit(143)
            threads.append(threading.Thread(target=_follow, args=(child, key), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
    finally:
        for child in started:
            child.terminate()


def _follow(child: subprocess.Popen[bytes], key: Path) -> None:
    """Wait for a supervisor's end, and leave word of why."""
    assert child.stderr is not None
    tail = b""
    for line in child.stderr:
        tail = (tail + line)[-_TAIL_NBYTES:]
    status = child.wait()
    if status:
        lines = [line.strip() for line in tail.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        say_in(key, said or f"its supervisor {exit_reason(status)}")
