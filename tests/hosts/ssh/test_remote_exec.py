"""Scripts on several hosts at once: what an interrupt leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest
from support.promise import PATIENCE_S

from phalanx.hosts import Host
from phalanx.hosts.discovery import HostShells, remote_exec
from phalanx.hosts.discovery.remote_exec import ShellCommand

_SLEEPS = [ShellCommand("sleep 300")]


def _interrupted(monkeypatch, interrupt):
    """Interrupt the start of the second of two shells; return how both ended."""
    started = []
    popen = subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        if len(started) == 2:
            interrupt()
        return started[-1]

    monkeypatch.setattr(remote_exec.subprocess, "Popen", start)
    hosts = [Host("a"), Host("b")]
    with pytest.raises(KeyboardInterrupt):
        HostShells(hosts, hosts).run({0: _SLEEPS, 1: _SLEEPS}, 2 * PATIENCE_S)
    return [process.poll() for process in started]


def test_an_interrupt_between_a_start_and_its_registration_leaves_no_process(monkeypatch):
    statuses = _interrupted(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert statuses == [-signal.SIGKILL] * 2


def test_an_interrupt_that_another_thread_takes_ends_it_too(monkeypatch):
    statuses = _interrupted(
        monkeypatch, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    )
    assert statuses == [-signal.SIGKILL] * 2
