"""The bed of hosts that other tests stand on: what it promises them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.hosts.bed import Bed, why_not
from support.hosts.bed_host import VARIABLE, remove_leftovers
from support.hosts.hosts_bed import own_bed
from support.promise import PATIENCE_S
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be had")

NBYTES = 4_000_000
# From before the first byte is sent until the last one is there: a pause only makes it longer.
SEND = f"""
import socket, sys, time
begin_s = time.monotonic()
with socket.create_connection(("a", int(sys.argv[1]))) as to:
    to.sendall(bytes({NBYTES}))
    to.shutdown(socket.SHUT_WR)
    assert to.recv(1) == b"", "the receiver closes when it has all"
print({NBYTES} / (time.monotonic() - begin_s))
"""
RECEIVE = """
import socket
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sock, _ = server.accept()
with sock:
    while sock.recv(1 << 16):
        pass
"""


def _ssh(bed, host, command, connect_s=PATIENCE_S, **options):
    connect = f"ConnectTimeout={connect_s:g}"
    words = ["ssh", "-o", "BatchMode=yes", "-o", connect, "-o", "LogLevel=ERROR"]
    return bed.run(0, [*words, host, command], check=False, **options)


def test_hosts_have_names_and_meet_over_ssh(bed):
    said = _ssh(bed, "b", "hostname; ls /sys/class/net").stdout.split()
    assert said == ["b", "eth0", "lo"]
    assert bed.run(2, ["hostname"]).stdout.strip() == "c"
    assert bed.left(20) == []


def test_a_cut_host_is_silent_until_it_is_mended(bed):
    bed.cut(1)
    try:
        assert "timed out" in _ssh(bed, "b", "true", connect_s=1).stderr
        assert _ssh(bed, "c", "true").returncode == 0
    finally:
        bed.mend(1)
    assert _ssh(bed, "b", "true").returncode == 0


def test_a_blocked_port_drops_all_but_ssh(bed):
    knock = "timeout {} bash -c 'echo > /dev/tcp/a/{}' 2>/dev/null; echo $?"
    bed.block(1, 0)
    try:
        assert _ssh(bed, "b", knock.format(0.5, 4000)).stdout.strip() == "124"
        assert _ssh(bed, "b", knock.format(20, 22)).stdout.strip() == "0"
    finally:
        bed.unblock(0)
    assert _ssh(bed, "b", knock.format(20, 4000)).stdout.strip() == "1", "it is refused again"


def test_a_shaped_host_sends_no_faster(bed):
    bed.shape(1, "80mbit")
    try:
        with bed.popen(
            0, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True
        ) as receiver:
            port = receiver.stdout.readline().strip()
            rate = float(bed.run(1, [sys.executable, "-c", SEND, port]).stdout)
    finally:
        bed.shape(1, "")
    assert rate < 11e6, "10 MB/s, and the burst that goes at once"


def test_a_frozen_host_goes_on(bed):
    sleeper = bed.popen(1, ["sleep", "60"])
    process = psutil.Process(sleeper.pid)
    bed.signal(1, signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it is frozen")
    bed.signal(1, signal.SIGCONT)
    wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, "it goes on")
    its = f"process {sleeper.pid}: sleep 60"
    wait_until(lambda: bed.left(0, 1) == [its], "only that runs there")
    sleeper.kill()
    sleeper.wait()


def test_beds_do_not_meet(bed):
    with Bed(2) as other:
        assert other.hosts[1].address == bed.hosts[1].address
        bed.cut(1)
        try:
            assert _ssh(other, "b", "true").returncode == 0
        finally:
            bed.mend(1)
        assert not {p.pid for p in bed.processes()} & {p.pid for p in other.processes()}


@pytest.mark.slow
def test_nothing_is_left_of_a_bed_whose_process_was_killed():
    maker = (
        "from support.hosts import bed; import time; b = bed.Bed(2)\n"
        'b.run(0, ["ssh", "b", "sleep 1000 >/dev/null 2>&1 </dev/null &"])\n'
        "print(b.folder, b.hosts[1].sshd.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", maker],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    ) as popen:
        folder, server = popen.stdout.readline().split()
        popen.kill()
    wait_until(lambda: not psutil.pid_exists(int(server)), "its servers die with it")
    remove_leftovers()
    wait_until(lambda: not _marked(popen.pid), "what was started over ssh is gone")
    assert not Path(folder).exists()


def _marked(maker):
    """Find what runs in the beds of a process."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(VARIABLE, "").startswith(f"{maker}-"):
                found.append(process)
    return found


def test_what_a_test_has_changed_is_seen_and_made_anew():
    with own_bed(2) as bed:
        assert bed.flaws() == []
        mark, sleeper = bed.mark, bed.popen(1, ["sleep", "1000"])
        server = bed.hosts[1].sshd

        def is_seen(words, mend):
            seen = wait_until(bed.flaws, words)
            assert [flaw for flaw in seen if words in flaw], seen
            mend()
            wait_until(lambda: bed.flaws() == [], f"mended: {words}")

        bed.cut(1)
        is_seen("b: its cards are", lambda: bed.mend(1))
        bed.switch_off(1)
        is_seen("b: its cards are", lambda: bed.switch_on(1))
        bed.run(1, ["ip", "addr", "del", "fd77::12/64", "dev", "eth0"])
        is_seen("b: it lacks fd77::12", lambda: bed.switch_on(1))
        bed.block(1, 0)
        is_seen("a: rules that drop", lambda: bed.unblock(0))
        bed.shape(1, "1gbit")
        is_seen("b: the rate of eth0", lambda: bed.shape(1, ""))
        server.send_signal(signal.SIGSTOP)
        is_seen("b: its sshd is stopped", lambda: server.send_signal(signal.SIGCONT))
        bed.stop_sshd(1)
        is_seen("b: its sshd does not run", lambda: bed.restart_sshd(1))
        with bed.changed(1, "authorized_keys", ""):
            assert bed.flaws() == ["b/authorized_keys: other text"]
        bed.cut(0)
        bed.renew()
        assert bed.flaws() == []
        assert bed.mark != mark
        assert sleeper.poll() is not None
        assert _ssh(bed, "b", "true").returncode == 0
