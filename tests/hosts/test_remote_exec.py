"""Scripts on several hosts at once: what an interrupt leaves."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from support.promise import PATIENCE_S

from phalanx.hosts import remote_exec
from phalanx.hosts.host import Host


def test_an_interrupt_between_a_start_and_its_registration_leaves_no_process(monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*args, **options):
        process = popen(*args, **options)
        started.append(process)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            started[0].wait(PATIENCE_S)  # the interrupted caller has killed those it knew of
        return process

    monkeypatch.setattr(remote_exec.subprocess, "Popen", start)
    hosts = [Host("a"), Host("b")]
    with pytest.raises(KeyboardInterrupt):
        remote_exec.ask_hosts(hosts, hosts, ["exec sleep 300"] * 2, 300.0)
    assert [process.wait(PATIENCE_S) for process in started] == [-signal.SIGKILL] * 2
