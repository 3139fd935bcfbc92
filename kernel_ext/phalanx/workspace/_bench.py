"""Running the ranks' sweep engine and taking its measurements as they come.

It knows the engine's call as code for a cell, and the MIME type the measurements travel in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from phalanx.protocol import MEASUREMENT_MIME, Measurement

from ._events import Display
from ._view import QuietView

__all__ = ["measure"]


class _BenchView(QuietView):
    """Takes measurements out of what the ranks display."""

    def __init__(self) -> None:
        self.measured: queue.SimpleQueue[Measurement | None] = queue.SimpleQueue()

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Keep a measurement."""
        data = event.data.get(MEASUREMENT_MIME)
        if data is not None:
            self.measured.put(msgspec.convert(data, Measurement))


def measure(
    run: Callable[..., Any], interrupt: Callable[[], None], **options: object
) -> Iterator[Measurement]:
    """Sweep on all ranks through ``run`` (`Workspace.run`), yielding each size when measured.

    Whoever leaves the iteration early, or presses Ctrl-C in it, stops the ranks (``interrupt``).
    """
    view = _BenchView()
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    code = f"__import__('phalanx.rank').rank.publish_sweep({arguments})"
    failure: list[BaseException] = []

    def work() -> None:
        try:
            run(code, view=view)
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread below
            failure.append(error)
        finally:
            view.measured.put(None)

    thread = threading.Thread(target=work, name="phalanx-bench", daemon=True)
    thread.start()
    try:
        while (measurement := view.measured.get()) is not None:
            yield measurement
    finally:
        if thread.is_alive() and not failure:
            interrupt()
        thread.join()
    if failure:
        raise failure[0]
