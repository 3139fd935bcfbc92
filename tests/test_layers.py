"""The shape of the house: files stay short and say what they are for, arrows go down.

Python's arrows are import-linter's business (`tests/run lint`); here are C++'s, and the files.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_MOST_LINES = 600
_HAND_WRITTEN = {".py", ".pyi", ".cpp", ".hpp", ".c", ".h", ".ts", ".js", ".sh", ".txt", ".cmake"}
_GENERATED = ("widgets/static/", "widgets/js/package-lock.json")
_TOP = {"pyproject.toml", "README.md", "LICENSE", "kernel_ext", "native", "widgets", "notebooks", "tests"}  # fmt: skip
# The rooms of the engine, from the lowest; a file may include its own room and those before it.
_NATIVE = ("base", "transport", "collectives", "group", "binding")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _tracked() -> list[Path]:
    said = subprocess.run(
        ["git", "-C", str(_ROOT), "ls-files", "-z"], capture_output=True, check=False
    )
    if said.returncode:
        pytest.skip("not in a git checkout")
    names = said.stdout.decode().split("\0")
    return [Path(name) for name in names if name and (_ROOT / name).is_file()]


def _sources(*endings: str) -> list[Path]:
    return [p for p in _tracked() if p.suffix in endings and not str(p).startswith(_GENERATED)]


def _is_native(path: Path) -> bool:
    return path.parts[0] == "native" and path.suffix in {".cpp", ".hpp"}


def test_no_file_is_long():
    long = {
        str(path): n_lines
        for path in _sources(*_HAND_WRITTEN)
        if (n_lines := len((_ROOT / path).read_text(encoding="utf-8").splitlines())) > _MOST_LINES
    }
    assert not long, f"over {_MOST_LINES} lines: {long}"


def test_top_level_is_fixed():
    tops = {path.parts[0] for path in _tracked()}
    assert {top for top in tops if not top.startswith(".")} <= _TOP


def test_every_python_file_says_what_it_is_for():
    silent = [
        str(path)
        for path in _sources(".py", ".pyi")
        if not ast.get_docstring(ast.parse((_ROOT / path).read_text(encoding="utf-8")))
    ]
    assert not silent, f"no docstring: {silent}"


def test_every_native_file_says_what_it_is_for():
    silent = [
        str(path)
        for path in _tracked()
        if _is_native(path) or path.name == "CMakeLists.txt"
        if not (_ROOT / path)
        .read_text(encoding="utf-8")
        .startswith("//" if _is_native(path) else "#")
    ]
    assert not silent, f"no comment at the top: {silent}"


def test_native_arrows_go_down():
    wrong = []
    for path in (p for p in _tracked() if _is_native(p)):
        room = path.parts[1]
        if room not in _NATIVE:
            continue
        for included in _INCLUDE.findall((_ROOT / path).read_text(encoding="utf-8")):
            target = Path(included).parts[0]
            if target in _NATIVE and _NATIVE.index(target) > _NATIVE.index(room):
                wrong.append(f"{path} includes {included}")
            if ".." in Path(included).parts:
                wrong.append(f"{path} includes {included}: name it from native/")
    assert not wrong, "\n".join(wrong)


def test_only_the_binding_knows_python():
    wrong = [
        str(path)
        for path in _tracked()
        if _is_native(path)
        and path.parts[1] != "binding"
        and re.search(r"pybind11|Python\.h", (_ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not wrong, f"Python outside native/binding: {wrong}"


def test_no_test_keeps_a_time_limit_or_a_timer_of_its_own():
    """`support/promise.py` has the one bound, and what starts by a timer starts by luck."""
    own = re.compile(r"\bTimer\(|^\s*(?:BOUND|PATIENCE)(?:_S)? *=|def wait_until\(", re.MULTILINE)
    elsewhere = ("tests/support/", "tests/bench/", "tests/test_layers.py")
    found = [
        f"{path}: {match[0].strip()}"
        for path in _sources(".py")
        if path.parts[0] == "tests" and not str(path).startswith(elsewhere)
        for match in own.finditer((_ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
