"""The command line: help everywhere, and one line for a mistake, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig

import psutil
import pytest
from support.programs.launching import wait_gone
from support.promise import PATIENCE_S
from support.ranks.worlds import make_sweep

import phalanx
import phalanx.workspace
from phalanx.cli import lab, main
from phalanx.cli.machine import machine_header
from phalanx.errors import RankFailure
from phalanx.protocol import Limit, SweepProgress, SweepRun


class FakeWorkspace:
    """What `phalanx bench` uses of a workspace; the real one is used by the slow test below."""

    size = 2
    n_wrong = 0
    failure: Exception | None = None

    @classmethod
    def start(cls, n=4, **options):
        cls.started = {"n": n, **options}
        return cls()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def bench(
        self, op="all_sum", *, begin=8, end=64 << 20, factor=4, dtype="float32", iterations=20
    ):
        return FakeSweep(make_sweep(op, 3, n_wrong=self.n_wrong), self.failure)


class FakeSweep:
    """What it uses of a sweep."""

    limits = (Limit("memory copy", "arena", 8.25, 1 << 30, 0.2, "one core"),)
    progress = SweepProgress("measuring", 1, 3, 32, 0.1, 4.0)

    def __init__(self, points, failure):
        self.points, self._failure = points, failure

    @property
    def run(self):
        return SweepRun("all_sum", "float32", 4, "done", "", tuple(self.points), self.limits)

    def __iter__(self):
        yield from self.points
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def workspace(monkeypatch):
    class Fresh(FakeWorkspace):
        pass

    monkeypatch.setattr(phalanx.workspace, "Workspace", Fresh)
    return Fresh


def _exit_code(argv):
    """The exit code, whether argparse leaves or main returns."""
    try:
        return main(argv)
    except SystemExit as leaving:
        return leaving.code


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["lab", "--help"], ["launch", "--help"], ["bench", "--help"], ["--version"]],
)
def test_help_and_version(argv, capsys):
    assert _exit_code(argv) == 0
    said = capsys.readouterr().out
    assert "usage:" in said or said == f"phalanx {phalanx.__version__}\n"


def test_python_m_phalanx_is_the_command():
    said = subprocess.run([sys.executable, "-m", "phalanx", "--version"], capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout == f"phalanx {phalanx.__version__}\n"


def test_nothing_asked(capsys):
    assert _exit_code([]) == 2
    assert "usage:" in capsys.readouterr().err


def test_bench_prints_the_table(capsys, workspace):
    assert main(["bench", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("# commit: ") for line in lines)
    assert any(line.startswith("# machine: ") for line in lines)
    assert [line.split()[0] for line in lines if not line.startswith("#")] == ["8", "32", "128"]


def test_bench_tells_limit_model_and_progress(capsys, workspace, monkeypatch):
    assert main(["bench", "-n", "2"]) == 0
    said = capsys.readouterr()
    assert "# limit: memory copy 8.25 GB/s (one core)" in said.out
    assert "# time: 3 µs + bytes / 8 GB/s (off by 0 %)" in said.out
    assert not said.err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for term, is_shown in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        assert main(["bench", "-n", "2"]) == 0
        said = capsys.readouterr().err
        assert ("# 1 of 3 sizes, about 4 s left\r\x1b[K" in said) == is_shown == bool(said)


def test_bench_json(capsys, workspace):
    assert main(["bench", "--json"]) == 0
    header, *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert header["machine"]["phalanx"] == phalanx.__version__
    assert [row["nbytes"] for row in rows] == [8, 32, 128]
    assert last["model"]["limits"][0]["gbs"] == 8.25
    assert last["model"]["fit"]["alpha_us"] == pytest.approx(3)
    assert last["model"]["changes"] == []


def test_wrong_elements_fail(capsys, workspace):
    workspace.n_wrong = 2
    assert main(["bench"]) == 1
    assert "6 wrong elements" in capsys.readouterr().err


def test_a_lost_rank_is_one_line(capsys, workspace):
    workspace.failure = RankFailure(1, "here", "killed by signal 9 (SIGKILL)")
    assert main(["bench"]) == 1
    said = capsys.readouterr().err
    assert said == "phalanx bench: rank 1 on here: killed by signal 9 (SIGKILL)\n"


def test_interrupt(capsys, workspace):
    workspace.failure = KeyboardInterrupt()
    assert main(["bench"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_machine_header_is_whole():
    assert all(machine_header().values())


def test_notebooks_are_copied_once(tmp_path):
    assert lab.copy_notebooks(tmp_path / "new" / "folder") == []
    folder = tmp_path / "new" / "folder"
    assert (folder / "01_first_ranks.ipynb").is_file()
    assert (folder / "data" / "seattle-weather.csv").is_file()
    assert (folder / "guide" / "coming_from_other_tools.md").is_file()
    assert lab.copy_notebooks(folder) == []


def test_changed_files_are_kept(tmp_path):
    lab.copy_notebooks(tmp_path)
    mine = tmp_path / "01_first_ranks.ipynb"
    mine.write_text("mine", encoding="utf-8")
    (tmp_path / "data" / "seattle-weather.csv").unlink()
    assert lab.copy_notebooks(tmp_path) == ["01_first_ranks.ipynb"]
    assert mine.read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "data" / "seattle-weather.csv").is_file()


def test_lab_becomes_jupyterlab(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(lab.os, "execve", lambda *how: asked.append(how))
    monkeypatch.setenv("PATH", "/somewhere")
    main(["lab", "--folder", str(tmp_path), "--port", "9999", "--no-browser", "--ip=::1"])
    ((path, argv, env),) = asked
    assert path == sys.executable
    assert argv[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {"--port=9999", "--no-browser", "--ip=::1", f"--ServerApp.root_dir={tmp_path}"} <= set(
        argv
    )
    # A cell finds `phalanx`, whether or not its environment is activated.
    assert env["PATH"] == f"{sysconfig.get_path('scripts')}{os.pathsep}/somewhere"


def test_bench_starts_its_ranks_on_the_hosts_that_are_named(workspace, capsys):
    words = ["--hosts", "a,b:2222", "-n", "3", "--python", "/p", "--ssh-arg=-4", "--env", "A=1"]
    assert main(["bench", *words]) == 0
    its = workspace.started
    assert (its["hosts"], its["n"], its["python"]) == ("a,b:2222", 3, "/p")
    assert (its["ssh_args"], its["env"]) == (("-4",), ["A=1"])
    assert "# 2 ranks on a,b:2222, 20 iterations" in capsys.readouterr().out


def test_lab_without_jupyterlab_names_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda _: None)
    assert main(["lab", "--folder", str(tmp_path)]) == 1
    assert "-m pip install jupyterlab" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["lab", "--folder", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("phalanx lab: ")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_bench_for_real():
    said = subprocess.run(
        [sys.executable, "-m", "phalanx", "bench", "-n", "2", "-e", "1K", "-f", "16", "--iters", "3"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    rows = [line.split() for line in said.stdout.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["8", "128"]
    assert all(row[3] == "all_sum" and row[-1] == "0" for row in rows)
    assert not said.stderr


@pytest.mark.slow
def test_a_pipe_that_closes_is_no_traceback():
    said = subprocess.run(
        f"{sys.executable} -m phalanx bench -n 1 -e 64 --iters 1 | head -1",
        shell=True, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert said.stdout.startswith("# phalanx: ")
    assert "Traceback" not in said.stderr


@pytest.mark.slow
@pytest.mark.promise
def test_ctrl_c_is_one_line_and_leaves_nothing():
    bench = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "bench", "-n", "2", "-e", "256M", "--iters", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        header = iter(bench.stdout.readline, "")
        assert any(not line.startswith("#") for line in header)  # the first row: it measures
        family = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(signal.SIGINT)
        said = bench.communicate(timeout=PATIENCE_S)
    finally:
        bench.kill()
    assert bench.returncode == 130
    assert said[1] == "phalanx bench: interrupted\n"
    assert len(family) >= 3
    assert wait_gone(family) == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nothing"]])
def test_answers_that_need_no_command_import_none(words):
    code = (
        "import sys\nfrom phalanx.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "print(*sorted({'numpy', 'zmq', 'msgspec', 'phalanx.protocol', 'phalanx.workspace'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == ""
