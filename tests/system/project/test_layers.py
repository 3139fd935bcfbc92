"""The shape of the house: files stay short and say what they are for, arrows go down.

Python's arrows are import-linter's business (`tests/run lint`); here are C++'s, and the files.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import ROOT
from tools import plain_english

_MOST_LINES = 900
_HAND_WRITTEN = {".py", ".pyi", ".cpp", ".hpp", ".c", ".h", ".ts", ".tsx", ".js", ".sh", ".txt", ".cmake"}  # fmt: skip
_GENERATED = ("widgets/static/", "widgets/labextension/static/", "widgets/js/package-lock.json")
_TOP = {"pyproject.toml", "README.md", "LICENSE", "kernel_ext", "native", "widgets", "notebooks", "tests"}  # fmt: skip
# The rooms of the engine, from the lowest; a file may include its own room and those before it.
_NATIVE = (
    "base", "os", "shm", "transport", "collectives", "monitoring", "group", "mlx_mpi", "binding",
)  # fmt: skip
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _tracked() -> list[Path]:
    said = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False
    )
    if said.returncode:
        pytest.skip("not in a git checkout")
    names = said.stdout.decode().split("\0")
    return [Path(name) for name in names if name and (ROOT / name).is_file()]


def _sources(*endings: str) -> list[Path]:
    return [p for p in _tracked() if p.suffix in endings and not str(p).startswith(_GENERATED)]


def _is_native(path: Path) -> bool:
    return path.parts[0] == "native" and path.suffix in {".cpp", ".hpp"}


def _n_lines(path: Path) -> int:
    """Count lines; docstrings do not count, as a public method documents each parameter."""
    text = (ROOT / path).read_text(encoding="utf-8")
    n_lines = len(text.splitlines())
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                if ast.get_docstring(node, clean=False) is not None:
                    n_lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return n_lines


def test_no_file_is_long():
    long = {
        str(path): n_lines
        for path in _sources(*_HAND_WRITTEN)
        if (n_lines := _n_lines(path)) > _MOST_LINES
    }
    assert not long, f"over {_MOST_LINES} lines: {long}"


def test_top_level_is_fixed():
    tops = {path.parts[0] for path in _tracked()}
    assert {top for top in tops if not top.startswith(".")} <= _TOP


def test_every_python_file_says_what_it_is_for():
    silent = [
        str(path)
        for path in _sources(".py", ".pyi")
        if not ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    ]
    assert not silent, f"no docstring: {silent}"


def test_every_native_file_says_what_it_is_for():
    silent = [
        str(path)
        for path in _tracked()
        if _is_native(path) or path.name == "CMakeLists.txt"
        if not (ROOT / path)
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
        for included in _INCLUDE.findall((ROOT / path).read_text(encoding="utf-8")):
            target = Path(included).parts[0]
            if target in _NATIVE and _NATIVE.index(target) > _NATIVE.index(room):
                wrong.append(f"{path} includes {included}")
            if ".." in Path(included).parts:
                wrong.append(f"{path} includes {included}: name it from native/")
    assert not wrong, "\n".join(wrong)


def test_only_the_binding_and_the_library_for_mlx_know_python():
    wrong = [
        str(path)
        for path in _tracked()
        if _is_native(path)
        and path.parts[1] not in {"binding", "mlx_mpi"}
        and re.search(r"pybind11|Python\.h", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not wrong, f"Python outside native/binding: {wrong}"


def test_the_engine_writes_no_streams():
    """Where a process holds two C++ libraries, a number written to a stream crashed the rank."""
    streams = re.compile(r"#include <([fios]*stream|iomanip)>")
    wrong = [
        str(path)
        for path in _tracked()
        if _is_native(path) and streams.search((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not wrong, f"streams: {wrong}; see in_seconds in native/base/clock.hpp"


def test_no_test_keeps_a_time_limit_or_a_timer_of_its_own():
    """`support/promise.py` has the one bound, and what starts by a timer starts by luck."""
    own = re.compile(r"\bTimer\(|^\s*(?:BOUND|PATIENCE)(?:_S)? *=|def wait_until\(", re.MULTILINE)
    elsewhere = ("tests/support/", "tests/bench/", "tests/system/project/test_layers.py")
    found = [
        f"{path}: {match[0].strip()}"
        for path in _sources(".py")
        if path.parts[0] == "tests" and not str(path).startswith(elsewhere)
        for match in own.finditer((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


# Test functions that read a clock or a size and are not marked `promise`, each with its reason.
_MAY_READ = {
    "test_an_interrupt_just_before_a_wait_ends_it": "nudges come every 50 ms, as the supervisor's do",
    "test_nothing_is_lost_or_comes_twice_over_connections_that_are_reset": "short random pauses between the resets",
    "test_nothing_grows_while_somebody_looks": "deep; the least growth of three windows",
    "test_who_came_last_is_told_when_all_have_answered_and_no_clock_may_be_wrong": "moments to compare",
    "test_a_lane_leads_to_the_notebooks_cell": "moments before and after a cell",
    "test_a_launcher_that_is_stopped_for_long_goes_on": "the time for which it is stopped",
    "test_at_most_five_times_a_second": "the least time between ticks, as the timer itself reads it",
}
_CLOCKS = {
    "memory_full_info", "memory_info", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
    "sleep", "wait_for_timeout",
}  # fmt: skip


def _is_promise(node: ast.AST) -> bool:
    return any(isinstance(its, ast.Attribute) and its.attr == "promise" for its in ast.walk(node))


def _unheld_tests(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the test functions that are not marked `promise`, nor their class or file."""
    marks = [
        n
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
    ]
    if any(_is_promise(mark.value) for mark in marks):
        return
    for node in tree.body:
        if any(map(_is_promise, getattr(node, "decorator_list", []))):
            continue
        if isinstance(node, ast.ClassDef):
            yield from _unheld_tests(ast.Module(node.body, []))
        elif getattr(node, "name", "").startswith("test"):
            yield node


