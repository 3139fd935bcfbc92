"""`phalanx launch --backend mpi`: labels, statuses, input, and that nothing outlives it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from launching import LAUNCH, PATIENCE_S, launch
from mpis import CELLS, marked, wait_for
from processes import wait_gone

pytestmark = pytest.mark.slow


def run(mpi, *words, stdin=b"", **env):
    with marked() as mark:
        return launch(
            "--backend", "mpi", *words, stdin=stdin, env={**mpi.environment(), **mark, **env}
        )


@pytest.fixture
def held(mpi, tmp_path):
    """A launcher whose ranks wait in recv for ever, and all its processes."""
    with marked() as mark:
        popen = subprocess.Popen(
            [*LAUNCH, "--backend", "mpi", "-n", "2", CELLS, f"hold:{tmp_path}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**mpi.environment(), **mark},
        )  # fmt: skip
        assert popen.stdout.readline() == b"[0] holding\n"
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        family = psutil.Process(popen.pid).children(recursive=True)
        assert {int(path.read_text()) for path in tmp_path.iterdir()} <= {p.pid for p in family}
        yield popen, family
        popen.kill()
        popen.communicate()


def test_lines_are_labelled_and_streams_kept_apart(mpi):
    code = (
        "import sys; import phalanx as px; world = px.init(strict=True)\n"
        "sys.stdout.write(f'sum {px.all_sum(world.rank() + 1)}, ' + 'é' * 40_000 + '\\n')\n"
        "print('apart', file=sys.stderr)"
    )
    said = run(mpi, "-n", "3", "--", sys.executable, "-c", code)
    assert said.returncode == 0, said.stderr
    assert sorted(said.stdout.decode().splitlines()) == [
        f"[{rank}] sum 6, {'é' * 40_000}" for rank in range(3)
    ]
    assert sorted(said.stderr.decode().splitlines()) == [f"[{rank}] apart" for rank in range(3)]


def test_the_exit_status_is_mpirun_s(mpi):
    said = run(mpi, "-n", "2", CELLS, "exit_status:3")
    assert said.returncode == 3
    assert b"phalanx launch: mpirun exited with status 3" in said.stderr.splitlines()
    assert run(mpi, "-n", "2", CELLS, "killed").returncode != 0


def test_input_goes_to_all_ranks(mpi):
    code = "import hashlib, sys; print(hashlib.md5(sys.stdin.buffer.read()).hexdigest())"
    data = os.urandom(3_000_000)
    said = run(mpi, "-n", "3", "--", sys.executable, "-c", code, stdin=data)
    digest = hashlib.md5(data).hexdigest()
    assert sorted(said.stdout.decode().splitlines()) == [f"[{r}] {digest}" for r in range(3)]
    # One that never reads holds up nobody.
    words = ["sh", "-c", "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] || wc -c"]
    said = run(mpi, "-n", "2", "--", *words, stdin=data)
    assert said.stdout == b"[1] 3000000\n"


def test_arguments_reach_mpirun(mpi):
    option = {"openmpi": "--report-bindings --bind-to none", "mpich": "-genv HELLO there"}[mpi.name]
    said = run(mpi, "-n", "1", "--mpi-arg", option, "--", "sh", "-c", "echo $HELLO.")
    assert said.returncode == 0, said.stderr
    assert said.stdout == {"openmpi": b"[0] .\n", "mpich": b"[0] there.\n"}[mpi.name]


def test_ctrl_c_ends_all(held):
    popen, family = held
    popen.send_signal(signal.SIGINT)
    assert not wait_gone(family, PATIENCE_S)
    popen.communicate(timeout=10)
    assert popen.returncode == 130


def test_a_killed_launcher_takes_all_along(held):
    popen, family = held
    popen.kill()
    assert not wait_gone(family, PATIENCE_S)


def test_a_killed_mpirun_takes_all_along(held):
    popen, family = held
    psutil.Process(popen.pid).children()[0].kill()
    assert not wait_gone(family, PATIENCE_S)
    _, said = popen.communicate(timeout=10)
    assert popen.returncode == 137
    assert b"phalanx launch: mpirun killed by signal 9 (SIGKILL)" in said


def test_time_is_up(mpi, tmp_path):
    said = run(mpi, "-n", "2", "--timeout", "4", CELLS, f"hold:{tmp_path}")
    assert said.returncode == 124
    assert b"did not end within 4 s" in said.stderr


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["--mpi-arg=-q", "--", "/bin/true"], "--mpi-arg is for --backend mpi", 2),
        (["--backend", "mpi", "--transport", "tcp", "--", "/bin/true"], "--transport is for", 2),
        (
            ["--backend", "mpi", "--mpi-arg", "'", "--", "/bin/true"],
            "--mpi-arg ': No closing quotation",
            2,
        ),
        (["--backend", "mpi", "--", "/bin/true"], "there is no mpirun on the PATH; pip", 1),
    ],
)
def test_mistakes_are_one_line(words, text, code, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "PATH"}
    said = subprocess.run(
        [*LAUNCH, *words], capture_output=True, text=True, timeout=60, check=False,
        env={**env, "PATH": str(tmp_path)},
    )  # fmt: skip
    assert said.returncode == code
    (line,) = said.stderr.splitlines()
    assert line.startswith("phalanx launch: ")
    assert text in line
