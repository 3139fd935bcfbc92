"""What is said and written so that a workspace can be found again: its record, and how it stands.

A leaf: records only. Where the record lies is the supervisor's, what is shown the workspace's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "CellStanding",
    "GetOutput",
    "GetStanding",
    "KeepCell",
    "LetGo",
    "NotYours",
    "OutputIs",
    "RankDeath",
    "RankReturn",
    "Settled",
    "StandingIs",
    "Taken",
    "WorkspaceRecord",
]


class WorkspaceRecord(msgspec.Struct, frozen=True):
    """A running workspace as its root writes it down for the user's other processes.

    Unknown fields are let pass, so that another version's can be named and not just refused.
    ``owner_pid`` is the process that uses it, 0 for none; ``ends_at`` (of `time.time`) is when
    the ranks end if nobody comes until then. ``log_dir`` is where a script's output goes.
    """

    version: str
    kind: Literal["cells", "script"]
    name: str
    size: int
    pid: int
    started: float
    endpoint: str = ""
    public_key: bytes = b""
    client_public_key: bytes = b""
    client_secret_key: bytes = b""
    owner_pid: int = 0
    ends_at: float | None = None
    is_stopping: bool = False
    log_dir: str = ""

    def __repr__(self) -> str:
        """Without the keys: a log or a traceback may show it."""
        return f"WorkspaceRecord(name={self.name!r}, size={self.size}, pid={self.pid}, ...)"


class CellStanding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell that was announced: its ranks, and how it ended on those that are through.

    An empty text says that it ended well; the others are ``Error: text``. ``since`` says by rank
    up to where its output had come when the cell began.
    """

    cell: str
    ranks: tuple[int, ...]
    ended: dict[int, str]
    since: dict[int, int]


class RankDeath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank that is dead, for whoever comes later than the news; ``at`` is of `time.time`."""

    rank: int
    host: str
    reason: str
    at: float


class RankReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank that has died and was replaced, and has not what its client would give it."""

    rank: int
    engine: str
    reason: str
    died_at: float
    replaced_at: float


class KeepCell(msgspec.Struct, frozen=True, tag="keep_cell", forbid_unknown_fields=True):
    """Client: keep this cell of every start, for the clients that come after me.

    ``ranks`` None: of all. The same code again takes the place of the one before, as the last.
    """

    code: str
    ranks: tuple[int, ...] | None


class Settled(msgspec.Struct, frozen=True, tag="settled", forbid_unknown_fields=True):
    """Client: these new ranks have met the others, and have run the cells of every start."""

    engines: tuple[str, ...]


class GetStanding(msgspec.Struct, frozen=True, tag="get_standing", forbid_unknown_fields=True):
    """Client: what have I missed?"""

    id: int


class StandingIs(msgspec.Struct, frozen=True, tag="standing_is", forbid_unknown_fields=True):
    """Root: the answer to `GetStanding`.

    ``cells`` are those that run yet, and the last one if it ended while nobody was there.
    ``marks`` says by rank up to where its output had come when the last owner went. ``returns``
    are in the order of the deaths, a rank may be there several times. ``every_start`` are the
    cells that were kept, in their order.
    """

    id: int
    cells: tuple[CellStanding, ...]
    marks: dict[int, int]
    deaths: tuple[RankDeath, ...]
    returns: tuple[RankReturn, ...]
    every_start: tuple[KeepCell, ...]


class GetOutput(msgspec.Struct, frozen=True, tag="get_output", forbid_unknown_fields=True):
    """Client: what has a rank shown, as text, from byte ``since`` on; the end of it.

    At most ``max_lines`` lines (0: any number), and a MiB.
    """

    id: int
    rank: int
    since: int = 0
    max_lines: int = 0


class OutputIs(msgspec.Struct, frozen=True, tag="output_is", forbid_unknown_fields=True):
    """Root: the answer to `GetOutput`; ``end`` is where the output ends now.

    ``left_out_nbytes`` bytes of what was asked for lie before ``text``, and ``left_out_lines``
    lines (-1: they were too many to count).
    """

    id: int
    text: bytes
    end: int
    left_out_nbytes: int
    left_out_lines: int


class LetGo(msgspec.Struct, frozen=True, tag="let_go", forbid_unknown_fields=True):
    """Client: I go, and the ranks stay; start the linger clock."""


class NotYours(msgspec.Struct, frozen=True, tag="not_yours", forbid_unknown_fields=True):
    """Root: you may not have this workspace, in one line."""

    message: str


class Taken(msgspec.Struct, frozen=True, tag="taken", forbid_unknown_fields=True):
    """Root: another process has taken this workspace over; ``pid`` says which."""

    pid: int