def _clocks_read(tests: Iterator[ast.AST]) -> Iterator[tuple[str, ast.Attribute]]:
    for test in tests:
        for its in ast.walk(test):
            # asyncio.sleep is no clock in the loops of `support/ranks/loops.py`.
            if (
                isinstance(its, ast.Attribute)
                and its.attr in _CLOCKS
                and ast.unparse(its.value) != "asyncio"
            ):
                yield getattr(test, "name", ""), its


def test_no_test_reads_the_clock_but_those_that_hold_promises():
    """A wait ends by what is seen (`support/waiting.py`), and times are held in `promises` only."""
    read: dict[str, str] = {}
    for path in _sources(".py"):
        if path.parts[0] == "tests" and path.name.startswith("test_"):
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            for name, its in _clocks_read(_unheld_tests(tree)):
                read[name] = f"{path}:{its.lineno}: {ast.unparse(its)}"
    assert {name: where for name, where in read.items() if name not in _MAY_READ} == {}
    assert _MAY_READ.keys() <= read.keys(), "a test that reads no clock needs no reason"


def test_only_one_file_reaches_into_running_objects():
    """`support/inside.py` has a helper for each private part that tests need."""
    private = re.compile(
        r"\._(?:root|runner|farm|dispatch)\b|\b(?:ws|own|workspace|world|root|client)\._[a-z]"
    )
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in _sources(".py")
        if path.parts[0] == "tests" and path != Path("tests/support/inside.py")
        for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1)
        if private.search(line)
    ]
    assert not found, "\n".join(found)


def test_names_in_the_design_page_exist():
    page = (ROOT / "kernel_ext" / "DESIGN.md").read_text(encoding="utf-8")
    assert len(re.sub(r"(?s)```.*?```", "", page).split()) <= 1500  # without the drawing
    sources = _sources(".py", ".pyi", ".cpp", ".hpp")
    words = set(
        re.findall(r"\w+", " ".join((ROOT / p).read_text(encoding="utf-8") for p in sources))
    )
    names = re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", page))
    ours = [name.partition("(")[0] for name in names if re.match(r"[A-Za-z]\S*$", name)]
    unknown = [
        name
        for name in ours
        if not ({name, name.rpartition(".")[2]} & words)
        and not any(f"/{path}".endswith(f"/{name}") for path in map(str, _tracked()))
        and not any(f"/{name.strip('/')}/" in f"/{path}" for path in map(str, _tracked()))
    ]
    assert not unknown


def test_the_lint_of_words_reads_comments_texts_and_names():
    source = '"""Do it."""\n# by the door\nmend_it = 1\nraise ValueError(f"it {mend_it} heard")\n'
    faults = dict(plain_english.python_faults("kernel_ext/phalanx/rank/x.py", source))
    assert sorted(faults) == [2, 3, 4]
    assert dict(plain_english.python_faults("tests/x.py", source)).keys() == {2}
    assert dict(plain_english.page_faults("x.md", "```\ntold\n```\ntold\n")).keys() == {4}


def test_a_class_name_is_used_once():
    """A reader finds a class with one grep."""
    found: dict[str, set[str]] = {}
    for path in _sources(".py"):
        if path.parts[0] in {"kernel_ext", "widgets"}:
            for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, set()).add(f"{path}:{node.lineno}")
    shared = {name: sorted(places) for name, places in found.items() if len(places) > 1}
    assert not shared


# A specialisation of a template has `<` behind its name, and is no second class.
_CPP_CLASS = re.compile(
    r"^[ \t]*(?:template ?<.*> *)?(?:enum class|enum|class|struct|union) "
    r"(?:alignas\(.*?\) )?(\w+)(?: final)?\s*(?::[^:;]*)?\{",
    re.MULTILINE,
)


def test_a_cpp_class_name_is_used_once():
    found: dict[str, list[str]] = {}
    for path in _sources(".cpp", ".hpp"):
        for name in _CPP_CLASS.findall((ROOT / path).read_text(encoding="utf-8")):
            found.setdefault(name, []).append(str(path))
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert len(found) > 100
    assert not shared
