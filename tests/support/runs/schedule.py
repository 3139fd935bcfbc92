"""pytest plugin: with pytest-xdist, give each worker one file at a time, the longest first.

A file's tests share ranks and kernels, so they stay together. ``durations.json`` says how long
each file took; a file that it does not name comes first.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.runs.history import DURATIONS


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # it would put the files with the most tests first

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

    return LongestFirst(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return  # in one process the order is as asked for
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}

    def order(item: pytest.Item) -> tuple[float, str]:
        file = item.nodeid.partition("::")[0]
        return -seconds.get(file, float("inf")), file

    items.sort(key=order)
