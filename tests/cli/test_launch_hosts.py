"""`phalanx launch` on several hosts: here each is a supervisor of its own, on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import pytest
from launching import launch

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
    return said.stderr.decode().splitlines()


def test_ranks_of_several_hosts_meet(script):
    said = launch(*HOSTS, "-n", "2", "--label", "host", script(SUM))
    assert lines(said) == [
        f"[{'xxyy'[rank]} {rank}] {rank} 4 10 {'0101'[rank]}" for rank in range(4)
    ], said.stderr
    assert said.stderr == b""
    assert said.returncode == 0


def test_this_machine_and_another(script):
    said = launch("--hosts", "localhost,y", "--launcher", "local", script(SUM))
    assert lines(said) == ["[0] 0 2 3 0", "[1] 1 2 3 0"]
    assert said.returncode == 0


def test_this_machine_by_name_is_no_other_host(script):
    said = launch("--hosts", "localhost", "-n", "2", script(SUM), "x")
    assert lines(said) == ["[0] 0 2 3 0", "[1] 1 2 3 1"]
    said = launch("--hosts", "127.0.0.1", script(SUM))
    assert lines(said) == ["[0] 0 1 1 0"]


def test_a_hostfile_of_mlx(script, tmp_path):
    file = tmp_path / "hosts.json"
    hosts = [{"ssh": "x", "ips": ["127.0.0.1"], "rdma": []}, {"ssh": "y", "ips": ["127.0.0.1"]}]
    file.write_text(json.dumps({"backend": "jaccl", "envs": ["A=of the file"], "hosts": hosts}))
    show = script("import os; print(os.environ['A'], os.environ['B'])")
    said = launch("--hostfile", str(file), "--launcher", "local", "--env", "B=of the line", show)
    assert lines(said) == ["[0] of the file of the line", "[1] of the file of the line"]
    (line,) = complaints(said)
    assert "backend jaccl is not here" in line


def test_slots_and_a_number_for_each(tmp_path, script):
    file = tmp_path / "hosts"
    file.write_text("x slots=1\ny slots=2\n")
    said = launch("--hostfile", str(file), "--launcher", "local", script(SUM))
    assert len(lines(said)) == 3
    said = launch("--hostfile", str(file), "-n", "2", script(SUM))
    assert said.returncode == 2
    assert "slots" in complaints(said)[0]


def test_no_line_is_cut_and_no_character_lost(script):
    many = script(
        "import os, sys\n"
        "os.write(1, ('€' * 20000 + '\\n').encode())\n"
        "for i in range(2000): print(f'{i:05}', 'é' * 50)\n"
        "print('the end', end='')\n"
    )
    said = launch(*HOSTS, many)
    for rank in range(2):
        label = f"[{rank}] "
        own = [line for line in said.stdout.decode().splitlines() if line.startswith(label)]
        assert own == [
            label + "€" * 20000,
            *(f"{label}{i:05} {'é' * 50}" for i in range(2000)),
            label + "the end",
        ]


def test_input_goes_to_every_rank_and_ends(script):
    data = b"first line\n" + os.urandom(3 << 20)
    read = script(
        "import sys, hashlib\n"
        "first = sys.stdin.buffer.readline()\n"
        "print(first, hashlib.sha256(sys.stdin.buffer.read()).hexdigest())\n"
    )
    said = launch(*HOSTS, "-n", "2", read, stdin=data)
    assert len(lines(said)) == 4
    assert len({line.partition(" ")[2] for line in lines(said)}) == 1
    assert hashlib.sha256(data[11:]).hexdigest() in lines(said)[0]


def test_a_rank_that_does_not_read_holds_up_nobody(script):
    read = script(
        "import os, sys\n"
        "if os.environ['PHALANX_RANK'] == '1': sys.stdin.close(); os.close(0)\n"
        "else: print(len(sys.stdin.buffer.read()))\n"
    )
    said = launch(*HOSTS, read, stdin=bytes(1 << 20))
    assert lines(said) == [f"[0] {1 << 20}"]
    assert said.returncode == 0


@pytest.mark.parametrize(("how", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_the_exit_status_is_that_of_the_rank_that_failed(script, how, status):
    fail = script(
        "import os, sys, time, phalanx as px\n"
        "world = px.init(strict=True)\n"
        f"if world.rank() == 1: {how}\n"
        "time.sleep(600)\n"
    )
    began = time.monotonic()
    said = launch(*HOSTS, fail)
    assert said.returncode == status
    assert "rank 1 " in complaints(said)[-1]
    assert time.monotonic() - began < 30


def test_a_rank_that_ignores_the_end_is_killed(script):
    stay = script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['PHALANX_RANK'] == '0': print('up'); sys.exit(4)\n"
        "while True: time.sleep(1)\n"
    )
    said = launch(*HOSTS, "--grace", "0.3", stay)
    assert said.returncode == 4


def test_a_rank_that_ends_early_frees_those_of_other_hosts(script):
    fail = script(
        "import phalanx as px\n"
        "world = px.init(strict=True)\n"
        "px.all_sum(1)\n"
        "if world.rank() == 0: raise SystemExit(0)\n"
        "try: px.all_sum(1)\n"
        "except px.DistributedError as error: print(error)\n"
    )
    said = launch(*HOSTS, fail)
    assert lines(said) == [
        "[1] rank 0 closed the group; rank 1 was in all_sum #2 (int64, shape ())"
    ]


def test_what_is_missing_is_said_of_every_host(script, tmp_path):
    def why_not(*words):
        said = launch(*HOSTS, "-n", "2", *words)
        assert said.returncode == 1
        assert said.stdout == b""
        return [line.partition(" be started: ")[2] for line in complaints(said)]

    folder, gone = tmp_path / "nowhere", tmp_path / "gone.py"
    for host, text in zip("xy", why_not("--cwd", str(folder), script(SUM)), strict=True):
        assert text.startswith(f"{host}: it has no folder {folder}: ")
    assert why_not(str(gone)) == [f"{host}: there is no script '{gone}'" for host in "xy"]
    nothing = "there is no program 'no-such-program' on the PATH"
    assert why_not("--", "no-such-program") == [f"{host}: {nothing}" for host in "xy"]
    said = launch(*HOSTS, "--no-verify-script", str(gone))
    assert said.returncode == 2  # Python's own


def test_all_hosts_that_do_not_come_up_are_named(script):
    began = time.monotonic()
    said = launch(*HOSTS, "--python", "/no/such/python", script(SUM))
    assert said.returncode == 1
    x, y = complaints(said)
    assert "could not be started: x: " in x
    assert "could not be started: y: " in y
    assert said.stdout == b""
    assert time.monotonic() - began < 20


def test_environment_and_terminal(script):
    show = script("import os; print(os.environ['A'], os.environ['HERE'], os.getcwd())")
    said = launch(*HOSTS, "--env", "A=1=2", "--env", "HERE", "--cwd", "/", show, env={"HERE": "h"})
    assert lines(said) == ["[0] 1=2 h /", "[1] 1=2 h /"]


def test_the_size_of_the_terminal_is_handed_on(script):
    show = script("import shutil; print(tuple(shutil.get_terminal_size()))")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    command = [sys.executable, "-m", "phalanx.cli", "launch", *HOSTS, show]
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    popen = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=env
    )
    said, _ = popen.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert sorted(said.decode().splitlines()) == ["[0] (101, 33)", "[1] (101, 33)"]


def test_options_of_mlx_without_a_use_here(script):
    idle = ("-p", "5000", "--connections-per-ip", "2", "--nccl-port", "12345")
    count = "import phalanx as px; n = px.init().describe()['engine']['stripes']\n"
    said = launch(
        *HOSTS, *idle, "--backend", "ring", script(count + "print(*map(len, n.values()))")
    )
    assert lines(said) == ["[0] 2", "[1] 2"]
    assert said.returncode == 0
    told = complaints(said)
    assert [line.split()[2] for line in told] == ["--starting-port", "--nccl-port"]


def test_options_that_need_hosts(script):
    said = launch("--interface", "lo", "--ssh-arg=-v", script(SUM))
    assert said.returncode == 2
    assert "--interface and --ssh-arg: only with --hosts" in complaints(said)[0]
    said = launch("--hosts", "x", "--hostfile", "y", script(SUM))
    assert "not both" in complaints(said)[0]


def test_who_prints_without_end_waits_for_the_reader(script, running, tmp_path):
    noisy = script(
        "import os, sys\n"
        "place = f'{sys.argv[1]}/{os.environ[\"PHALANX_RANK\"]}'\n"
        "written = 0\n"
        "while True:\n"
        "    written += os.write(1, b'x' * 4095 + b'\\n')\n"
        "    with open(place, 'w') as file: file.write(str(written))\n"
    )
    running(*HOSTS, noisy, str(tmp_path))
    places = [tmp_path / "0", tmp_path / "1"]

    def written():
        return [place.read_text() if place.exists() else "" for place in places]

    until = time.monotonic() + 30
    seen, since = written(), time.monotonic()
    while time.monotonic() - since < 1.0 or not all(seen):  # still for a second
        assert time.monotonic() < until
        time.sleep(0.05)
        if written() != seen:
            seen, since = written(), time.monotonic()
    assert all(int(text) < 4 << 20 for text in seen)


def test_time_is_up(script):
    said = launch(*HOSTS, "--timeout", "4", script("import time; time.sleep(600)"))
    assert said.returncode == 124


def test_left_to_themselves(script, tmp_path):
    log_dir = tmp_path / "logs"
    out = script("import os; print('rank', os.environ['PHALANX_RANK'])")
    said = launch(*HOSTS, "--detach", "--log-dir", str(log_dir), out)
    assert said.returncode == 0, said.stderr
    journal = log_dir / "phalanx.log"
    until = time.monotonic() + 20
    while "all ranks have ended well" not in journal.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert [(log_dir / f"rank-{r}.stdout").read_text() for r in range(2)] == [
        "rank 0\n",
        "rank 1\n",
    ]
