"""Define the messages between a client and the root supervisor.

A request goes in an `AskRoot`, and its answer comes in a `RootAnswered`; no other message needs an answer.
Docstrings say the sender first: "Client: ..." or "Root: ...".
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .host_plan import HostPlan, RemoteOptions
from .rank import (
    Amount,
    CellEnded,
    LineNeed,
    Message,
    Rank,
    RankNews,
    RankOrder,
    TypedLine,
    WorldConfig,
)
from .rank_stack import RankStack
from .records import HostClock, Samples, WatchSamples, WorldTopology

GRACE_S = 5.0  # default time for ranks to end: saves of clean-up code take seconds, people wait


BootState = Literal["starting", "up", "failed"]


class WorkspaceRecord(msgspec.Struct, frozen=True, tag="workspace_record"):
    """Root: say which workspace this is, first on each connection.

    Unknown fields are accepted, so that a workspace of another version can be named in an error.
    ``owner_pid`` is the process that uses the workspace, 0 for none. ``ends_at`` (on the clock of
    `time.time`) is when the ranks end unless a client attaches before. ``is_detached``: the ranks
    stay when the owner exits in order. A stop takes ``grace_s`` seconds at most. ``is_silent``: the
    root did not answer, and only its name and process are known. ``version`` is empty then, and for a
    root that says this in another form.
    """

    version: str
    name: str
    size: int
    pid: int
    started: float
    owner_pid: int = 0
    ends_at: float | None = None
    is_stopping: bool = False
    is_detached: bool = False
    grace_s: float = GRACE_S
    is_silent: bool = False


class CellStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of an announced cell: its ranks, and their results.

    ``ended`` has the ends by rank, of the ranks that have ended. ``typed`` is the log of typed lines,
    and ``needs`` has the ranks that ask for a line; the log may have it already.
    """

    cell: str
    ranks: tuple[int, ...]
    ended: dict[int, CellEnded]
    typed: tuple[TypedLine, ...] = ()
    needs: tuple[tuple[int, LineNeed], ...] = ()


class Replaced(Message, frozen=True):
    """Root: a new process has replaced this rank and takes cells.

    The process before it died at ``died_at`` of ``reason``; the times are of `time.time`. The client
    prepares the rank before the next cell: it copies the variables of rank ``copy_from``, and with
    ``init`` runs the startup cells. ``is_asked``: a client has asked for the replacement.
    """

    rank: int
    engine: str
    reason: str
    died_at: float
    replaced_at: float
    is_asked: bool = False
    copy_from: int | None = None
    init: bool = True


class AddStartupCell(Message, frozen=True):
    """Client: keep this cell, which ranks that are replaced run first.

    ``ranks`` None means all ranks. Code that was kept before is moved to the end of the list.
    """

    code: str
    ranks: tuple[int, ...] | None


class ReplacementsReady(Message, frozen=True):
    """Client: these new ranks have their variables and ran the startup cells."""

    engines: tuple[str, ...]


class GetCellStatus(Message, frozen=True):
    """Client: ask for the cells and the rank changes that were missed."""


class CellStatusReply(Message, frozen=True):
    """Root: answer a `GetCellStatus`.

    ``cells`` are the cells that still run, and the last cell if it ended without a client.
    ``marks`` has, by rank, the length of its output in bytes when the last owner left. ``returns``
    are the replacements of ranks that no client has prepared, in their order; a rank may occur
    several times. ``every_start`` are the startup cells, in their order. ``begun`` has, by rank, the cell that it began last.
    """

    cells: tuple[CellStatus, ...]
    marks: dict[int, int]
    deaths: tuple[RankLost, ...]
    returns: tuple[Replaced, ...]
    every_start: tuple[AddStartupCell, ...]
    begun: dict[int, str]


class GetOutput(Message, frozen=True):
    """Client to root, root to host: ask for a rank's output.

    The output begins at byte ``since``. The answer has the end of the text: at most ``max_lines`` lines (0: any number) and 1 MiB.
    """

    rank: Rank
    since: Amount = 0
    max_lines: Amount = 0


