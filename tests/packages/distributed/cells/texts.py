"""What a call came to, as a text that a rank can send to the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def text_of(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the repr of what a call returns, or its error as a traceback's last line says it."""
    try:
        return repr(call(*args, **options))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the test judges it
        return f"{type(error).__name__}: {error}"
