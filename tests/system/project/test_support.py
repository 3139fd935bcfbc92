"""The tests' own tools: tiers, skips, history, repetitions, bounds, and what drives a kernel."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import promise
from support.notebooks.kernel_driver import KernelDriver
from support.places import TESTS
from support.ranks import loops
from support.runs import skips
from support.runs.history import Outcome, append, outcomes, write_durations
from support.runs.tiers import deep_but, pairwise
from support.waiting import wait_until
from tools import repeat

from phalanx.supervisor.hosts.connection import HANDSHAKE_MS

CONFTEST = (
    'pytest_plugins = ["support.runs.history", "support.runs.schedule", "support.runs.skips"]\n'
)


def pytest_in(folder: Path, tests: str, *words: str, **env: str) -> str:
    """Run pytest with our plugins on a file of tests; what it said."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "CI", "PHALANX_MUST_RUN"))
    }
    pytest_words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-ra", *words, "test_it.py"]
    done = subprocess.run(
        [sys.executable, *pytest_words],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(TESTS), "PHALANX_NO_HISTORY": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


SKIPPING = """
import pytest
def test_allowed(): pytest.skip("this machine has no ::1")
def test_forbidden(): pytest.skip("torch is not there")
@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""


def test_a_skip_that_is_not_listed_fails_in_ci_only(tmp_path):
    assert "2 skipped, 1 xfailed" in pytest_in(tmp_path, SKIPPING)
    said = pytest_in(tmp_path, SKIPPING, CI="true")
    assert "1 failed, 1 skipped, 1 xfailed" in said
    assert "skips.toml does not allow it: " in said
    assert "torch is not there" in said


def test_a_file_that_skips_itself_fails_in_ci(tmp_path):
    said = pytest_in(tmp_path, 'import pytest\npytest.importorskip("nowhere")', CI="true")
    assert "1 error" in said, said


def test_every_allowed_skip_says_why():
    rows = skips.tomllib.loads(skips.ALLOWED.read_text())["skip"]
    assert all(row.keys() == {"reason", "why"} for row in rows)
    assert not skips.is_allowed("could not import 'torch'")
    assert not skips.is_allowed("could not import 'mlx.core'")


def test_pairwise_keeps_every_pair_in_the_first_tier():
    axes = {"a": [1, 2, 3], "b": "xyz", "c": [True, False]}
    cases = pairwise(axes, lambda a, b, c: (a, b) != (1, "x"))
    assert len(cases) == 3 * 3 * 2 - 2
    first = [case.values for case in cases if not case.marks]
    assert len(first) < 12
    for i, j in itertools.combinations(range(3), 2):
        pairs = {(case.values[i], case.values[j]) for case in cases}
        assert {(values[i], values[j]) for values in first} == pairs


def test_deep_but_keeps_what_it_is_told():
    cases = deep_but([2], [1, 2, 3])
    assert cases[1] == 2
    assert [bool(getattr(case, "marks", ())) for case in cases] == [True, False, True]
    with pytest.raises(AssertionError, match="must be one of the cases"):
        deep_but([4], [1, 2, 3])


def test_a_run_records_how_each_test_ended(tmp_path):
    tests = (
        "import support.runs.history as h, pathlib\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
    )
    (tmp_path / "where.py").write_text("import support.runs.history as h, pathlib\n")
    conftest = "import pathlib, support.runs.history as h\nh.Recorder.__init__.__defaults__ = (pathlib.Path('record'),)\n"
    (tmp_path / "more.py").write_text(conftest)
    said = pytest_in(
        tmp_path, tests, "-p", "more", PHALANX_NO_HISTORY="", PYTHONPATH=f"{TESTS}:{tmp_path}"
    )
    assert "1 failed, 1 passed" in said
    ended = {o.test: o.outcome for o in outcomes(tmp_path / "record")}
    assert ended == {"test_it.py::test_good": "passed", "test_it.py::test_bad": "failed"}
    assert len(list(outcomes(tmp_path / "record"))) == 2
    # A run that is killed has recorded the tests that ended before.
    (tmp_path / "record").unlink()
    killed = tests + "def test_killed():\n    import os\n    os.kill(os.getpid(), 9)\n"
    pytest_in(
        tmp_path, killed, "-p", "more", PHALANX_NO_HISTORY="", PYTHONPATH=f"{TESTS}:{tmp_path}"
    )
    assert {o.test: o.outcome for o in outcomes(tmp_path / "record")} == ended


def test_durations_are_those_of_the_last_run_of_each_test(tmp_path):
    ended = [("a.py::x", 9.0), ("b.py::y", 5.0), ("a.py::x", 3.0), ("b.py::z", 2.0)]
    for test, seconds in ended:
        append(Outcome("run", test, "passed", seconds, 1.0), tmp_path / "h")
    write_durations(tmp_path / "h", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text()) == {"a.py": 3.0, "b.py": 7.0}


def test_functions_that_a_change_touches_are_found(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(
        "import os\n\n@mark\ndef test_a():\n    1\n\n\ndef test_b():\n    2\n"
    )
    (tmp_path / "tests/cells.py").write_text("def test_no(): pass\n")
    diff = "+++ b/tests/test_x.py\n@@ -3 +3 @@\n+++ b/tests/cells.py\n@@ -1 +1 @@\n"
    assert repeat.touched(diff, tmp_path) == ["tests/test_x.py::test_a"]
    both = "+++ b/tests/test_x.py\n@@ -5,4 +5,4 @@\n"
    assert repeat.touched(both, tmp_path) == ["tests/test_x.py::test_a", "tests/test_x.py::test_b"]


def test_a_bound_is_asserted_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(promise, "_RECORD", tmp_path / "build" / "bounds.jsonl")
    promise.check(0.5, 1.0)
    with pytest.raises(AssertionError, match=r"took 1\.50 s of 1\.0 s"):
        promise.check(1.5, 1.0)
    lines = [
        json.loads(line) for line in (tmp_path / "build/bounds.jsonl").read_text().splitlines()
    ]
    assert [line["seconds"] for line in lines] == [0.5, 1.5]
    assert "test_a_bound_is_asserted" in lines[0]["test"]


def test_a_wait_ends_with_what_was_awaited_or_says_what():
    seen = iter([0, 0, 7])
    assert wait_until(lambda: next(seen), "seven") == 7
    with pytest.raises(AssertionError, match="not within 0 s: the moon"):
        wait_until(lambda: False, "the moon", timeout_s=0)


def test_a_held_loop_waits_for_limits_of_its_own_clock_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(loops, "PATIENCE_S", 0.0)  # real time is up before the first look

    async def main(loop):
        fired = asyncio.Event()
        loop.call_later(HANDSHAKE_MS / 1000, fired.set)
        await loop.until(fired.is_set, "the limit of a connection", step_s=0.1)
        with pytest.raises(AssertionError, match="not within"):
            await loop.until(lambda: False, "nothing", step_s=0.1)

    loops.run_held(main)


@pytest.mark.slow
def test_what_a_failed_test_leaves_is_stopped():
    with KernelDriver() as kernel:
        waiting = kernel.submit("input('nobody answers ')")
        queued = kernel.submit("while True: pass")
        waiting.until(lambda so_far: bool(so_far.prompts))
        kernel.stop_cells()
        assert waiting.is_done
        assert queued.is_done
        assert kernel.run("1 + 1").text == "2\n"


@pytest.mark.slow
def test_a_killed_kernel_is_noticed():
    with KernelDriver() as kernel:
        running = kernel.submit("print(1)\nwhile True: pass")
        running.until(lambda so_far: so_far.stdout == "1\n")
        kernel.kill()
        with pytest.raises(ConnectionError, match="the kernel died"):
            running.result()