class OutputIs(Message, frozen=True):
    """Answer a `GetOutput`; ``end`` is the output's length in bytes.

    ``left_out_nbytes`` bytes and ``left_out_lines`` lines of the requested output come before
    ``text`` and were left out. -1 lines: too many to count.
    """

    text: bytes
    end: Amount
    left_out_nbytes: Amount
    left_out_lines: int


class OwnershipTransferred(Message, frozen=True):
    """Root: another process, ``pid``, has taken over this workspace.

    ``pid`` -1: no process has, but this client did not take what the root sent.
    """

    pid: int


class BootOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that a root supervisor reads first on its standard input.

    The standard input is a socket, and its other end is the first client. The end of a client starts
    the linger clock of ``linger_s`` seconds. A name that is not ``is_named`` gets a number if it is
    taken. An operation that lasts ``slow_operation_s`` seconds is reported once. ``auto_restart``:
    replace a dead rank without a request. ``is_detached``: the ranks stay when a client exits in
    order. ``hosts`` is empty if all ranks run on this machine; else ``world.size`` is the sum of the
    ranks of the hosts, and ``remote`` says how to start the hosts. ``grace_s`` is the time that ranks
    have to end (of a script: also to handle the failure of another rank, and between a signal and
    the next, harder one). The root itself sets ``socket_path``, where other clients find it.
    """

    world: WorldConfig
    linger_s: float
    cwd: str
    slow_operation_s: float = 10.0
    is_named: bool = False
    auto_restart: bool = False
    is_detached: bool = False
    hosts: tuple[HostPlan, ...] = ()
    remote: RemoteOptions = RemoteOptions()
    grace_s: float = GRACE_S
    socket_path: str = ""

    def __repr__(self) -> str:
        """Return a text without keys, for logs and tracebacks."""
        return f"BootOptions(world={self.world}, ...)"


class Hello(Message, frozen=True):
    """Client: attach, and ask for `Booted` when all ranks are up.

    A workspace has one owner. ``is_taking``: take the workspace over from a living owner.
    """

    is_taking: bool = False


class BeginCell(Message, frozen=True):
    """Client: ask to run a cell on these ranks."""

    cell: str
    ranks: tuple[int, ...]
    title: str = ""  # first line of its code


class CancelCell(Message, frozen=True):
    """Client: the announced cell was not sent to these ranks."""

    cell: str
    ranks: tuple[int, ...] = ()  # none named: to no rank


class OrderRanks(Message, frozen=True):
    """Client: pass an order on to the live ones of these ranks."""

    ranks: tuple[int, ...]
    order: RankOrder


class GetTopology(Message, frozen=True):
    """Client: ask for the present state of the world."""


class GetStacks(Message, frozen=True):
    """Client: ask for the stacks of these ranks."""

    ranks: tuple[int, ...]
    is_twice: bool = False  # look a second time, to tell the ranks that do not move


class GetTrace(Message, frozen=True):
    """Client: ask for the flight recorders of all ranks."""


class Restart(Message, frozen=True):
    """Client: replace these ranks; none named: the dead ranks.

    ``force``: replace live ranks too. ``copy_from`` and ``init`` are those of `Replaced`.
    """

    ranks: tuple[int, ...]
    force: bool = False
    copy_from: int | None = None
    init: bool = True


class Stop(Message, frozen=True):
    """Client: end all ranks and the root; a second `Stop` kills ranks."""


class Booted(Message, frozen=True):
    """Root: all ranks run; ``connection`` is ipyparallel's connection file for clients.

    ``session`` is Jupyter's session, the same for all clients, so that each client receives the
    messages of the others' cells. ``client`` is the unique number of this client; names made from
    this number are unique.
    """

    connection: dict[str, Any]
    engines: tuple[str, ...]
    session: str = ""
    client: int = 1

    def __repr__(self) -> str:
        """Return a text without the connection, which has a key."""
        return f"Booted(engines={self.engines!r}, client={self.client}, ...)"


class CellAllowed(Message, frozen=True):
    """Root: allow the announced cell to run.

    ``reform``: the ranks were asked to join a new epoch first, and ``failed`` has the type and text of
    the error of each rank that did not. ``dead`` has the ranks that cannot take part, with the reason.
    """

    epoch: int
    reform: bool
    dead: dict[int, str]
    failed: dict[int, tuple[str, str]] = msgspec.field(default_factory=dict)


class RankSays(Message, frozen=True):
    """Root: pass on a rank's notice."""

    rank: int
    news: RankNews


