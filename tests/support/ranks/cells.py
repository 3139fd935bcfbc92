"""Run a cell on a thread of its own, while the test looks on."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.workspace.cells import runner

LIMIT_S = 600.0  # a time limit that passes only where `time_is_up_once` makes it


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


@contextlib.contextmanager
def time_is_up_once(condition: Callable[[], object], what: str) -> Iterator[list[float]]:
    """Let ``LIMIT_S`` pass for the body's cell as soon as ``condition`` holds, on any machine.

    The cell's clock then jumps by as much. The list that this yields has the moment of the jump.
    """
    jumped_s: list[float] = []
    failures: list[BaseException] = []

    def clock() -> float:
        return time.monotonic() + (LIMIT_S if jumped_s or failures else 0.0)

    def watch() -> None:
        try:
            wait_until(condition, what)
            jumped_s.append(time.monotonic())
        except BaseException as error:  # noqa: BLE001 - raised below, once the cell has ended
            failures.append(error)

    thread = threading.Thread(target=watch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "CellLoop", functools.partial(runner.CellLoop, clock=clock))
        thread.start()
        yield jumped_s
        thread.join()
    if failures:
        raise failures[0]


def wait_busy(ws: Any, *ranks: int) -> None:
    """Wait until a cell of these ranks (default: all) is announced; see `wait_in`."""

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
