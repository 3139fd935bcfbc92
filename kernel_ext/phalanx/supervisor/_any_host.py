"""What the parts of a root ask of where ranks run, and what they are told by it.

Interfaces only: `HostSupervisor` is one machine, `Hosts` are all of a world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.protocol import Activity, FromRoot, HostClock, HostInfo, ToRank, ToSupervisor
from phalanx.protocol.host_commands import FromCommand

from ._layout import Layout
from ._shown import Piece

__all__ = ["Host", "HostEvents", "RemoteHosts", "WorldEvents"]


class HostEvents(Protocol):
    """What a host supervisor tells its root; all are called on the event loop."""

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Take what a rank said on its channel."""

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Learn that a rank's process is gone."""


class Host(Protocol):
    """Where ranks run: one machine, or all of them (`Hosts`).

    What is read at once is as of the newest report; what waits asks the rank's own host.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks, each of which has a slot."""

    @property
    def layout(self) -> Layout:
        """Who runs where."""

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """The machines, for a picture."""

    def send(self, rank: int, message: ToRank) -> None:
        """Answer a rank; nothing is lost by answering one that is gone."""

    def speaks(self, rank: int, pid: int) -> None:
        """Learn which process speaks for a rank."""

    def pid(self, rank: int) -> int:
        """Process id of a rank; 0 if it was never started."""

    def status(self, rank: int) -> int | None:
        """How a rank ended, as `subprocess` gives it; None while it runs."""

    def give_back(self, rank: int) -> None:
        """Return a dead rank's memory to the system; its epoch was aborted before."""

    def release_output(self, rank: int) -> None:
        """Leave a rank's output to its kernel, which is up now."""

    def activity(self, rank: int) -> Activity:
        """What a rank is doing in the engine."""

    def doing(self, rank: int) -> str:
        """Words for what a rank is in, with its place if it waits; "" for nothing."""

    def rss_nbytes(self, rank: int) -> int:
        """Memory that a rank has in use, 0 where that is not known."""

    def shown_nbytes(self, rank: int) -> int:
        """Return how much a rank has shown so far."""

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank that waits in ``epoch``; needs nothing of the ranks."""

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` if ``epoch`` was aborted."""

    def watch(self, *, is_on: bool) -> None:
        """Begin, or cease, to learn at once what ranks do: while a cell runs."""

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """End a rank and wait until it is reaped; False if that takes longer."""

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """Whether a rank is stopped (frozen), and else its Python stacks, as `StackPipe.dump`."""

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """Read what a rank has shown; None if there is no such rank."""

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """Return the clocks of all hosts, and by rank its recorder and what that has lost."""

    async def refresh(self) -> None:
        """Bring what is read at once up to date."""


class WorldEvents(HostEvents, Protocol):
    """What the hosts of a world tell their root; all are called on the event loop."""

    def on_frozen(self, rank: int, reason: str) -> None:
        """Learn that a rank gives no sign of life; called again and again."""

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Learn that hosts could not be started, and why, when all others are up."""

    def on_news(self, message: FromRoot) -> None:
        """Hand on what a person is to know."""


class RemoteHosts(Protocol):
    """What a remote host needs of those who keep all of them."""

    async def first_line(self, host: int, public_key: bytes, secret_key: bytes) -> bytes:
        """Return what a host's supervisor is to read first; listens for it, too."""

    def named(self, host: int, name: str) -> str:
        """Learn a host's own name; return what it is called."""

    def on_settled(self, host: int, problem: str, ranks: Sequence[int]) -> None:
        """Learn that a host is up, or why it cannot be; ``ranks`` were to run there."""

    def on_command(self, message: FromCommand) -> None:
        """Take what a host says of a rank's command."""
