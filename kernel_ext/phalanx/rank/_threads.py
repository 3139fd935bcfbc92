"""Which threads of this process may still act for the user's code.

It knows threads by where their code comes from, nothing of cells.
"""

from __future__ import annotations

import threading

__all__ = ["UserThreads"]

# Packages whose threads keep house for themselves and call no collective.
_HOUSEKEEPING = frozenset(
    {"IPython", "asyncio", "ipykernel", "ipyparallel", "phalanx", "tornado", "tqdm", "zmq"}
)


def _package_of(thread: threading.Thread) -> str:
    """The top-level package whose code a thread runs."""
    owner: object = type(thread)
    if type(thread) is threading.Thread:
        owner = getattr(thread, "_target", None)
    return str(getattr(owner, "__module__", "") or "").partition(".")[0]


class UserThreads:
    """Tells whether threads live that were started since it was made, by code that counts."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def are_alive(self) -> bool:
        """Whether any of them may still call the engine."""
        return any(
            thread not in self._before and _package_of(thread) not in _HOUSEKEEPING
            for thread in threading.enumerate()
        )
