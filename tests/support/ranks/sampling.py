"""Read the samples of a workspace as a widget does, until a certain one comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.waiting import wait_until


class Reader:
    """Reads the samples of a workspace as a widget does."""

    def __init__(self, workspace: Any) -> None:
        self._workspace = workspace
        self.seen: list[Any] = []

    def read(self) -> list[Any]:
        """Read what is new; all that was seen."""
        after = self.seen[-1].number if self.seen else 0
        self.seen += self._workspace.samples(after).samples
        return self.seen

    def until(self, condition: Callable[[Any], bool]) -> Any:
        """Read on until a new sample is as asked; that one."""
        known = len(self.read())
        found: list[Any] = []

        def comes() -> bool:
            found[:] = [its for its in self.read()[known:] if condition(its)]
            return bool(found)

        wait_until(comes, "a sample that is as asked")
        return found[0]
