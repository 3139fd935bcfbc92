"""Define the messages between a rank and its host's supervisor or client.

Rank and supervisor: the rank sends requests, and the answer repeats the ``id``. Notices need no
answer. An order comes from the client, through the root, at any time. The decoder validates each
message, so later code need not check again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MOST_RANKS = 1 << 15  # of a world, as on a control page (native/shm/control_page.hpp)
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]  # 0: none
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Epoch = Annotated[int, msgspec.Meta(ge=1, lt=1 << 48)]  # 48 bits, as on a control page
GroupNumber = Annotated[int, msgspec.Meta(ge=0)]  # 64 bits, as in a record of the engine
Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # a C int, as the engine has
Amount = Annotated[int, msgspec.Meta(ge=0)]  # bytes
# Set for the ranks of a script: how often this rank was started again, and how often ranks of the
# script may be started again in all.
RESTART_VARIABLES = ("PHALANX_RESTART_COUNT", "PHALANX_MAX_RESTARTS")
MOST_DAP_NBYTES = 4 << 20  # of one message of a debugger: a value with a picture has less
DebuggerMessage = Annotated[bytes, msgspec.Meta(max_length=MOST_DAP_NBYTES)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of the messages between processes; its tag is the class name."""


class Register(Message, frozen=True):
    """Rank to supervisor: first message; ask for the rank number (`Registered`)."""

    id: int
    pid: Pid


class Registered(Message, frozen=True):
    """Supervisor to rank: answer a `Register` with the rank number.

    ``connection`` is ipyparallel's connection file for engines. ``size`` is the size of the world.
    ``replaces``: another engine had this rank number before and is gone.
    """

    id: int
    rank: int
    size: int
    engine: str
    connection: dict[str, Any]
    replaces: bool = False

    def __repr__(self) -> str:
        """Return a text without the connection, which has a key."""
        return f"Registered(rank={self.rank}, engine={self.engine!r}, connection=...)"


class EngineReady(Message, frozen=True):
    """Notice: the rank's kernel takes cells."""


class Join(Message, frozen=True):
    """Rank to supervisor: ask for the world to join.

    A rank asks at start and before each new epoch. ``version`` is the version of the rank's
    phalanx: a script may run in another environment than the supervisor.
    """

    id: int
    pid: Pid
    version: str = ""


class Recover(Message, frozen=True):
    """Rank to supervisor: request a new epoch once every rank requests it.

    The answer is a `Welcome` to the next epoch, or to the present epoch if its group is good on
    every rank. ``epoch`` is the epoch of this rank's group (0: no group yet). ``is_over``: the
    group has failed or was closed on this rank. ``version`` is as in `Join`, which this rank may
    not have sent.
    """

    id: int
    epoch: int
    is_over: bool
    version: str = ""


class Withdraw(Message, frozen=True):
    """Rank to supervisor: withdraw request ``of``.

    The answer is a `Refused` that names the ranks that were missing. An answer to ``of`` that was
    on its way comes before the `Refused`.
    """

    id: int
    of: int


class WorldConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that root, hosts and ranks of a world share.

    ``size`` is the number of ranks. A rank without a sign of life for ``heartbeat_timeout_s``
    seconds counts as frozen, a host as lost. Two hosts have ``connections_per_ip`` connections over
    each address.
    """

    name: str
    size: Rank
    transport: str = "any"
    heartbeat_timeout_s: float = 5.0
    connections_per_ip: int = 1


class Welcome(Message, frozen=True):
    """Supervisor to rank: the world to join, and this rank's descriptors.

    ``hosts[r]`` is the host index of rank r and ``slots[r]`` its slot on that host. The rank's
    host fills in ``addresses`` and all descriptors. The rank listens on ``addresses``; links use
    the first ``at_once`` of them at the same time. ``region_fds`` and ``wake_fds`` are by slot. The
    environment variables ``kept`` are the user's; phalanx does not change them. ``members`` are the
    ranks that are still in the world; empty: all.
    """

    id: int
    rank: int
    world: WorldConfig
    epoch: int
    key: bytes
    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    host_names: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    page_fd: int = -1
    region_fds: tuple[int, ...] = ()
    wake_fds: tuple[int, ...] = ()
    at_once: int = 1
    kept: tuple[str, ...] = ()
    members: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Return a text without the key, for logs and tracebacks."""
        return f"Welcome(rank={self.rank}, size={self.world.size}, epoch={self.epoch}, key=...)"


