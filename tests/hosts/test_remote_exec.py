"""Scripts on several hosts at once: what an interrupt leaves."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading

import pytest
from support.promise import PATIENCE_S

from phalanx.hosts import Host
from phalanx.hosts.discovery import remote_exec


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


def test_an_interrupt_that_another_thread_takes_ends_it_too(monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(remote_exec.subprocess, "Popen", start)
    ended: queue.Queue[int] = queue.Queue()

    def ask(host, process, script, end_s, timeout_s):
        with process:
            ended.put(process.wait(PATIENCE_S))
        return remote_exec.Answer()

    monkeypatch.setattr(remote_exec, "_ask", ask)
    hosts = [Host("a")]
    with pytest.raises(KeyboardInterrupt):
        remote_exec.ask_hosts(hosts, hosts, ["exec sleep 300"], 2 * PATIENCE_S)
    assert ended.get(timeout=PATIENCE_S) == -signal.SIGKILL  # by the interrupted caller
