"""The scripts that run the tests, `tests/run` and `tests/fuzz/run`: what fails is said, and counts.

Copies of them, with tools that only say how they ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from support.places import ROOT
from support.programs.commands import write_command


@pytest.fixture
def place(tmp_path):
    """Copies of both scripts, and a folder ``bin`` for tools."""
    for name in ("tests/run", "tests/fuzz/run"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / name).read_text())
        copy.chmod(0o755)
    (tmp_path / "bin").mkdir()
    return tmp_path


def tool(place, name, script):
    write_command(place / "bin" / name, script)


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


# Says what it was called with and what it was told to hold; fails where the file `fails` names it.
PYTHON = """
echo "python $* deep=${PHALANX_DEEP:-} hold=${PHALANX_HOLD:-}"
if [ -e fails ] && echo "$*" | grep -q -- "$(cat fails)"; then exit 1; fi
"""


@pytest.fixture
def quiet_place(place):
    """A copy in which every tool of every section succeeds."""
    for name in ("ruff", "mypy", "stubtest", "lint-imports", "clang-format"):
        tool(place, name, "exit 0")
    tool(place, "python", PYTHON)
    tool(place, "npm", "exit 0")
    for script in ("tests/native/run", "tests/fuzz/run"):
        write_command(place / script, f'echo "{script} $*"')
    (place / "widgets/static").mkdir(parents=True)
    (place / "widgets/labextension").mkdir()
    (place / "widgets/js/node_modules").mkdir(parents=True)
    (place / "kernel_ext/phalanx").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", place], check=True)
    return place


def test_without_a_group_every_section_of_the_first_tier_runs(quiet_place):
    code, said = ran(quiet_place, "tests/run")
    assert code == 0, said
    assert "python tests/tools/gate.py pytest -n" in said
    assert "-m not deep" in said
    summary = said.partition("== summary")[2]
    for name in (
        "pytest, first tier",
        "ruff check",
        "mypy --strict",
        "widgets",
        "C++ tests, plain",
    ):
        assert re.search(rf"{re.escape(name)} +[\d.]+ s  ok", summary), said
    assert "CPU-minutes" in summary
    assert re.search(r"\n\d+ passed, 0 failed\n$", said), said
    assert "deep tier" not in said


@pytest.mark.parametrize(
    ("failing", "section"), [("gate.py pytest", "pytest, first tier"), ("docstrings", "numpydoc")]
)
def test_a_section_that_fails_fails_the_run(quiet_place, failing, section):
    (quiet_place / "fails").write_text(failing)
    code, said = ran(quiet_place, "tests/run")
    assert code == 1, said
    assert re.search(rf"{section} +[\d.]+ s  FAILED \(1\)", said), said
    assert ", 1 failed\n" in said


def test_flaky_tests_are_named_at_the_very_end(quiet_place):
    tool(quiet_place, "python", f'{PYTHON}mkdir -p build; echo "FLAKY: test_x" >>build/flaky.txt')
    code, said = ran(quiet_place, "tests/run", "python", "-k", "x")
    assert (code, said[-34:]) == (0, "\n1 passed, 0 failed\nFLAKY: test_x\n"), said
    tool(quiet_place, "python", PYTHON)
    code, said = ran(quiet_place, "tests/run", "python", "-k", "x")
    assert "FLAKY" not in said


def test_all_runs_each_section_of_the_deep_tier(quiet_place):
    code, said = ran(quiet_place, "tests/run", "all")
    assert code == 0, said
    summary = said.partition("== summary")[2]
    for name in (
        "pytest, first tier", "pytest, deep tier", "C++ tests, plain", "C++ tests, portable", "C++ tests, asan",
        "C++ tests, tsan", "fuzzers", "promises at 2 s", "promises at 2 s, C++", "soak", "mypy --strict, as on macOS",
    ):  # fmt: skip
        assert re.search(rf"{re.escape(name)} +[\d.]+ s  ok", summary), name


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["deep", "tests/packages/cli"], 0, "-m deep or hypothesis tests/packages/cli deep=1 hold=\n"),
        (["promises"], 0, "gate.py pytest -m promise deep= hold=1\n"),
        (["magics", "-x"], 0, "gate.py pytest tests/packages/magics -x deep=1"),  # a folder
        (["wheel"], 0, "python tests/tools/wheel.py"),
        (["nonsense"], 2, "tests/run: there is no 'nonsense'; try one of: all changed lint"),
    ],
)  # fmt: skip
def test_a_group_says_what_it_runs(quiet_place, words, code, line):
    (quiet_place / "tests/packages/magics").mkdir(parents=True)
    (quiet_place / "tests/packages/magics/test_x.py").touch()
    ended, said = ran(quiet_place, "tests/run", *words)
    assert ended == code, said
    assert line in said


@pytest.mark.parametrize(
    ("path", "sections", "folders"),
    [
        ("README.md", [], ""),
        ("tests/support/waiting.py", [], ""),
        ("tests/support/runs/skips.toml", [], ""),
        (
            "native/group/group.cpp",
            ["pytest, deep tier", "C++ tests, asan", "C++ tests, tsan", "promises"],
            "tests/packages/distributed tests/system/faults",
        ),
        (
            "kernel_ext/phalanx/hosts/start_plan.py",
            ["pytest, deep tier", "promises", "as on macOS"],
            "tests/packages/hosts tests/packages/supervisor",
        ),
        (
            "kernel_ext/phalanx/cli/lab.py",
            ["pytest, deep tier", "promises", "as on macOS"],
            "tests/packages/cli",
        ),
        ("widgets/live/widget.py", ["pytest, deep tier"], "tests/widgets"),
        ("tests/packages/magics/test_x.py", ["pytest, deep tier"], "tests/packages/magics"),
        (
            "tests/packages/magics/test_held.py",
            ["pytest, deep tier", "promises"],
            "tests/packages/magics",
        ),
        (
            "tests/support/hosts/bed.py",
            ["pytest, deep tier"],
            "tests/packages/hosts tests/packages/supervisor",
        ),
        ("tests/native/test_x.cpp", ["C++ tests, asan", "C++ tests, tsan"], ""),
        ("tests/fuzz/stage.py", ["fuzzers"], ""),
    ],
)
def test_changed_paths_choose_deep_sections(quiet_place, path, sections, folders):
    git = ["git", "-C", quiet_place, "-c", "user.name=x", "-c", "user.email=x"]
    (quiet_place / "tests/packages/magics").mkdir(parents=True)
    (quiet_place / "tests/packages/magics/test_x.py").touch()
    subprocess.run([*git, "add", "tests/packages/magics"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    (quiet_place / path).parent.mkdir(parents=True, exist_ok=True)
    text = "@pytest.mark.promise" if "held" in path else "x"
    (quiet_place / path).write_text(text)
    subprocess.run([*git, "add", path], check=True)
    code, said = ran(quiet_place, "tests/run", "changed", "HEAD")
    assert code == 0, said
    summary = said.partition("== summary")[2]
    known = [
        "pytest, deep tier", "C++ tests, asan", "C++ tests, tsan", "fuzzers", "promises", "as on macOS",
    ]  # fmt: skip
    assert [name for name in known if name in summary] == sections, said
    assert f"-m deep or hypothesis {folders} deep=1" in said or not folders, said


@pytest.mark.parametrize(("must_run", "code"), [("1", 1), ("", 0)])
def test_in_ci_the_browsers_side_may_not_be_left_out(quiet_place, must_run, code):
    (quiet_place / "bin/npm").unlink()
    for name in ("bash", "env", "awk", "mkdir", "dirname", "getconf", "cat", "rm"):
        (quiet_place / "bin" / name).symlink_to(shutil.which(name))
    ended, said = ran(
        quiet_place,
        "tests/run",
        "widgets",
        PATH=str(quiet_place / "bin"),
        PHALANX_MUST_RUN=must_run,
    )
    assert "skipped: npm is not installed" in said
    assert ended == code, said


@pytest.mark.parametrize("words", [[], ["lint"]])
def test_a_group_that_cannot_begin_has_failed(quiet_place, words):
    (quiet_place / "build").write_text("in the way")
    code, said = ran(quiet_place, "tests/run", *words)
    assert code == 1, said
    assert words == [] or "0 passed, 2 failed" in said


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
