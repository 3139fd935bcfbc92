"""pytest plugin: a failure of a test in ``tests/quarantine.toml`` is reported and fails no run.

The list is short: ``python -m support.runs.quarantine``, a step of `tests/run lint`, fails on more than 8
entries. ``python -m support.runs.quarantine expired`` prints those older than 14 days; they fail nothing,
so that a commit that has passed still passes later.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10; pytest depends on it there
    import tomli as tomllib  # type: ignore[no-redef]

__all__ = ["LISTED", "entries", "expired", "problems"]

LISTED = Path(__file__).parents[2] / "quarantine.toml"
MOST_ENTRIES = 8
MOST_DAYS = 14


def entries(path: Path = LISTED) -> list[dict[str, Any]]:
    """Return the entries: ``test`` (a node id, without parameters: all of them), ``reason``, ``date``."""
    listed: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("test", [])
    return listed


def problems(path: Path, today: dt.date) -> list[str]:
    """Return what is wrong with the list, a line each."""
    found = []
    listed = entries(path)
    if len(listed) > MOST_ENTRIES:
        found.append(f"{len(listed)} entries; at most {MOST_ENTRIES} are allowed")
    for entry in listed:
        if missing := {"test", "reason", "date"} - entry.keys():
            found.append(f"{entry}: without {', '.join(sorted(missing))}")
            continue
        file = path.parents[1] / entry["test"].partition("::")[0]
        if not file.exists():
            found.append(f"{entry['test']}: there is no such file")
        if entry["date"] > today:
            found.append(f"{entry['test']}: {entry['date']} is in the future")
    return found


def expired(path: Path, today: dt.date) -> list[str]:
    """Return the entries that are too old, a line each."""
    found = []
    for entry in entries(path):
        days = (today - entry["date"]).days
        if days > MOST_DAYS:
            found.append(
                f"QUARANTINED for {days} days: {entry['test']}: repair the test or what it tests"
            )
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.failed:
        for entry in entries():
            if item.nodeid == entry["test"] or item.nodeid.startswith(f"{entry['test']}["):
                report.outcome = "skipped"
                report.wasxfail = f"quarantined since {entry['date']}: {entry['reason']}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.getreports("xfailed"):
        if report.wasxfail.startswith("quarantined"):
            terminalreporter.section(f"quarantined and failed: {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)


if __name__ == "__main__":
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    if sys.argv[1:] == ["expired"]:
        for line in expired(LISTED, today):
            print(line)
        sys.exit()
    found = problems(LISTED, today)
    print("\n".join(found) or f"{len(entries())} tests in quarantine")
    sys.exit(bool(found))
