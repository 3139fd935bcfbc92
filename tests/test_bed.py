"""The bed of hosts that other tests stand on: what it promises them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bed import Bed, why_not
from bed_host import VARIABLE, remove_leftovers

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be had")

SEND = (
    'import shutil, socket, sys; to = socket.create_connection(("a", int(sys.argv[1])));'
    'shutil.copyfileobj(sys.stdin.buffer, to.makefile("wb"))'
)


def _ssh(bed, host, command, **options):
    words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", "-o", "LogLevel=ERROR"]
    return bed.run(0, [*words, host, command], check=False, **options)


def _wait(is_so):
    deadline_s = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_hosts_have_names_and_meet_over_ssh(bed):
    said = _ssh(bed, "b", "hostname; ls /sys/class/net").stdout.split()
    assert said == ["b", "eth0", "lo"]
    assert bed.run(2, ["hostname"]).stdout.strip() == "c"
    assert bed.left(2) == []


def test_a_cut_host_is_silent_until_it_is_mended(bed):
    bed.cut(1)
    try:
        assert "timed out" in _ssh(bed, "b", "true").stderr
        assert _ssh(bed, "c", "true").returncode == 0
    finally:
        bed.mend(1)
    assert _ssh(bed, "b", "true").returncode == 0


def test_a_blocked_port_drops_all_but_ssh(bed):
    knock = "timeout 0.3 bash -c 'echo > /dev/tcp/a/{}' 2>/dev/null; echo $?"
    bed.block(1, 0)
    try:
        assert _ssh(bed, "b", knock.format(4000)).stdout.strip() == "124"
        assert _ssh(bed, "b", knock.format(22)).stdout.strip() == "0"
    finally:
        bed.unblock(0)
    assert _ssh(bed, "b", knock.format(4000)).stdout.strip() == "1", "it is refused again"


def test_a_shaped_host_sends_no_faster(bed):
    send = (
        "import socket, time; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True);"
        "c, _ = s.accept(); start = time.monotonic(); n = 0\n"
        "while d := c.recv(1 << 16): n += len(d)\n"
        "print(n / (time.monotonic() - start), flush=True)"
    )
    bed.shape(1, "80mbit")
    try:
        with bed.popen(
            0, [sys.executable, "-c", send], stdout=subprocess.PIPE, text=True
        ) as receiver:
            port = receiver.stdout.readline().strip()
            bed.run(
                1, ["sh", "-c", f"head -c 4000000 /dev/zero | {sys.executable} -c '{SEND}' {port}"]
            )
            rate = float(receiver.stdout.readline())
    finally:
        bed.shape(1, "")
    assert rate < 11e6, "10 MB/s, and the burst that goes at once"


def test_a_frozen_host_goes_on(bed):
    sleeper = bed.popen(1, ["sleep", "60"])
    process = psutil.Process(sleeper.pid)
    bed.signal(1, signal.SIGSTOP)
    _wait(lambda: process.status() == psutil.STATUS_STOPPED)
    bed.signal(1, signal.SIGCONT)
    _wait(lambda: process.status() == psutil.STATUS_SLEEPING)
    assert bed.left(0, 1) == [f"process {sleeper.pid}: sleep 60"]
    sleeper.kill()
    sleeper.wait()


def test_other_keys(bed):
    with bed.other_host_key(1):
        assert "HAS CHANGED" in _ssh(bed, "b", "true").stderr
    with bed.changed(1, "known_hosts", ""):
        assert "key is known" in _ssh(bed, "b", "true").stderr
    with bed.changed(1, "authorized_keys", ""):
        assert "Permission denied" in _ssh(bed, "b", "true").stderr
    assert _ssh(bed, "b", "true").returncode == 0


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
        "import bed, time; b = bed.Bed(2)\n"
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
    _wait(lambda: not psutil.pid_exists(int(server)))  # its servers die with it
    remove_leftovers()
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(VARIABLE, "")
        except psutil.Error:
            continue
        assert not mark.startswith(f"{popen.pid}-"), process
    assert not Path(folder).exists()
