"""Starting the supervisor of another host: by which means, and what is known of it then.

It knows that there are several ways, and nothing of what the supervisor does.
"""

from __future__ import annotations

from typing import Protocol

from phalanx.errors import DistributedError

__all__ = ["HostProcess", "HostUnreachable"]


class HostUnreachable(DistributedError):
    """A host could not be started: its name, and why."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"host {name}: {text}")
        self.name = name
        self.text = text


class HostProcess(Protocol):
    """A supervisor of another host that was started."""

    async def ended(self) -> str:
        """Wait for its end; words for why."""

    def kill(self) -> None:
        """End it; idempotent."""
