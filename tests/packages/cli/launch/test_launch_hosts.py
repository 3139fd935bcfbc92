"""`phalanx launch` on several hosts: here each is a supervisor of its own, on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import struct
import subprocess
import termios

import numpy as np
import pytest
from support.hosts.hosts_of_one_machine import python_of_other_numpy
from support.programs.launching import ENDLESS, PATIENT, launch, wait_held_up, write_script
from support.runs.sections import SAY, SAY_PLACE, by_section, on_all
from support.runs.tiers import deep

pytestmark = pytest.mark.slow

HOSTS = ("--hosts", "x,y", "--launcher", "local")
SUM = """
import os, phalanx as px
world = px.init(strict=True)
total = px.all_sum(world.rank() + 1)
print(world.rank(), world.size(), total, os.environ["PHALANX_LOCAL_RANK"])
"""


def lines(said):
    return sorted(said.stdout.decode().splitlines())


def complaints(said):
    """Return the lines of stderr, without those for a host that takes long to start."""
    late = re.compile("phalanx launch: [xy]: ")  # after 3 s, on a machine that is busy
    return [line for line in said.decode().splitlines() if not late.match(line)]


EVERYTHING = """
import hashlib, os, shutil, phalanx as px
world = px.init(strict=True)
say("sum", world.rank(), world.size(), px.all_sum(world.rank() + 1), os.environ["PHALANX_LOCAL_RANK"])
say("stripes", *map(len, world.describe()["engine"]["stripes"].values()))
say("environment", os.environ["A"], os.environ["HERE"], os.getcwd())
say("bytes", os.environb[b"B"], os.fsencode(sys.argv[1]))
say("terminal", *shutil.get_terminal_size())
os.write(1, ("long: " + "€" * 20_000 + "\\n").encode())
for i in range(2000): say("counted", f"{i:05}", "é" * 50)
read = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
say("input", read[0], hashlib.sha256(read[1]).hexdigest())
print("end: without a newline", end="")
"""
NO_TEXT = os.fsdecode("B=é".encode("latin-1"))
RANKS = ("x 0", "x 1", "y 2", "y 3")
INPUT = os.urandom(3 << 20)


def test_what_every_rank_says_comes_whole_and_in_order(tmp_path):
    path = write_script(tmp_path, SAY + SAY_PLACE + EVERYTHING)
    idle = ("-p", "5000", "--connections-per-ip", "2", "--nccl-port", "12345", "--backend", "ring")
    words = (
        "-n", "2", "--label", "host", "--env", "A=1=2", "--env", "HERE", "--env", NO_TEXT, "--cwd", "/", *idle, path,
        NO_TEXT,
    )  # fmt: skip
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    ended = subprocess.run(
        [*PATIENT, *HOSTS, *words], input=b"first line\n" + INPUT, stdout=subprocess.PIPE,
        stderr=theirs, env={**env, "HERE": "h"}, timeout=100, check=False,
    )  # fmt: skip
    os.close(theirs)
    told = b""
    try:
        while data := os.read(ours, 1 << 16):
            told += data
    except OSError:  # the end of a terminal that all have closed
        pass
    os.close(ours)
    assert ended.returncode == 0
    assert [line.split()[2] for line in complaints(told)] == ["--starting-port", "--nccl-port"]
    sections = by_section(ended.stdout.decode())
    places = [sections["place"][rank][0].split() for rank in RANKS]
    del sections["place"]
    digest = hashlib.sha256(INPUT).hexdigest()

    assert sections == {
        "sum": {
            f"{host} {rank}": [f"{rank} 4 10 {local}"]
            for rank, (host, local) in enumerate(["x0", "x1", "y0", "y1"])
        },
        # One rank of each host has the links to the other.
        "stripes": {"x 0": ["2"], "x 1": [""], "y 2": ["2"], "y 3": [""]},
        "environment": on_all(RANKS, "1=2 h /"),
        "bytes": on_all(RANKS, r"b'\xe9' b'B=\xe9'"),
        "terminal": on_all(RANKS, "101 33"),
        "long": on_all(RANKS, "€" * 20_000),
        "counted": on_all(RANKS, *(f"{i:05} {'é' * 50}" for i in range(2000))),
        "end": on_all(RANKS, "without a newline"),
        "input": on_all(RANKS, f"b'first line\\n' {digest}"),
    }
    # The variables of torchrun.
    address, port = places[0][4:]
    assert 0 < int(port) < 65536
    assert places == [
        [str(rank), "4", str(rank % 2), "2", address, port] for rank in range(len(RANKS))
    ]


# -- which hosts ----------------------------------------------------------------------------------


def test_this_machine_and_another_with_slots(tmp_path, script):
    file = tmp_path / "hosts"
    file.write_text("localhost slots=1\ny slots=2\n")
    said = launch("--hostfile", str(file), "--launcher", "local", script(SUM))
    assert lines(said) == ["[0] 0 3 6 0", "[1] 1 3 6 0", "[2] 2 3 6 1"]
    assert complaints(said.stderr) == []
    assert said.returncode == 0


def test_a_hostfile_of_mlx_and_a_rank_that_does_not_read(script, tmp_path):
    file = tmp_path / "hosts.json"
    hosts = [{"ssh": "x", "ips": ["127.0.0.1"], "rdma": []}, {"ssh": "y", "ips": ["127.0.0.1"]}]
    file.write_text(json.dumps({"backend": "jaccl", "envs": ["A=of the file"], "hosts": hosts}))
    read = script(
        """
        import os, sys
        told = os.environ["A"] + " " + os.environ["B"]
        if os.environ["PHALANX_RANK"] == "1": sys.stdin.close(); os.close(0); print(told)
        else: print(told + f" {len(sys.stdin.buffer.read())}")
        """
    )
    words = ("--hostfile", str(file), "--launcher", "local", "--env", "B=of the line", read)
    said = launch(*words, stdin=bytes(1 << 20))
    assert lines(said) == [f"[0] of the file of the line {1 << 20}", "[1] of the file of the line"]
    (line,) = complaints(said.stderr)
    assert "backend jaccl is not here" in line
    assert said.returncode == 0


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status"),
    [pytest.param("sys.exit(3)", 3, marks=deep), ("os.kill(os.getpid(), 9)", 137)],
)
def test_who_fails_gives_the_exit_status_and_a_rank_that_ignores_the_end_is_killed(
    script, how, status
):
    path = script(
        "import os, signal, sys, time, phalanx as px\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "world = px.init(strict=True)\n"
        f"if world.rank() == 1: {how}\n"
        "time.sleep(600)\n"
    )
    said = launch(*HOSTS, "--grace", "0.3", path)
    assert said.returncode == status
    assert "rank 1 " in complaints(said.stderr)[-1]


def test_a_rank_that_ends_early_frees_those_of_other_hosts(script):
    fail = script(
        "import phalanx as px\n"
        "world = px.init(strict=True)\n"
        "px.all_sum(1)\n"
        "if world.rank() == 0: raise SystemExit(0)\n"
        "try: px.all_sum(1)\n"
        "except px.RankFailure as error: print(error)\n"
    )
    said = launch(*HOSTS, fail)
    (line,) = lines(said)
    assert line.startswith("[1] rank 0 on ")
    assert line.endswith(": closed the group; rank 1 was in all_sum #2 (int64, shape ())")


def test_what_is_missing_is_said_of_every_host(script, tmp_path):
    folder, gone = tmp_path / "nowhere", tmp_path / "gone.py"
    for words, why in [
        (["--cwd", str(folder), script(SUM)], f"it has no folder {folder}: "),
        ([str(gone)], f"there is no script '{gone}'"),
    ]:
        said = launch(*HOSTS, "-n", "2", *words)
        assert (said.returncode, said.stdout) == (1, b"")
        x, y = (line.partition(" be started: ")[2] for line in complaints(said.stderr))
        assert x.startswith(f"x: {why}")
        assert y.startswith(f"y: {why}")


def test_a_script_that_is_not_looked_for(tmp_path):
    said = launch(*HOSTS, "--no-verify-script", str(tmp_path / "gone.py"))
    assert said.returncode == 2  # Python's own
    assert b"can't open file" in said.stderr


def test_versions_that_differ_are_told_in_one_line(script, tmp_path):
    python = python_of_other_numpy(tmp_path)
    said = launch(*HOSTS, "--python", python, script("print('it runs')"))
    assert lines(said) == ["[0] it runs", "[1] it runs"]
    (line,) = complaints(said.stderr)
    assert line.startswith(f"phalanx launch: numpy is 1.2.3 on x, y and {np.__version__} here: ")


def test_who_prints_without_end_waits_for_the_reader(script, running, tmp_path):
    running(*HOSTS, script(ENDLESS), str(tmp_path))
    wait_held_up(tmp_path, 2)
