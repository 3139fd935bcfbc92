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
    ("beside", "alone", "ends"), [(5, 5, 1), (0, 5, 0), (5, 0, 0), (0, 0, 0), (1, 5, 1), (5, 1, 1)]
)
def test_a_part_may_be_without_tests_and_not_both(place, beside, alone, ends):
    tool(place, "python", f'case "$*" in *"--part beside"*) exit {beside} ;; esac; exit {alone}')
    code, said = ran(place, "tests/run", "python", "-k", "nobody")
    assert code == ends, said
    assert f"{2 - ends} passed, {ends} failed" in said


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
