"""Run tests; where few failed, run those again alone, to tell broken code from a busy machine.

    tests/tools/gate.py pytest [pytest's arguments]
    tests/tools/gate.py native KIND [doctest's arguments]
    tests/tools/gate.py vitest

Failures are counted per file, as the tests of a file share ranks. More than four files: the command
fails at once. Otherwise the failed tests of each file run again in a fresh process, twice, when no other
command of this script runs any more. A test that fails both times is broken: the command fails. A
test that passes at least once is flaky: it is named in ``build/flaky.txt``, which `tests/run` prints
at its very end, and in ``build/history.jsonl``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.runs.history import HISTORY, Outcome, append, outcomes

FLAKY = ROOT / "build" / "flaky.txt"
RUNNING = ROOT / "build" / "running.lock"
MOST_FILES = 4
N_AGAIN = 2
WHOLE_RUN_S = 3000.0


def run(command: Sequence[str], limit_s: float, output: Path | None = None, **env: str) -> int:
    """Run a command, which may take ``limit_s``, and show what it prints; return its exit status.

    ``output`` is a file that gets a copy of what the command prints.
    """
    print(f"$ {' '.join(command)}"[:1000], flush=True)
    process = subprocess.Popen(
        ["timeout", "-k", "30", f"{limit_s:.0f}", *command],  # it ends all processes of the command
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output else None,
        stderr=subprocess.STDOUT if output else None,
    )
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if output:
        output.write_bytes(printed)
        sys.stdout.write(printed.decode(errors="replace"))
        sys.stdout.flush()
    return process.returncode


@contextlib.contextmanager
def running(*, is_alone: bool) -> Iterator[None]:
    """Run tests in this block; with ``is_alone``, wait until no other gate of this checkout does."""
    RUNNING.parent.mkdir(exist_ok=True)
    with RUNNING.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


class Suite(ABC):
    """Tests of one framework: runs all of them, or some of one file."""

    @abstractmethod
    def run_all(self) -> tuple[int, dict[str, list[str]]]:
        """Run all tests; return the exit status and the failed tests by file.

        A status other than 0 without failed tests means that the run itself failed.
        """

    @abstractmethod
    def run_again(self, tests: Sequence[str]) -> set[str]:
        """Run these tests of one file in a fresh process; return those that passed."""


class PytestSuite(Suite):
    """Tests of pytest; each process records outcomes in the history under a name of its own."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._run = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{os.getpid()}"
        self._n_again = 0
        self._seconds: dict[str, float] = {}

    def _pytest(self, run_name: str, words: Iterable[str], limit_s: float) -> int:
        # Python keeps the bytecode of tests: pytest takes longer to rewrite them than to collect them.
        command = ["env", "-u", "PYTHONDONTWRITEBYTECODE", "python", "-m", "pytest", *words]
        return run(command, limit_s, PHALANX_RUN=run_name)

    def run_all(self) -> tuple[int, dict[str, list[str]]]:
        status = self._pytest(self._run, self._words, WHOLE_RUN_S)
        failed: dict[str, list[str]] = {}
        for outcome in outcomes(HISTORY):
            if outcome.run == self._run and outcome.outcome == "failed":
                failed.setdefault(outcome.test.partition("::")[0], []).append(outcome.test)
                self._seconds[outcome.test] = outcome.seconds
        return status, failed if status == 1 else {}

    def run_again(self, tests: Sequence[str]) -> set[str]:
        self._n_again += 1
        run_name = f"{self._run}-again-{self._n_again}"
        limit_s = 60 + 3 * sum(self._seconds[test] for test in tests)
        self._pytest(run_name, ["-q", *tests], limit_s)
        return {o.test for o in outcomes(HISTORY) if o.run == run_name and o.outcome == "passed"}


