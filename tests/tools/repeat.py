"""Repeat the tests that a change touches under load, and say how often each fails.

``tests/tools/repeat.py [BASE]`` repeats each test function that the change since BASE (default: the last
commit) touches, twenty times beside two processes that only compute. A test that fails only under
load has a race or depends on the clock. `tests/run stress` calls it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.runs.history import typical_seconds

N_TIMES = 20
TOTAL_S = 300.0
N_SPINNERS = 2
START_S = 15.0  # pytest itself and module fixtures, under load


@dataclass
class Tally:
    """How the repetitions of a test ended."""

    n_runs: int = 0
    n_failed: int = 0

    def __str__(self) -> str:
        return f"{self.n_failed}/{self.n_runs}"


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


def passes(test: str, limit_s: float) -> bool:
    """Run one test in a process group of its own; False where it fails or takes too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", test]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PHALANX_NO_HISTORY": "1"},
    )
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def repeat(test: str, n_times: int, deadline_s: float) -> Tally:
    """Run a test up to ``n_times``; each run may take twice its usual time."""
    limit_s = 2 * (typical_seconds(test) or 60.0) + START_S
    tally = Tally()
    while tally.n_runs < n_times and time.monotonic() < deadline_s:
        left_s = deadline_s - time.monotonic()
        if left_s < limit_s and tally.n_runs:
            break  # one that is cut off by the end of all would count as a failure
        tally.n_runs += 1
        tally.n_failed += not passes(test, limit_s)
    return tally


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


def repeat_changed(base: str) -> int:
    """Repeat what the change since ``base`` touches; 1 where anything fails once."""
    command = ["git", "-C", str(ROOT), "diff", "-U0", base, "--", "tests"]
    tests = touched(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    status = 0
    with spinners(N_SPINNERS):
        for test in tests:
            tally = repeat(test, N_TIMES, time.monotonic() + TOTAL_S)
            print(f"{test}: fails {tally} under load", flush=True)
            status |= tally.n_failed > 0
    print(f"{len(tests)} test functions are touched since {base}")
    return status


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("base", nargs="?", default="HEAD~1")
    return repeat_changed(parser.parse_args(words).base)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
