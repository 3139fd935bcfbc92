"""An event loop whose clock is its timers, so that hours of waiting take no time and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

__all__ = ["JumpingLoop"]


class _Jumping(selectors.DefaultSelector):
    """Never sleeps: where nothing is ready, it is later at once."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits, and nothing will come"
            self._loop.now_s += max(timeout, 0.0)
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop in which time is what its timers say; what a callback throws ends the run."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.thrown: list[BaseException] = []
        super().__init__(_Jumping(self))
        self.set_exception_handler(self._keep)

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def _keep(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.thrown.append(context.get("exception") or AssertionError(context["message"]))