class Gather(Message, frozen=True):
    """Rank to supervisor: this rank's data for one round of a rendezvous."""

    id: int
    epoch: int
    round: int
    data: bytes


class Gathered(Message, frozen=True):
    """Supervisor to rank: the data of all ranks, by rank."""

    id: int
    parts: tuple[bytes, ...]


class Refused(Message, frozen=True):
    """Supervisor to rank: refuse a request; ``rank`` is the culprit or -1."""

    id: int
    rank: int
    message: str


class CellBegan(Message, frozen=True):
    """Notice: the cell has begun on this rank."""

    cell: str


class CellEnded(Message, frozen=True):
    """Notice: the cell has ended on this rank.

    ``has_background_threads``: threads that the user's code started still run and may call the
    engine. ``ename``, ``evalue`` and ``traceback`` are of the error that ended the cell, as in a
    Jupyter reply. ``n_shown`` is the number of messages that show the cell's output.
    """

    cell: str
    ok: bool
    has_background_threads: bool = False
    ename: str = ""
    evalue: str = ""
    traceback: tuple[str, ...] = ()
    n_shown: int = 0


class EpochAborted(Message, frozen=True):
    """Notice: the group of ``epoch`` was aborted on this host.

    The root sends it on to all hosts, where it wakes every rank that waits in the epoch. ``kind`` is
    an ``ABORT_...`` of `_native`.
    """

    epoch: Epoch
    kind: Code
    culprit: Code
    message: str


class SplitFormed(Message, frozen=True):
    """Notice: this rank is in a new group of ``members`` in ``channel``.

    ``members`` are ranks of the world. ``number`` identifies the group within its epoch and is
    the same on all its ranks.
    """

    epoch: int
    channel: int
    number: GroupNumber
    members: tuple[int, ...]


class SplitClosed(Message, frozen=True):
    """Notice: this rank has left the group ``number`` of ``epoch``."""

    epoch: int
    number: GroupNumber


