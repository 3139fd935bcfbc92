"""Repeat the tests that a change touches under load, and say how often each fails.

``tests/tools/repeat.py [BASE]`` repeats each test function that the change since BASE (default: the last
commit) touches, twenty times beside two processes that only compute. A test that fails only under
load has a race or depends on the clock. pytest-timeout ends a test that hangs. `tests/run stress` calls it.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
N_TIMES = 20
TOTAL_S = 300.0  # no new run of a test begins later
N_SPINNERS = 2


@contextlib.contextmanager
def spinners(n: int) -> Iterator[None]:
    """Keep ``n`` processes busy; they end with this process."""
    watch = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"
    started = [subprocess.Popen([sys.executable, "-c", watch]) for _ in range(n)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def repeat(test: str) -> tuple[int, int]:
    """Run a test up to `N_TIMES`, each time in a fresh process; return how many runs failed, of how many."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", test]
    env = {**os.environ, "PHALANX_NO_HISTORY": "1"}
    n_runs = n_failed = 0
    deadline_s = time.monotonic() + TOTAL_S
    while n_runs < N_TIMES and time.monotonic() < deadline_s:
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
        n_runs, n_failed = n_runs + 1, n_failed + (run.returncode != 0)
    return n_failed, n_runs


def touched(diff: str, root: Path = ROOT) -> list[str]:
    """Return the test functions that a ``git diff -U0`` adds or changes, as node ids."""
    found: dict[str, None] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if not hunk or not re.fullmatch(r"tests/.*test_\w+\.py", file):
            continue
        begin, n_lines = int(hunk[1]), int(hunk[2] or 1)
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test"
            ):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first < begin + max(n_lines, 1) and begin <= (node.end_lineno or first):
                    found[f"{file}::{node.name}"] = None
    return list(found)


def main(words: Sequence[str]) -> int:
    """Repeat what the change since BASE touches; return 1 where anything fails once."""
    base = words[0] if words else "HEAD~1"
    diff = ["git", "-C", str(ROOT), "diff", "-U0", base, "--", "tests"]
    tests = touched(subprocess.run(diff, capture_output=True, text=True, check=True).stdout)
    status = 0
    with spinners(N_SPINNERS):
        for test in tests:
            n_failed, n_runs = repeat(test)
            print(f"{test}: fails {n_failed}/{n_runs} under load", flush=True)
            status |= n_failed > 0
    print(f"{len(tests)} test functions are touched since {base}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
