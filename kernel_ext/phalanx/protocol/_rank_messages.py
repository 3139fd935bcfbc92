"""What a rank and the supervisor of its host say to each other, over an inherited socket pair.

The rank asks, the supervisor answers (`Request.id` pairs them); notices need no answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ._bounds import Code, Epoch, GroupNumber, Pid

__all__ = [
    "CellEnded",
    "EngineReady",
    "EpochAborted",
    "Gather",
    "Gathered",
    "Join",
    "Recover",
    "Refused",
    "Register",
    "Registered",
    "SplitClosed",
    "SplitFormed",
    "ToRank",
    "ToSupervisor",
    "Welcome",
    "Withdraw",
]


class Register(msgspec.Struct, frozen=True, tag="register", forbid_unknown_fields=True):
    """Rank to supervisor, first of all: I am up, whom do I serve?"""

    id: int
    pid: Pid


class Registered(msgspec.Struct, frozen=True, tag="registered", forbid_unknown_fields=True):
    """Supervisor to rank: its number and, as ``connection``, ipyparallel's file for engines.

    ``replaces``: an engine that is gone has had this number.
    """

    id: int
    rank: int
    engine: str
    connection: dict[str, Any]
    replaces: bool = False

    def __repr__(self) -> str:
        """Without the connection, which holds a key."""
        return f"Registered(rank={self.rank}, engine={self.engine!r}, connection=...)"


class EngineReady(msgspec.Struct, frozen=True, tag="engine_ready", forbid_unknown_fields=True):
    """Notice: the rank's kernel takes cells."""


class Join(msgspec.Struct, frozen=True, tag="join", forbid_unknown_fields=True):
    """Rank to supervisor: which world am I in? Asked at start and before each new epoch.

    ``version`` is that of the rank's phalanx: a script may run in another environment than we do.
    """

    id: int
    pid: Pid
    version: str = ""


class Recover(msgspec.Struct, frozen=True, tag="recover", forbid_unknown_fields=True):
    """Rank to supervisor: let the world form anew, as soon as every rank asks for it.

    The answer is a `Welcome` to the next epoch, or to this one if it is good on every rank.
    ``epoch`` is that of this rank's group (0: it has none yet), ``is_over`` whether the group has
    failed or was closed here. ``version`` is as in `Join`, which a rank may not have sent yet.
    """

    id: int
    epoch: int
    is_over: bool
    version: str = ""


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw", forbid_unknown_fields=True):
    """Rank to supervisor: I do not wait for the answer to ``of`` any more; who is missing there?

    The answer is a `Refused` that says so; one to ``of`` that was on its way comes before it.
    """

    id: int
    of: int


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """Supervisor to rank: the world as it stands, and the descriptors this rank inherited.

    ``hosts[r]`` is rank r's host index and ``slots[r]`` its slot there. This rank's own host fills
    in the last: ``addresses`` to listen on, of which the first ``at_once`` are used together,
    ``region_fds`` and ``wake_fds`` by slot. A host that does not answer for ``silence_s`` is taken
    for lost.
    """

    id: int
    rank: int
    size: int
    epoch: int
    workspace: str
    key: bytes
    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    host_names: tuple[str, ...]
    transport: str
    addresses: tuple[str, ...] = ()
    page_fd: int = -1
    region_fds: tuple[int, ...] = ()
    wake_fds: tuple[int, ...] = ()
    silence_s: float = 5.0
    at_once: int = 1
    connections_per_ip: int = 1

    def __repr__(self) -> str:
        """Without the key: a log or a traceback may show it."""
        return f"Welcome(rank={self.rank}, size={self.size}, epoch={self.epoch}, key=...)"


class Gather(msgspec.Struct, frozen=True, tag="gather", forbid_unknown_fields=True):
    """Rank to supervisor: my share of round ``round`` of the rendezvous of ``epoch``."""

    id: int
    epoch: int
    round: int
    data: bytes


class Gathered(msgspec.Struct, frozen=True, tag="gathered", forbid_unknown_fields=True):
    """Supervisor to rank: the shares of all ranks, by rank."""

    id: int
    parts: tuple[bytes, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """Supervisor to rank: the request cannot be met any more; ``rank`` is the culprit or -1."""

    id: int
    rank: int
    message: str


class CellEnded(msgspec.Struct, frozen=True, tag="cell_ended", forbid_unknown_fields=True):
    """Notice: this rank's part of the cell is over.

    ``lives_on``: threads that the user's code started go on, and may call the engine yet.
    ``error`` is the error's name and text in one line, where there was one.
    """

    cell: str
    ok: bool
    lives_on: bool = False
    error: str = ""


class EpochAborted(msgspec.Struct, frozen=True, tag="epoch_aborted", forbid_unknown_fields=True):
    """Notice: the group of ``epoch`` was given up on this host (kind as in `_native`)."""

    epoch: Epoch
    kind: Code
    culprit: Code
    message: str


class SplitFormed(msgspec.Struct, frozen=True, tag="split_formed", forbid_unknown_fields=True):
    """Notice: this rank is in a group of ``members`` (ranks of the world) in ``channel``.

    ``number`` tells this group from all others of the epoch; it is the same on all its ranks.
    """

    epoch: int
    channel: int
    number: GroupNumber
    members: tuple[int, ...]


class SplitClosed(msgspec.Struct, frozen=True, tag="split_closed", forbid_unknown_fields=True):
    """Notice: this rank has left the group ``number`` of ``epoch``."""

    epoch: int
    number: GroupNumber


ToSupervisor = (
    Register
    | EngineReady
    | Join
    | Recover
    | Withdraw
    | Gather
    | CellEnded
    | EpochAborted
    | SplitFormed
    | SplitClosed
)
ToRank = Registered | Welcome | Gathered | Refused
