"""Run a cell on a thread of its own, while the test looks on."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any

from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.errors import DistributedError

__all__ = ["BackgroundCell", "wait_busy", "wait_idle", "wait_in"]


class BackgroundCell:
    """A cell that runs in the background; it has begun to start when this is made."""

    def __init__(self, ws: Any, code: str, **options: Any) -> None:
        self._ws = ws
        self.results: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(code, options))
        self._thread.start()

    def _run(self, code: str, options: dict[str, Any]) -> None:
        try:
            self.results = self._ws.run(code, **options)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def is_over(self) -> bool:
        """Whether the cell has ended."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float = 2 * PATIENCE_S) -> BaseException | None:
        """Wait for the end of the cell; return the error that it ended in."""
        self._thread.join(timeout_s)
        assert self.is_over, f"the cell still runs: {self._ws.stacks()}"
        return self.error

    def values(self) -> list[Any]:
        """Wait for the end of the cell; return its values, or raise its error."""
        if (error := self.wait()) is not None:
            raise error
        return [result.value for result in self.results]

    def __enter__(self) -> BackgroundCell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:  # the test has failed: do not hold up the tests after it
            with contextlib.suppress(DistributedError):
                self._ws.interrupt()
        self.wait()


def wait_busy(ws: Any, *ranks: int) -> None:
    """Wait until the ranks (default: all) run a cell."""

    def are_busy() -> bool:
        infos = ws.topology().ranks
        return all(infos[rank].state == "busy" for rank in ranks or range(len(infos)))

    wait_until(are_busy, f"ranks {ranks or 'all'} run a cell")


def wait_in(ws: Any, what: str, *ranks: int) -> None:
    """Wait until the supervisor sees the ranks in an operation, such as ``"all_sum"``."""

    def are_in() -> bool:
        infos = ws.topology().ranks
        return all(f"in {what}" in infos[rank].detail for rank in ranks)

    wait_until(are_in, f"ranks {ranks} are in {what}")


def wait_idle(ws: Any, *ranks: int) -> None:
    """Wait until the ranks have ended their cell."""

    def are_idle() -> bool:
        infos = ws.topology().ranks
        return all(infos[rank].state == "idle" for rank in ranks)

    wait_until(are_idle, f"ranks {ranks} have ended their cell")
