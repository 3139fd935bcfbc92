"""pytest plugin: record each test's outcome and duration, and show the slowest files.

Each run appends one line a test to ``build/history.jsonl``. ``tests/tools/gate.py`` reads the failures of its
run there: it names the run in ``PHALANX_RUN`` (``PHALANX_NO_HISTORY=1``: nothing is recorded).
``python -m support.runs.history`` writes ``durations.json`` from it, by which `support.runs.schedule` starts the
longest files first.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
HISTORY = ROOT / "build" / "history.jsonl"
DURATIONS = Path(__file__).with_name("durations.json")
N_SLOWEST = 15
_WORST_LAST = ("passed", "skipped", "xfailed", "failed")


@dataclass(frozen=True)
class Outcome:
    """How one test ended in one run."""

    run: str  # when the run began, and its process
    test: str
    outcome: str  # passed, skipped, xfailed, failed; flaky: of the gate
    seconds: float  # set-up and tear-down included
    load: float  # the machine's load average when the test ended


def outcomes(path: Path = HISTORY) -> Iterator[Outcome]:
    """Yield all that was recorded, oldest first."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield Outcome(**json.loads(line))


def append(outcome: Outcome, path: Path = HISTORY) -> None:
    """Append one outcome."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


class Recorder:
    """Collects reports in the process that sees all of them; appends each test when it has ended."""

    def __init__(self, path: Path = HISTORY) -> None:
        self.path = path
        own_name = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{os.getpid()}"
        self.run = os.environ.get("PHALANX_RUN", own_name)
        self.seconds: Counter[str] = Counter()
        self.outcomes: dict[str, str] = {}
        self.loads: dict[str, float] = {}
        self._appended: set[str] = set()

    def pytest_sessionstart(self) -> None:
        self.path.parent.mkdir(exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, outcome, key=_WORST_LAST.index)
        self.seconds[report.nodeid] += report.duration
        self.loads[report.nodeid] = os.getloadavg()[0]
        if report.when == "teardown":
            self._append([report.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            append(Outcome(self.run, report.nodeid, "failed", 0.0, os.getloadavg()[0]), self.path)

    def pytest_sessionfinish(self) -> None:
        self._append([test for test in self.outcomes if test not in self._appended])  # of a crash

    def _append(self, tests: Iterable[str]) -> None:
        """Append these tests at once: a run that is killed has recorded what has ended."""
        for test in tests:
            seconds, load = round(self.seconds[test], 3), round(self.loads[test], 1)
            append(Outcome(self.run, test, self.outcomes[test], seconds, load), self.path)
            self._appended.add(test)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            files[test.partition("::")[0]] += seconds
        slowest = [(name, taken) for name, taken in files.most_common(N_SLOWEST) if taken > 5]
        if slowest:
            terminalreporter.section("slowest files")
            for name, taken in slowest:
                terminalreporter.write_line(f"{taken:8.1f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    is_recorded = not config.option.collectonly and not os.environ.get("PHALANX_NO_HISTORY")
    if is_recorded and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "phalanx-history")


def write_durations(history: Path = HISTORY, durations: Path = DURATIONS) -> None:
    """Write the seconds of each file, deep tests apart, from the last runs of each test."""
    last = {o.test: o.seconds for o in outcomes(history) if o.outcome != "flaky"}
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in last.items():
        files[test.partition("::")[0]] += seconds
    text = json.dumps({name: round(files[name], 1) for name in sorted(files)}, indent=0)
    durations.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_durations()
