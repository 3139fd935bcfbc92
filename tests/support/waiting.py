"""Wait for something that can be seen, instead of guessing how long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from support.promise import PATIENCE_S

T = TypeVar("T")
POLL_S = 0.01  # a poll without a pause takes the core that the awaited process needs


def wait_until(
    condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S, poll_s: float = POLL_S
) -> T:
    """Poll ``condition`` until it is true; return what it returned, or fail saying ``what``."""
    deadline_s = time.monotonic() + timeout_s
    while not (seen := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(poll_s)
    return seen


async def wait_until_async(
    condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S, poll_s: float = POLL_S
) -> T:
    """Poll ``condition`` in the running loop, by the loop's own clock; see `wait_until`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not (seen := condition()):
        assert loop.time() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(poll_s)
    return seen