class Step(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One operation of a group (0: the world), by its number.

    For a message, ``source`` and ``target`` are ranks of the world; for a collective both are -1.
    """

    epoch: int
    group: int
    source: int
    target: int
    number: int

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Return the sequence of ``number``: a group or a message lane."""
        return self.epoch, self.group, self.source, self.target


class StopReport(Message, frozen=True):
    """Notice: the progress of a cell that is being stopped.

    The cell ``runs``, is ``held`` before operation ``next``, or was ``stopped`` (interrupted).
    ``begun`` are the last operations that were begun: one of each group, and one of each lane in
    which a message has passed in this cell. ``is_open``: one of these is not complete.
    ``has_called``: this cell has begun an operation. ``place`` says where the cell was stopped, or
    in which operation it is.
    """

    state: Literal["runs", "held", "stopped"]
    begun: tuple[Step, ...] = ()
    next: Step | None = None
    is_open: bool = False
    has_called: bool = False
    place: str = ""
    cell: str = ""


class InterruptCaught(Message, frozen=True):
    """Notice: the cell's code has caught an interrupt and goes on."""

    cell: str


class LineNeed(Message, frozen=True):
    """Notice: this rank waits for a typed line.

    The rank's copy of the log has no line for it before entry ``index``. ``is_command``: an
    interpreter's prompt asks (pdb's, `code.interact`'s), not a program that reads data.
    ``n_shown`` is as in `CellEnded`: the prompt stands below this output.
    """

    cell: str
    index: int
    prompt: str
    password: bool
    is_command: bool
    n_shown: int = 0


class LineNotNeeded(Message, frozen=True):
    """Notice: this rank no longer waits for a line of data."""

    cell: str


class Entered(Message, frozen=True):
    """Answer an `EnterWorld`; ``ename`` and ``evalue`` are of the error, if any."""

    id: int
    ename: str = ""
    evalue: str = ""


class Completed(Message, frozen=True):
    """Answer a `Complete`: the completions of the text at ``start:end``.

    ``kinds`` and ``signatures`` have one entry per match. After a draft (``is_draft``) comes
    another answer.
    """

    id: int
    is_draft: bool
    matches: tuple[str, ...]
    start: int
    end: int
    kinds: tuple[str, ...]
    signatures: tuple[str, ...]


class Inspected(Message, frozen=True):
    """Answer an `Inspect` with the object's description; None: there is no object."""

    id: int
    text: str | None


class DebuggerSays(Message, frozen=True):
    """Notice: an answer or event of the rank's debugger, as DAP's JSON."""

    message: DebuggerMessage


# Notices that the root passes on to the client.
RankNews = (
    CellEnded
    | StopReport
    | InterruptCaught
    | LineNeed
    | LineNotNeeded
    | Completed
    | Inspected
    | DebuggerSays
)


class TypedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of a cell's log: a line (None: end of input).

    ``ranks`` are the ranks that get the line; None: every rank, also a rank that reads later. A
    command always names its ranks.
    """

    line: str | None
    ranks: tuple[int, ...] | None = None
    is_command: bool = False

    def is_for(self, rank: int, is_command: bool) -> bool:
        """Whether a rank that reads commands (or data) takes this entry."""
        return self.is_command == is_command and (self.ranks is None or rank in self.ranks)


ENTRY = "the entry into the world"  # the cell that a rank runs while it enters
# The id of a page's message to a widget begins so. A rank handles it as a cell of that name, which
# a `StopCell` can stop.
CALLBACK = "callback-"


class StopCell(Message, frozen=True):
    """Order: hold a cell before its next operation, or interrupt it.

    A rank holds the cell for ``hold_s`` seconds at most and then interrupts it; 0: interrupt it
    now. Stops with the same name ``stop`` interrupt the cell once.
    """

    cell: str
    stop: str
    hold_s: float = 0.0


class EndRank(Message, frozen=True):
    """Order of the root or host: interrupt the cell, and end.

    It does not depend on signals, for which cells may have their own handlers.
    """


class EnterWorld(Message, frozen=True):
    """Order of the root: join the present epoch between two cells.

    A `StopCell` for the cell ``ENTRY`` interrupts this.
    """

    id: int


class LetIn(Message, frozen=True):
    """Order: let the held cell continue up to these operations."""

    steps: tuple[Step, ...]


class TypeLine(Message, frozen=True):
    """Order: add an entry to the cell's log of typed lines.

    The link keeps the order, so all ranks have the same log.
    """

    cell: str
    entry: TypedLine


class RefuseInput(Message, frozen=True):
    """Order: fail the cell's reads with ``message``: nobody can answer."""

    cell: str
    message: str


class OutputDrawn(Message, frozen=True):
    """Order: the client has drawn the output up to ``sent`` bytes."""

    sent: Amount


class Complete(Message, frozen=True):
    """Order: complete the code at this place, in characters."""

    id: int
    code: str
    cursor: int


class Inspect(Message, frozen=True):
    """Order: describe the object at this place; ``detail`` 1 adds its source."""

    id: int
    code: str
    cursor: int
    detail: int = 0


class AskDebugger(Message, frozen=True):
    """Order: pass a request to the rank's debugger, as DAP's JSON.

    Empty: the client has gone, so that nobody would continue a rank that stands at a breakpoint.
    """

    message: DebuggerMessage


RankOrder = (
    StopCell
    | EndRank
    | EnterWorld
    | LetIn
    | TypeLine
    | RefuseInput
    | OutputDrawn
    | Complete
    | Inspect
    | AskDebugger
)


ToSupervisor = (
    Register
    | EngineReady
    | Join
    | Recover
    | Withdraw
    | Gather
    | CellBegan
    | EpochAborted
    | SplitFormed
    | SplitClosed
    | Entered
    | RankNews
)
RankAnswer = Registered | Welcome | Gathered | Refused
ToRank = RankAnswer | RankOrder
