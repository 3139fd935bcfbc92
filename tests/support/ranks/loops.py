"""Event loops with clocks of their own: times are exact, and no wait depends on the machine.

`JumpingLoop` is for code without input or output: hours of waiting take no time. `HeldLoop` is for
code with real sockets: its clock stands still until the test moves it, so nothing times out because
the machine is slow.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from support.promise import PATIENCE_S

T = TypeVar("T")
_LOOP_S = (
    10.0  # twice the longest limit of what is tested on a `HeldLoop` (`connection.HANDSHAKE_MS`)
)


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


class _Waiting(selectors.DefaultSelector):
    """Waits for input and output as long as it takes: no timer can fall due meanwhile."""

    def select(self, timeout: float | None = None) -> list[Any]:
        is_ready = timeout is not None and timeout <= 0
        return super().select(0 if is_ready else PATIENCE_S)


class HeldLoop(asyncio.SelectorEventLoop):
    """A loop with real input and output, in which time passes only when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        super().__init__(_Waiting())

    def time(self) -> float:
        return self.now_s

    async def until(self, condition: Callable[[], T], what: str, *, step_s: float = 0.0) -> T:
        """Wait in real time until ``condition`` is true; ``step_s`` of the loop pass at each look.

        On a busy machine a look takes long, and the loop's clock is slow: what falls due by that
        clock has `_LOOP_S` of it, too.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        until_s = self.now_s + _LOOP_S if step_s else self.now_s
        while not (seen := condition()):
            is_over = time.monotonic() > deadline_s and self.now_s >= until_s
            assert not is_over, f"not within {PATIENCE_S} s: {what}"
            await self.run_in_executor(None, time.sleep, 0.002)
            await self.pass_s(step_s)
        return seen

    async def pass_s(self, seconds: float) -> None:
        """Move the clock; what is due runs before this returns."""
        self.now_s += seconds
        for _ in range(20):  # turns: a timer wakes a task, which wakes others
            await asyncio.sleep(0)


def run_jumping(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``main`` on a `JumpingLoop`; raise what it or a callback raises."""
    loop = JumpingLoop()
    result = _run(loop, main())
    if loop.thrown:
        raise loop.thrown[0]
    return result


def run_held(main: Callable[[HeldLoop], Coroutine[Any, Any, T]]) -> T:
    """Run ``main(loop)`` on a `HeldLoop`."""
    loop = HeldLoop()
    return _run(loop, main(loop))


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run as `asyncio.run` does: all other tasks are cancelled at the end."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        others = asyncio.all_tasks(loop)
        for task in others:
            task.cancel()
        if others:
            loop.run_until_complete(asyncio.wait(others))
        asyncio.set_event_loop(None)
        loop.close()


def as_test(
    coroutine: Callable[..., Any], run: Callable[..., None], *given: str
) -> Callable[..., None]:
    """Return the test that ``run`` makes of a coroutine; ``given`` parameters are no fixtures."""
    parameters = inspect.signature(coroutine).parameters.values()

    @functools.wraps(coroutine)
    def test(**fixtures: Any) -> None:
        run(functools.partial(coroutine, **fixtures))

    own = [its for its in parameters if its.name not in given]
    test.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return test


def in_asyncio(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test in a loop of asyncio's own."""
    return as_test(test, lambda main: asyncio.run(main()))


def jumping(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test in a `JumpingLoop`."""
    return as_test(test, run_jumping)


def held(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test in a `HeldLoop`, which it gets as ``loop``."""
    return as_test(test, lambda main: run_held(lambda loop: main(loop=loop)), "loop")
