"""What is known of the supervisor of another host that is started, by whichever launcher.

It knows no launcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from phalanx.protocol import HostPlan, RemoteOptions

__all__ = ["BEGUN", "HostProcess", "HostStart", "HostUnreachable"]

BEGUN = "phalanx-host: begun"  # its only line on its standard output: it runs, and reaches out


class HostStart(NamedTuple):
    """A host's supervisor that is to be started, with what any launcher needs for that.

    ``first_line`` is what it is to read first, and holds keys. ``on_slow`` is told what takes long;
    a launcher gives up after ``remote.timeout_s``.
    """

    plan: HostPlan
    first_line: bytes
    remote: RemoteOptions
    on_slow: Callable[[str], None]


class HostUnreachable(Exception):
    """A host's supervisor could not be started; ``text`` says why, in a user's words."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.name}: {self.text}"


class HostProcess(Protocol):
    """What the root holds of a started host supervisor."""

    @property
    def is_over(self) -> bool:
        """Whether that supervisor is known to have ended, and not only what has started it."""

    async def ended(self) -> str:
        """Wait for its end; say why: ``its supervisor was killed by signal 9 (SIGKILL)``."""

    def look(self) -> None:
        """Find out soon whether it has ended: it cannot be spoken with any more."""

    def farewell(self) -> None:
        """Learn that it was stopped: no rank of it runs any more, and it ends."""

    def kill(self) -> None:
        """End it, or what of it is here, at once; idempotent."""
