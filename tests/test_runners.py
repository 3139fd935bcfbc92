"""The scripts that run the tests, `tests/run` and `tests/fuzz/run`: what fails is said, and counts.

Copies of them, with tools that only say how they ended.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent


@pytest.fixture
def place(tmp_path):
    """Copies of both scripts, and a folder ``bin`` for tools."""
    for name in ("tests/run", "tests/fuzz/run"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((_TESTS.parent / name).read_text())
        copy.chmod(0o755)
    (tmp_path / "bin").mkdir()
    return tmp_path


def tool(place, name, script):
    path = place / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def ran(place, *command, **env):
    """How a script ended and what it said."""
    result = subprocess.run(
        [place / command[0], *command[1:]],
        env={**os.environ, "PHALANX_NO_INSTALL": "1", "PHALANX_TEST_VENV": str(place), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize(
    ("beside", "pairs", "alone", "ends"),
    [
        (5, 5, 5, 1),
        (0, 5, 5, 0),
        (5, 0, 5, 0),
        (5, 5, 0, 0),
        (0, 0, 0, 0),
        (1, 5, 5, 1),
        (5, 5, 1, 1),
    ],
)
def test_a_part_may_be_without_tests_and_not_all(place, beside, pairs, alone, ends):
    parts = f"*part\\ beside*) exit {beside} ;; *part\\ pairs*) exit {pairs} ;;"
    tool(place, "python", f'case "$*" in {parts} esac; exit {alone}')
    code, said = ran(place, "tests/run", "python", "-k", "nobody")
    assert code == ends, said
    assert f"{3 - ends} passed, {ends} failed" in said


# pytest as it is seen from tests/run: it writes those that fail, from `failing`, and how they went.
PYTEST = """
while [ $# -gt 0 ]; do
    case $1 in --failed-to) to=$2 ;; esac
    tests="$tests<$1>"
    shift
done
cp "failing/${to##*/}" "$to" 2>/dev/null || : >"$to"
echo "ran ${to##*/}: $tests"
[ ! -s "$to" ]
"""
ODD = "tests/a.py::test_x[import time; time.sleep(600)-a b]"


def failing(place, then="", **parts):
    """What a run says in whose parts these tests fail; ``then`` is what pytest does at last."""
    tool(place, "python", PYTEST + then)
    (place / "failing").mkdir()
    for name, tests in parts.items():
        (place / "failing" / name).write_text("".join(f"{test}\n" for test in tests))
    return ran(place, "tests/run", "python")


def test_what_passes_at_its_second_try_is_named_and_no_failure(place):
    code, said = failing(place, beside=[ODD], pairs=["tests/b.py::test_y"])
    assert code == 0, said
    options = "<--failed-to><build/tries/second><-ra><--session-timeout><300>"
    assert f"ran second: <-m><pytest>{options}<{ODD}><tests/b.py::test_y>" in said
    assert said.count("ok, but for 1 to be tried again") == 4  # after each part, and in the summary
    assert said.endswith(
        f"passed at a later try only:\n{ODD} (second try)\ntests/b.py::test_y (second try)\n"
        "\n4 passed, 0 failed\n"
    )
    assert "ran third" not in said


def test_the_last_try_is_the_third(place):
    code, said = failing(place, alone=["tests/b.py::test_y", ODD], second=[ODD])
    assert code == 0, said
    assert f"<{ODD}>\n" in said.partition("ran third: ")[2]
    assert said.endswith(
        f"passed at a later try only:\ntests/b.py::test_y (second try)\n{ODD} (third try)\n"
        "\n4 passed, 0 failed\n"
    )


def test_what_fails_again_has_failed(place):
    tests = ["tests/b.py::test_y", ODD]
    code, said = failing(place, alone=tests, second=[ODD], third=[ODD])
    assert code == 1, said
    assert said.endswith("later try only:\ntests/b.py::test_y (second try)\n\n3 passed, 1 failed\n")


def test_where_nothing_fails_nothing_is_tried_again(place):
    code, said = failing(place)
    assert code == 0, said
    assert "ran second" not in said
    assert "later try" not in said


def test_many_failures_are_no_bad_moment(place):
    code, said = failing(place, beside=[f"tests/a{i}.py::test_x" for i in range(13)])
    assert code == 1, said
    assert "ran second" not in said
    assert "13 tests in 13 files failed" in said


def test_those_of_one_file_may_have_one_cause(place):
    code, said = failing(place, beside=[f"tests/a.py::test_{i}" for i in range(41)])
    assert code == 0, said
    assert said.count("tests/a.py::test_") == 2 * 41  # those run again, and their names at the end


def test_a_second_try_that_takes_too_long_has_failed(place):
    late = 'case $to in *second) rm "$to" ;; esac'  # pytest is stopped before it says who failed
    code, said = failing(place, beside=["tests/a.py::test_x"], then=late)
    assert code == 1, said
    assert "later try" not in said


def test_lint_that_cannot_begin_has_failed(place):
    (place / "build").write_text("in the way")
    code, said = ran(place, "tests/run", "lint")
    assert code == 1
    assert "0 passed, 1 failed" in said


def test_a_fuzzer_that_does_not_compile_hides_no_other(place):
    tool(place, "python", "exit 1")  # no atheris
    tool(place, "clang", "exit 0")
    tool(place, "cmake", "echo broken; exit 1")
    tools = {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "CXX": "clang",
        "FUZZ_PYTHON": "python",
        "PHALANX_BUILD": str(place / "build" / "fuzz"),
    }
    code, said = ran(place, "tests/fuzz/run", "1", "hosts", "engine", "files", **tools)
    assert code == 1
    assert said.splitlines() == [
        "broken",
        "engine: FAILED, it does not compile",
        "hosts: left out, there is no atheris",
        "files: left out, there is no atheris",
    ]
    assert ran(place, "tests/fuzz/run", PHALANX_BUILD_ONLY="1", **tools) == (1, "broken\n")
    tools["CXX"] = "nowhere"
    assert ran(place, "tests/fuzz/run", PHALANX_BUILD_ONLY="1", **tools) == (0, "")
