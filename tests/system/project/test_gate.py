"""The gate: what is broken turns a run red, what is flaky is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.places import TESTS
from support.runs.history import outcomes
from support.runs.tiers import deep
from tools import gate


@pytest.fixture
def place(tmp_path):
    """A copy of the gate with a folder of tests, where nothing else is."""
    for name in ("tools/gate.py", "support/runs/history.py", "support/__init__.py"):
        if (TESTS / name).exists():
            (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TESTS / name, tmp_path / "tests" / name)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.runs.history"]\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    return tmp_path


def judged(place, *words):
    """How the gate ended, what it said, and its list of flaky tests."""
    left_out = ("PYTEST", "PHALANX", "COV")
    inherited = {name: v for name, v in os.environ.items() if not name.startswith(left_out)}
    paths = {
        "PYTHONPATH": str(place / "tests"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, place / "tests/tools/gate.py", *words],
        cwd=place,
        env=inherited | paths,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    flaky = place / "build/flaky.txt"
    lines = flaky.read_text().splitlines() if flaky.exists() else []
    return done.returncode, done.stdout + done.stderr, lines


FLAKY = """
from pathlib import Path
def tries():
    with open("tries", "a") as file:
        file.write("x")
    return len(Path("tries").read_text())
"""


@pytest.mark.parametrize(
    ("n", "again"),
    [pytest.param(1, "passed, passed", marks=deep), (2, "passed, failed")],
    ids=["first", "first two"],
)
def test_a_test_that_passes_once_is_flaky_and_green(place, n, again):
    (place / "test_a.py").write_text(f"{FLAKY}\ndef test_it(): assert tries() > {n}\n")
    code, said, flaky = judged(place, "pytest", "-n", "2")
    assert (code, flaky) == (0, [f"FLAKY: test_a.py::test_it: failed; again alone: {again}"]), said
    recorded = [o.outcome for o in outcomes(place / "build/history.jsonl")]
    assert recorded == ["failed", *["failed"] * (n - 1), *["passed"] * (3 - n), "flaky"]


def test_one_broken_test_beside_a_flaky_one_is_red(place):
    (place / "test_a.py").write_text(f"{FLAKY}\ndef test_it(): assert tries() > 1\n")
    (place / "test_b.py").write_text("def test_bad(): assert False\ndef test_good(): pass\n")
    code, said, flaky = judged(place, "pytest")
    assert (code, len(flaky)) == (1, 1), said
    assert "BROKEN: test_b.py::test_bad: failed, and failed 2 times alone" in said
    assert "test_good: failed" not in said


def test_failures_in_many_files_are_red_at_once(place):
    for name in "abcde":
        (place / f"test_{name}.py").write_text("def test_bad(): assert False\n")
    code, said, _ = judged(place, "pytest")
    assert code == 1
    assert "tests of 5 files failed, more than 4: not run again" in said
    assert "again, alone" not in said


@pytest.mark.parametrize(
    "text",
    [
        "import nowhere\n",
        pytest.param("def test_it(:\n", marks=deep),
        "import os\ndef test_it(): os._exit(1)\n",
    ],
)
def test_a_file_that_cannot_run_is_red(place, text):
    (place / "test_a.py").write_text(text)
    code, said, flaky = judged(place, "pytest", "-n", "1")
    assert code != 0, said
    assert flaky == []


def test_a_worker_that_dies_once_is_flaky(place):
    (place / "test_a.py").write_text(
        f"{FLAKY}import os\ndef test_it(): tries() > 1 or os._exit(1)\n"
    )
    code, said, flaky = judged(place, "pytest", "-n", "1")
    assert code == 0, said
    assert flaky == ["FLAKY: test_a.py::test_it: failed; again alone: passed, passed"]


def test_failed_tests_run_again_when_nothing_else_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(gate, "RUNNING", tmp_path / "build" / "lock")
    took = []

    def take():
        with gate.running(is_alone=True):
            took.append(1)

    with gate.running(is_alone=False), gate.running(is_alone=False):
        waiting = threading.Thread(target=take)
        waiting.start()
        with gate.running(is_alone=False):
            assert not took
    waiting.join()
    assert took


def test_wrong_arguments_of_pytest_are_red(place):
    assert judged(place, "pytest", "--no-such-option")[0] == 4
    assert judged(place, "pytest", "no_such_test.py")[0] == 4


DOCTEST = """
===============================================================================
tests/native/test_work.cpp:12:
TEST CASE:  {case}

tests/native/test_work.cpp:15: ERROR: CHECK( a == b ) is NOT correct!

===============================================================================
[doctest] test cases:   3 |   2 passed | {n} failed | 0 skipped
[doctest] assertions: 317 | 316 passed | 1 failed |
[doctest] Status: FAILURE!
"""
PASSED = "[doctest] test cases: 1 | 1 passed | 0 failed | 9 skipped"
NOT_FOUND = "[doctest] test cases: 0 | 0 passed | 0 failed | 9 skipped"


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (DOCTEST.format(case="a, b", n=1), PASSED, 0),
        (DOCTEST.format(case="a, b", n=1), NOT_FOUND, 1),
        (DOCTEST.format(case="a, b", n=2), PASSED, 1),  # a case that failed without a word
        ("WARNING: ThreadSanitizer: data race", PASSED, 1),
    ],
)
def test_cases_in_cpp_are_run_again_by_name(place, first, then, code):
    script = place / "tests/native/run"
    script.parent.mkdir()
    (place / "first").write_text(first)
    (place / "then").write_text(then)
    script.write_text(
        '#!/bin/sh\necho "$2" >>asked\n[ -n "$2" ] && { cat then; exit 0; }\ncat first; exit 1\n'
    )
    script.chmod(0o755)
    ended, said, flaky = judged(place, "native", "plain")
    assert ended == code, said
    assert len(flaky) == (code == 0)
    if code == 0:
        assert (place / "asked").read_text() == "\n--test-case=a? b\n--test-case=a? b\n"


class FakeVitest(gate.VitestSuite):
    """Files end as told, run after run."""

    def __init__(self, *runs):
        self.runs = list(runs)

    def _vitest(self, words):
        return self.runs.pop(0)


@pytest.mark.parametrize(
    ("then", "code"), [((0, {"a.test.ts": "passed"}), 0), ((1, {"a.test.ts": "failed"}), 1), ((1, {}), 1)]
)  # fmt: skip
def test_files_of_vitest_are_run_again(tmp_path, monkeypatch, then, code):
    monkeypatch.setattr(gate, "FLAKY", tmp_path / "flaky.txt")
    monkeypatch.setattr(gate, "RUNNING", tmp_path / "lock")
    monkeypatch.setattr(gate, "append", lambda outcome: None)
    first = (1, {"a.test.ts": "failed", "b.test.ts": "passed"})
    assert gate.judge(FakeVitest(first, then, then)) == code
    assert (tmp_path / "flaky.txt").exists() == (code == 0)
    assert gate.judge(FakeVitest((1, {}))) == 1  # vitest itself did not end


def test_the_report_of_vitest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(gate.VitestSuite, "_REPORT", tmp_path / "vitest.json")
    file = str(gate.ROOT / "widgets/js/test/a.test.ts")

    def run(command, limit_s):
        report = {"testResults": [{"name": file, "status": "failed"}]}
        (tmp_path / "vitest.json").write_text(json.dumps(report))
        return 1

    monkeypatch.setattr(gate, "run", run)
    failed = {"widgets/js/test/a.test.ts": ["widgets/js/test/a.test.ts"]}
    assert gate.VitestSuite().run_all() == (1, failed)
