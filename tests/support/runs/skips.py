"""pytest plugin: in CI a skip fails unless ``skips.toml`` allows its reason.

A skip is silent: without this, a missing package would turn its tests off for good. ``CI`` or
``PHALANX_MUST_RUN=1`` in the environment, which `.ci/run` sets, turns the check on.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10; pytest depends on it there
    import tomli as tomllib  # type: ignore[no-redef]

ALLOWED = Path(__file__).with_name("skips.toml")


def is_allowed(reason: str, path: Path = ALLOWED) -> bool:
    """Whether a skip with this reason may happen in CI."""
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    return any(re.search(row["reason"], reason) for row in rows)


def _must_run() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("PHALANX_MUST_RUN") == "1")


def _fail_forbidden_skip(report: Any) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and _must_run():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not is_allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, and {ALLOWED.name} does not allow it: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    report = yield
    _fail_forbidden_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Any:
    report = yield
    _fail_forbidden_skip(report)
    return report