class TopologyIs(Message, frozen=True):
    """Root: answer a `GetTopology`."""

    topology: WorldTopology


class StacksAre(Message, frozen=True):
    """Root: answer a `GetStacks`, by rank."""

    stacks: dict[int, RankStack]


class TraceIs(Message, frozen=True):
    """Root: answer a `GetTrace` with all flight recorders, also of dead ranks.

    ``records`` are in the engine's binary format. ``dropped`` counts the records that the recorder
    has overwritten. ``host`` has each rank's index in ``hosts``; the times of a rank are of that
    host's clock. ``now_ns`` is the root's clock at the time of the answer.
    """

    now_ns: int
    hosts: tuple[HostClock, ...]
    host: tuple[int, ...]
    records: tuple[bytes, ...]
    dropped: tuple[int, ...]


class BootProgress(Message, frozen=True):
    """Root: progress of a host's start; ``text`` explains failure or delay."""

    host: int
    name: str
    state: BootState
    seconds: float
    text: str = ""


class Notice(Message, frozen=True):
    """Root: one line to show to the user while the ranks run."""

    text: str


class RankLost(Message, frozen=True):
    """Root: the process of a rank has ended.

    ``tail`` is the end of the rank's raw output. ``will_return``: the rank is being replaced. A client
    that attaches later gets ``at`` (`time.time`) instead of these.
    """

    rank: int
    host: str
    reason: str
    tail: str = ""
    will_return: bool = False
    at: float = 0.0


class Restarted(Message, frozen=True):
    """Root: answer a `Restart`, after one `Replaced` for each replaced rank.

    ``failed`` has the reason of each rank that could not be replaced. ``joined`` are ranks that
    were being restarted already at the time of the request. ``cut_off`` names the ranks that did
    not end within the grace time.
    """

    ranks: tuple[int, ...]
    failed: dict[int, str]
    joined: tuple[int, ...] = ()
    cut_off: str = ""


class Failed(Message, frozen=True):
    """Root: refuse a request, an attach or a start; ``message`` says why.

    A request and an attach are refused in one line. After a failed start the root ends.
    """

    message: str


class Stopped(Message, frozen=True):
    """Root: all ranks have ended and the root supervisor ends next.

    ``cut_off`` names in one line the ranks that were killed; "": all have ended in order.
    """

    cut_off: str = ""


RootRequest = (
    BeginCell | GetTopology | GetStacks | GetTrace | GetCellStatus | GetOutput | Restart | Stop
)
RootAnswer = (
    CellAllowed
    | TopologyIs
    | StacksAre
    | TraceIs
    | CellStatusReply
    | OutputIs
    | Restarted
    | Stopped
    | Failed
)


class AskRoot(Message, frozen=True):
    """Client: ask the root; the `RootAnswered` has the same ``id``."""

    id: int
    request: RootRequest


class RootAnswered(Message, frozen=True):
    """Root: answer an `AskRoot`."""

    id: int
    answer: RootAnswer


ToRoot = (
    Hello | AskRoot | CancelCell | OrderRanks | AddStartupCell | ReplacementsReady | WatchSamples
)
FromRoot = (
    Booted
    | Failed
    | BootProgress
    | RootAnswered
    | RankSays
    | Notice
    | OwnershipTransferred
    | RankLost
    | Replaced
    | Samples
)
