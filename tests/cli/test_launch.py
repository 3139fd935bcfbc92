"""`phalanx launch` with real processes: sums, lines, input, and mistakes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest
from launching import LAUNCH, PATIENCE_S, launch, wait_gone

from phalanx.cli import main

pytestmark = pytest.mark.slow

SUM = """
import phalanx as px
world = px.init(strict=True)
print(world.rank(), world.size(), px.all_sum(world.rank() + 1))
"""


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_ranks_of_a_script_meet(script, n, transport):
    said = launch("-n", str(n), "--transport", transport, script(SUM))
    total = n * (n + 1) // 2
    assert sorted(said.stdout.decode().splitlines()) == [
        f"[{rank}] {rank} {n} {total}" for rank in range(n)
    ]
    assert said.stderr == b""
    assert said.returncode == 0


def test_modules_and_programs(script, tmp_path):
    script("import sys; print(__name__, sys.argv[1:])", "here.py")
    said = launch("-n", "1", "--cwd", str(tmp_path), "-m", "here", "--verbose", "-n")
    assert said.stdout == b"[0] __main__ ['--verbose', '-n']\n"
    said = launch("-n", "2", "--", "sh", "-c", "echo $PHALANX_RANK of $PHALANX_SIZE; pwd")
    assert sorted(said.stdout.decode().splitlines()) == sorted(
        line for rank in range(2) for line in (f"[{rank}] {rank} of 2", f"[{rank}] {Path.cwd()}")
    )


def test_what_follows_the_script_is_the_script_s(script):
    path = script("import sys; print(sys.argv[1:])")
    said = launch("-n", "1", path, "--verbose", "--env", "X=1", "--", "-n")
    assert said.stdout == b"[0] ['--verbose', '--env', 'X=1', '--', '-n']\n"
    assert said.stderr == b""


def test_the_environment_of_the_ranks(script):
    path = script("import os; print(os.environ.get('A'), os.environ.get('B'))")
    said = launch("--env", "A=1=2", "--env", "B", path, env={"B": "b"})
    assert said.stdout == b"[0] 1=2 b\n"


def test_no_character_is_cut_or_lost(script):
    path = script(
        """
        import os
        data = ("€" * 20_000).encode()
        for start in range(0, len(data), 7): os.write(1 + start % 2, data[start : start + 7])
        """
    )
    said = launch("-n", "2", "--label", "none", path)
    assert len(said.stdout) + len(said.stderr) == 2 * 60_000 + 2  # a newline between the ranks
    path = script("import os\nfor _ in range(4000): os.write(1, '€€€€€'.encode())")
    said = launch("-n", "2", path)
    assert sorted(said.stdout.decode().splitlines()) == [f"[{r}] {'€' * 20_000}" for r in range(2)]


def test_lines_stay_whole_and_in_order(script):
    path = script("for i in range(1000): print(i, 'x' * (i % 50))")
    lines = launch("-n", "4", path).stdout.decode().splitlines()
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {i} {'x' * (i % 50)}" for i in range(1000)]
    assert len(lines) == 4000


def test_streams_stay_apart_and_logs_are_kept(script, tmp_path):
    path = script("import sys; print('out'); print('err', file=sys.stderr, end='')")
    said = launch("-n", "2", "--log-dir", str(tmp_path / "logs"), path)
    assert sorted(said.stdout.splitlines()) == [b"[0] out", b"[1] out"]
    assert sorted(said.stderr.splitlines()) == [b"[0] err", b"[1] err"]
    files = {p.name: p.read_bytes() for p in (tmp_path / "logs").iterdir()}
    assert files == {
        f"rank-{rank}.{stream}": text
        for rank in range(2)
        for stream, text in (("stdout", b"out\n"), ("stderr", b"err"))
    }


def test_endless_output_fills_no_memory(running, script):
    path = script("while True: print('x' * 1000)")
    launcher = running("-n", "2", path)
    launcher.wait_lines("[0] " + "x" * 1000, "[1] " + "x" * 1000)
    processes = launcher.processes()
    assert len(processes) == 5  # launcher, root, sweeper, two ranks
    # Nobody reads on: soon everyone waits for everyone, and nothing is used any more.
    used_s = -1.0
    while used_s != (used_s := sum(sum(p.cpu_times()[:2]) for p in processes)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.popen.wait(0.2)
    assert max(p.memory_info().rss for p in processes) < 128 << 20


def test_output_that_nobody_wants_ends_the_ranks(script):
    path = script("while True: print('x' * 1000)")
    with subprocess.Popen(
        [*LAUNCH, "-n", "2", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as popen:
        popen.stdout.readline()
        processes = psutil.Process(popen.pid).children(recursive=True)
        popen.stdout.close()
        assert popen.wait(10) == 1
        assert wait_gone(processes, PATIENCE_S) == []


def test_input_goes_to_every_rank_and_ends(script):
    path = script("import sys; [print(line.strip()) for line in sys.stdin]; print('end')")
    said = launch("-n", "3", path, stdin=b"a\nb\nlast")
    for rank in range(3):
        own = [line for line in said.stdout.decode().splitlines() if f"[{rank}]" in line]
        assert own == [f"[{rank}] {word}" for word in ("a", "b", "last", "end")]
    assert said.returncode == 0


def test_a_rank_that_does_not_read_holds_nobody_up(script):
    path = script(
        """
        import os, sys
        rank = int(os.environ["PHALANX_RANK"])
        if rank == 1: sys.stdin.close(); os.close(0)
        if rank == 2: sys.exit()
        if rank == 0: print(len(sys.stdin.buffer.read()))
        """
    )
    said = launch("-n", "4", path, stdin=b"x" * 3_000_000)
    assert said.stdout == b"[0] 3000000\n"
    assert said.returncode == 0


def read_until(fd, done, limit_s=20):
    text = b""
    ends_at = time.monotonic() + limit_s
    while not done(text):
        assert select.select([fd], [], [], max(0, ends_at - time.monotonic()))[0], text
        text += os.read(fd, 4096)
    return text


def in_terminal(fd, *command):
    """A process whose terminal this is."""
    return subprocess.Popen(
        command, stdin=fd, stdout=fd, stderr=fd, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )  # fmt: skip


def test_the_debugger_on_all_ranks_in_a_terminal(script):
    path = script("x = 6 * 7\nbreakpoint()\nprint('after', x)")
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs), fcntl.fcntl(theirs, fcntl.F_GETFL)
    with in_terminal(theirs, *LAUNCH, "-n", "2", path) as popen:
        read_until(ours, lambda text: text.count(b"(Pdb) ") == 2)
        os.write(ours, b"p x + 1\n")
        text = read_until(ours, lambda text: text.count(b"(Pdb) ") == 2)
        assert sorted(line for line in text.split(b"\r\n") if b"43" in line) == [
            b"[0] 43",
            b"[1] 43",
        ]
        os.write(ours, b"c\n")
        text = read_until(ours, lambda text: text.count(b"after 42") == 2)
        assert b"[0] after 42\r\n" in text
        assert b"[1] after 42\r\n" in text
        assert popen.wait(10) == 0
    assert (termios.tcgetattr(theirs), fcntl.fcntl(theirs, fcntl.F_GETFL)) == before
    os.close(ours)
    os.close(theirs)


def test_in_the_background_the_terminal_s_input_is_the_shell_s(script):
    path = script("import sys; [print('got', line.strip()) for line in sys.stdin]")
    ours, theirs = pty.openpty()
    with in_terminal(theirs, "bash", "--norc", "-i") as popen:
        os.write(ours, f"PS1=; {' '.join(LAUNCH)} --verbose {path} &\n".encode())
        read_until(ours, lambda text: b"rank 0: process" in text)
        os.write(ours, b"jobs\n")
        read_until(ours, lambda text: b"Running" in text)
        os.write(ours, b"fg\n")
        os.write(ours, b"hello\n")
        read_until(ours, lambda text: b"[0] got hello\r\n" in text)
        os.write(ours, b"\x04")
        read_until(ours, lambda text: b"rank 0 exited with status 0" in text)
        os.write(ours, b"echo status=$?; exit\n")
        read_until(ours, lambda text: b"status=0\r\n" in text)
        popen.wait(10)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0", "x.py"], "'0' is not a whole number of 1 or more"),
        ([], "no script is given"),
        (["-m"], "-m needs the name of a module"),
        (["nowhere.py"], "there is no script"),
        (["no-such-program-anywhere"], "there is no program 'no-such-program-anywhere'"),
        (["/etc/passwd"], "'/etc/passwd' is not executable"),
        (["--cwd", "/nowhere", "x.py"], "--cwd /nowhere: there is no such folder"),
        (["--python", "/nowhere/python", "-m", "x"], "there is no program '/nowhere/python'"),
        (["--env", "BAD-KEY=1", "x.py"], "'BAD-KEY' is no name of a variable"),
        (["--env", "NOT_SET_ANYWHERE", "x.py"], "it is not set here"),
        (["--backend", "nccl", "x.py"], "'nccl' is not in this release"),
        (["--hots", "a,b", "x.py"], "did you mean '--hosts'?"),
        (["--backend", "mpi", "--interface", "lo", "x.py"], "--interface: not with --backend mpi"),
        (["--labl", "rank", "x.py"], "did you mean '--label'?"),
        (["--timeout", "-1", "x.py"], "'-1' is not a number of seconds"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(words, message, capsys):
    try:
        code = main(["launch", *words])
    except SystemExit as leaving:
        code = leaving.code
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


def test_a_program_that_cannot_run_is_one_line(tmp_path):
    path = tmp_path / "broken"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    said = launch("-n", "2", str(path))
    assert said.returncode == 1
    assert said.stderr.decode() == (
        f"phalanx launch: the ranks could not be started: {path}: Exec format error\n"
    )


def test_which_python(capsys):
    assert main(["launch", "--print-python"]) == 0
    assert capsys.readouterr().out == f"{sys.executable}\n"
