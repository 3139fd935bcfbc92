"""`phalanx launch` with real processes: sums, lines, input, and mistakes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import select
import stat
import subprocess
import sys
import termios
import time

import psutil
import pytest
from support.programs.launching import (
    LAUNCH,
    launch,
    wait_gone,
    write_script,
)
from support.promise import PATIENCE_S
from support.runs.sections import SAY, SAY_PLACE, by_section, on_all
from support.runs.tiers import each_with_first

from phalanx.cli import main

pytestmark = pytest.mark.slow

SUM = """
import phalanx as px
world = px.init(strict=True)
say("sum", world.rank(), world.size(), px.all_sum(world.rank() + 1))
"""
EVERYTHING = """
import hashlib, os
say("words", sys.argv[1:])
say("environment", os.environ.get("A"), os.environ.get("B"))
say_place("joined")
for i in range(1000): say("counted", i, "x" * (i % 50))
line = ("cut: " + "€" * 20_000 + "\\n").encode()
for start in range(0, len(line), 7): os.write(1, line[start : start + 7])
read = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
say("input", read[0], len(read[1]), hashlib.sha256(read[1]).hexdigest())
sys.stderr.write("error")
"""
RANKS = "0123"
INPUT = os.urandom(3 << 20).replace(b"\n", b"?")


def test_what_every_rank_says_comes_whole_and_in_order_and_is_logged(tmp_path):
    logs = tmp_path / "logs"
    path = write_script(tmp_path, SAY + SAY_PLACE + SUM + EVERYTHING)
    words = (
        "-n", "4", "--env", "A=1=2", "--env", "B", "--env", "MASTER_ADDR=::1",
        "--log-dir", str(logs),
    )  # fmt: skip
    said = launch(
        *words, path, "--verbose", "--env", "X=1", "--", "-n", stdin=b"typed\n" + INPUT,
        env={"B": "b", "RANK": "7", "WORLD_SIZE": "8", "MASTER_PORT": "9"},
    )  # fmt: skip
    sections = by_section(said.stdout.decode())
    places = sections.pop("place")
    assert sections.pop("joined") == places  # what a script has read goes on to be true
    digest = hashlib.sha256(INPUT).hexdigest()
    assert sections == {
        "sum": {rank: [f"{rank} 4 10"] for rank in RANKS},
        # What follows the script is the script's.
        "words": on_all(RANKS, "['--verbose', '--env', 'X=1', '--', '-n']"),
        "environment": on_all(RANKS, "1=2 b"),
        "counted": on_all(RANKS, *(f"{i} {'x' * (i % 50)}" for i in range(1000))),
        "cut": on_all(RANKS, "€" * 20_000),
        "input": on_all(RANKS, f"b'typed\\n' {len(INPUT)} {digest}"),
    }
    assert sorted(said.stderr.splitlines()) == [f"[{rank}] error".encode() for rank in RANKS]
    assert said.returncode == 0
    # The variables of torchrun.
    (port,) = {texts[0].split()[-1] for texts in places.values()}
    assert 9 < int(port) < 65536  # 9 was the launcher's own: --env says what ranks get
    assert {rank: texts[0].rpartition(" ")[0] for rank, texts in places.items()} == {
        rank: f"{rank} 4 {rank} 4 ::1" for rank in RANKS
    }
    # Logs are this user's alone.
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs.iterdir()} == {0o600}
    lines = said.stdout.splitlines(keepends=True)
    assert {path.name: path.read_bytes() for path in logs.iterdir()} == {
        f"rank-{rank}.{stream}": text
        for rank in RANKS
        for stream, text in (
            ("stdout", b"".join(x[4:] for x in lines if x.startswith(f"[{rank}]".encode()))),
            ("stderr", b"error"),
        )
    }


def test_what_is_no_text_goes_through(tmp_path):
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    code = """
    import os, sys
    words = *map(os.fsencode, sys.argv), os.environb[b"A"], os.path.basename(os.getcwdb())
    sys.stdout.buffer.write(b" ".join(words) + b"\\n")
    """
    name, word = write_script(folder, code, os.fsdecode(b"s\xfe.py")), os.fsdecode(b"\xfd\xc3")
    said = launch("-n", "1", "--cwd", str(folder), "--env", f"A={word}", name, word, "ü")
    expected = b" ".join([os.fsencode(name), b"\xfd\xc3", "ü".encode(), b"\xfd\xc3", b"f\xff"])
    assert said.stdout == b"[0] " + expected + b"\n", said.stderr
    # Nor is a message lost that names it: of the launcher, of the root.
    script = folder / os.fsdecode(b"q\xff")
    script.touch(0o755)
    said = launch("-n", "1", str(script))
    assert said.stderr.endswith(
        b"q\\xff: Exec format error; begin a script with #! and its interpreter\n"
    )
    assert said.stderr.count(b"\n") == 1


def test_in_the_locale_c_words_keep_their_bytes(script):
    path = script("import os, sys; os.write(1, b'\\n'.join(map(os.fsencode, sys.argv[1:])))")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = launch("-n", "1", path, "ü", os.fsdecode(b"\xff"), env=plain)
    assert said.stdout == "[0] ü\n[0] ".encode() + b"\xff\n", said.stderr


def test_unfinished_lines_of_ranks_are_not_torn(script):
    path = script(
        """
        import sys
        import phalanx as px
        px.init()
        print("epoch", end=" ", flush=True)
        px.barrier()
        for step in range(100): print(f"\\r{step}%", end="", file=sys.stderr, flush=True)
        px.barrier()
        print("loss")
        """
    )
    said = launch("-n", "2", path)
    assert sorted(said.stdout.splitlines()) == [b"[0] epoch loss", b"[1] epoch loss"]
    assert sorted(said.stderr.splitlines()) == [b"[0] 99%", b"[1] 99%"]


def test_a_program_runs_on_every_rank_and_without_labels_no_byte_is_added_or_lost(tmp_path):
    path = write_script(
        tmp_path,
        SAY
        + SUM
        + "import os\n"
        + 'data = ("€" * 20_000).encode()\n'
        + "for start in range(0, len(data), 7): os.write(1 + start % 2, data[start : start + 7])\n",
    )
    command = f"echo $PHALANX_RANK of $PHALANX_SIZE; pwd; exec {sys.executable} -u {path}"
    words = ("-n", "2", "--transport", "tcp", "--label", "none", "--cwd", "/")
    said = launch(*words, "--", "sh", "-c", command)
    assert said.returncode == 0
    told = [b"0 of 2", b"1 of 2", b"/", b"/", b"sum: 0 2 3", b"sum: 1 2 3"]
    lines = said.stdout.splitlines()
    assert sorted(line for line in lines if line in told) == sorted(told)
    n_told = sum(len(line) + 1 for line in told)
    n_between = 2  # on each stream a newline between the ranks
    assert len(said.stdout) + len(said.stderr) == n_told + 2 * 60_000 + n_between


@pytest.mark.parametrize(
    ("program", "chosen"),
    each_with_first(
        {"program": ["python", "shell"], "chosen": [[], ["--env", "OMP_NUM_THREADS=3"]]}
    ),
)
def test_the_cores_of_a_host_are_divided_among_its_ranks(program, chosen, monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    show = ["sh", "-c", "echo $OMP_NUM_THREADS"]
    if program == "python":
        show = [write_script(tmp_path, "import os\nprint(os.environ.get('OMP_NUM_THREADS', ''))")]
    said = launch("-n", str(cores + 1), *chosen, "--label", "none", "--", *show)
    line = "phalanx launch: ranks share the cores: OMP_NUM_THREADS=1 in each (--env changes it)\n"
    is_told = program == "python" and not chosen and cores > 1
    assert said.stderr.decode() == (line if is_told else "")
    threads = b"3" if chosen else b"" if cores == 1 else b"1"
    assert said.stdout.splitlines() == [threads] * (cores + 1)


def test_a_module_of_one_rank(tmp_path):
    code = "import sys\nimport phalanx as px\nprint(__name__, sys.argv[1:], px.init().size(), px.all_sum(3))"
    write_script(tmp_path, code, "here.py")
    said = launch("-n", "1", "--cwd", str(tmp_path), "-m", "here", "--verbose", "-n")
    assert said.stdout == b"[0] __main__ ['--verbose', '-n'] 1 3\n"
    assert said.stderr == b""
    assert said.returncode == 0


@pytest.mark.promise
def test_output_that_nobody_wants_ends_the_ranks(script):
    path = script("while True: print('x' * 1000)")
    with subprocess.Popen(
        [*LAUNCH, "-n", "2", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as popen:
        popen.stdout.readline()
        processes = psutil.Process(popen.pid).children(recursive=True)
        popen.stdout.close()
        assert popen.wait(PATIENCE_S) == 1
        assert wait_gone(processes) == []


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


def read_until(fd, done, limit_s=PATIENCE_S):
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
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )  # fmt: skip


def both_ask(text):
    return text.endswith(b"[0] (Pdb) \r\n[1] (Pdb) ")


def test_the_debugger_on_all_ranks_in_a_terminal(script):
    # One write for the words: a busy machine may stop the rank for a while between two.
    path = script("x = 6 * 7\nbreakpoint()\nprint(f'after {x}')")
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs), fcntl.fcntl(theirs, fcntl.F_GETFL)
    with in_terminal(theirs, *LAUNCH, "-n", "2", path) as popen:
        read_until(ours, both_ask)
        os.write(ours, b"p x + 1\n")
        text = read_until(ours, lambda text: text.count(b"43") == 2 and both_ask(text))
        assert b"[0] 43\r\n" in text
        assert b"[1] 43\r\n" in text
        os.write(ours, b"c\n")
        text = read_until(ours, lambda text: text.count(b"after 42") == 2)
        assert b"[0] after 42\r\n" in text
        assert b"[1] after 42\r\n" in text
        assert popen.wait(PATIENCE_S) == 0
    assert (termios.tcgetattr(theirs), fcntl.fcntl(theirs, fcntl.F_GETFL)) == before
    os.close(ours)
    os.close(theirs)


def test_in_the_background_the_terminal_s_input_is_the_shell_s(script):
    path = script("import sys; [print(f'got {line.strip()}') for line in sys.stdin]")
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
        popen.wait(PATIENCE_S)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x7fELF", "Exec format error; begin a script with #! and its interpreter"),
        (
            b"#!/nowhere/sh\n",
            "No such file or directory; is the interpreter there that its first line names?",
        ),
    ],
)
def test_a_program_that_cannot_run_is_one_line(tmp_path, content, why):
    path = tmp_path / "broken"
    path.write_bytes(content)
    path.chmod(0o755)
    said = launch("-n", "2", str(path))
    assert said.returncode == 1
    assert said.stderr.decode() == (
        f"phalanx launch: the ranks could not be started: {path}: {why}\n"
    )


def test_which_python(capsys):
    assert main(["launch", "--print-python"]) == 0
    assert capsys.readouterr().out == f"{sys.executable}\n"