class NativeSuite(Suite):
    """Cases of doctest, in one of the builds of tests/native/run."""

    _BLOCK = re.compile(r"^={79}$", re.MULTILINE)
    _CASE = re.compile(r"^TEST CASE:  (.*)$", re.MULTILINE)
    _PLACE = re.compile(r"^(\S+?\.[ch]pp)[:(]\d+", re.MULTILINE)
    _COUNTS = re.compile(r"^\[doctest\] test cases: +\d+ \| +(\d+) passed \| +(\d+) failed", re.MULTILINE)  # fmt: skip

    def __init__(self, kind: str, words: Sequence[str]) -> None:
        self._kind = kind
        self._words = words
        self._output = ROOT / "build" / f"native-{kind}.output"

    def _cases(self, words: Iterable[str]) -> tuple[int, str]:
        self._output.parent.mkdir(exist_ok=True)
        status = run(["tests/native/run", self._kind, *words], WHOLE_RUN_S, self._output)
        return status, self._output.read_text(errors="replace")

    def run_all(self) -> tuple[int, dict[str, list[str]]]:
        status, printed = self._cases(self._words)
        failed: dict[str, list[str]] = {}
        for block in self._BLOCK.split(printed):
            case, place = self._CASE.search(block), self._PLACE.search(block)
            if "ERROR:" in block and case and place:
                failed.setdefault(place[1], []).append(case[1])
        counts = self._COUNTS.search(printed)
        # A sanitizer ends the process, without counts: that is never a busy machine.
        is_whole = counts and int(counts[2]) == sum(map(len, failed.values()))
        return status, failed if is_whole else {}

    def run_again(self, tests: Sequence[str]) -> set[str]:
        passed = set()
        for test in tests:
            # A comma separates patterns.
            status, printed = self._cases([f"--test-case={test.replace(',', '?')}"])
            counts = self._COUNTS.search(printed)
            if status == 0 and counts and int(counts[1]) > 0:
                passed.add(test)
        return passed


class VitestSuite(Suite):
    """Files of vitest; a file is one test."""

    _REPORT = ROOT / "build" / "vitest.json"

    def _vitest(self, words: Iterable[str]) -> tuple[int, Mapping[str, str]]:
        self._REPORT.unlink(missing_ok=True)
        options = ["--reporter=default", "--reporter=json", f"--outputFile.json={self._REPORT}"]
        command = ["npm", "--prefix", "widgets/js", "test", "--silent", "--", *options, *words]
        status = run(command, 900)
        if not self._REPORT.exists():
            return status or 1, {}
        files = json.loads(self._REPORT.read_text())["testResults"]
        return status, {os.path.relpath(file["name"], ROOT): file["status"] for file in files}

    def run_all(self) -> tuple[int, dict[str, list[str]]]:
        status, ended = self._vitest([])
        return status, {file: [file] for file, state in ended.items() if state != "passed"}

    def run_again(self, tests: Sequence[str]) -> set[str]:
        (file,) = tests
        status, ended = self._vitest([os.path.relpath(ROOT / file, ROOT / "widgets/js")])
        return {file} if status == 0 and ended.get(file) == "passed" else set()


def record_flaky(test: str, n_passed: int) -> None:
    """Name a test that failed and passed when it ran again."""
    again = [*["passed"] * n_passed, *["failed"] * (N_AGAIN - n_passed)]
    FLAKY.parent.mkdir(exist_ok=True)
    with FLAKY.open("a", encoding="utf-8") as file:
        file.write(f"FLAKY: {test}: failed; again alone: {', '.join(again)}\n")
    run_name = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{os.getpid()}"
    append(Outcome(run_name, test, "flaky", 0.0, round(os.getloadavg()[0], 1)))


def judge(suite: Suite) -> int:
    """Run a suite; return 0 where it passed, or where each failed test passed when it ran again."""
    with running(is_alone=False):
        status, failed = suite.run_all()
    if status == 0:
        return 0
    if not failed:
        print("the run itself failed, or not only tests did", flush=True)
        return status
    if len(failed) > MOST_FILES:
        print(f"tests of {len(failed)} files failed, more than {MOST_FILES}: not run again", flush=True)  # fmt: skip
        return status
    broken = []
    for file, tests in failed.items():
        print(f"\nagain, alone: {len(tests)} tests of {file}", flush=True)
        with running(is_alone=True):
            passed = [suite.run_again(tests) for _ in range(N_AGAIN)]
        for test in tests:
            n_passed = sum(test in names for names in passed)
            if n_passed:
                record_flaky(test, n_passed)
            else:
                broken.append(test)
    for test in broken:
        print(f"BROKEN: {test}: failed, and failed {N_AGAIN} times alone", flush=True)
    return 1 if broken else 0


def main(words: Sequence[str]) -> int:
    match words:
        case ["pytest", *rest]:
            return judge(PytestSuite(rest))
        case ["native", kind, *rest]:
            return judge(NativeSuite(kind, rest))
        case ["vitest"]:
            return judge(VitestSuite())
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
