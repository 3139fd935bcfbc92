"""What a workspace (the notebook's side) and the root supervisor say to each other.

Requests carry an ``id`` that their answer repeats; everything else is news.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ._attach_messages import (
    GetOutput,
    GetStanding,
    KeepCell,
    LetGo,
    NotYours,
    OutputIs,
    Settled,
    StandingIs,
    Taken,
)
from ._bounds import Pid
from ._host_records import BootProgress, HostPlan, RemoteOptions
from ._records import HostClock, Topology
from ._samples import Samples, WatchSamples
from ._stacks import RankStack

__all__ = [
    "BeginCell",
    "BootFailed",
    "BootOptions",
    "Booted",
    "CellAllowed",
    "Failed",
    "ForgetCell",
    "FromRoot",
    "GetStacks",
    "GetTopology",
    "GetTrace",
    "Hello",
    "Notice",
    "RankLost",
    "Replaced",
    "Restart",
    "Restarted",
    "RootAddress",
    "StacksAre",
    "Stop",
    "Stopped",
    "ToRoot",
    "TopologyIs",
    "TraceIs",
]


class BootOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first thing a root supervisor reads, on its standard input: what to run, for whom.

    ``client_pid`` is the process whose end starts the linger clock; ``linger_s`` seconds. A rank
    that gives no sign of life for ``silence_s`` is taken for frozen; an operation that has lasted
    for ``quiet_s`` is told of, once. The descriptor ``record_fd`` is the workspace's record (locked)
    at ``record_path``; -1 where nobody shall find it. ``client_secret_key`` goes into it.
    ``auto_restart``: a rank that dies is replaced unasked. ``hosts`` are empty where all ranks run
    on this machine; else ``ranks`` is the sum of theirs, and ``remote`` says how to start them.
    """

    name: str
    ranks: int
    client_pid: int
    client_public_key: bytes
    transport: str
    linger_s: float
    silence_s: float
    cwd: str
    quiet_s: float = 10.0
    client_secret_key: bytes = b""
    record_fd: int = -1
    record_path: str = ""
    auto_restart: bool = False
    hosts: tuple[HostPlan, ...] = ()
    remote: RemoteOptions = RemoteOptions()

    def __repr__(self) -> str:
        """Without the keys: a log or a traceback may show it."""
        return f"BootOptions(name={self.name!r}, ranks={self.ranks}, ...)"


class RootAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The supervisor's first line of output: where it listens, and its public CURVE key."""

    endpoint: str
    public_key: bytes


class Hello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """Client: I am here; tell me when the ranks are up.

    ``pid`` is the process whose end starts the linger clock. There is one owner; who would
    ``take`` a workspace may have it from a living one, and who would ``watch`` only looks.
    """

    version: str
    pid: Pid = 0
    mode: Literal["own", "take", "watch"] = "own"


class BeginCell(msgspec.Struct, frozen=True, tag="begin_cell", forbid_unknown_fields=True):
    """Client: these ranks are about to run a cell."""

    id: int
    cell: str
    ranks: tuple[int, ...]


class ForgetCell(msgspec.Struct, frozen=True, tag="forget_cell", forbid_unknown_fields=True):
    """Client: the cell that was announced was not sent after all: to these ranks, or to any."""

    cell: str
    ranks: tuple[int, ...] = ()


class GetTopology(msgspec.Struct, frozen=True, tag="get_topology", forbid_unknown_fields=True):
    """Client: what does the world look like now?"""

    id: int


class GetStacks(msgspec.Struct, frozen=True, tag="get_stacks", forbid_unknown_fields=True):
    """Client: where are these ranks? ``is_twice``: look again, to tell what does not move."""

    id: int
    ranks: tuple[int, ...]
    is_twice: bool = False


class GetTrace(msgspec.Struct, frozen=True, tag="get_trace", forbid_unknown_fields=True):
    """Client: what did the ranks do last?"""

    id: int


class Restart(msgspec.Struct, frozen=True, tag="restart", forbid_unknown_fields=True):
    """Client: replace these ranks (none named: those that are dead); a live one only by force."""

    id: int
    ranks: tuple[int, ...]
    force: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """Client: end all ranks and yourself."""

    id: int


class Booted(msgspec.Struct, frozen=True, tag="booted", forbid_unknown_fields=True):
    """Root: every rank runs. ``connection`` is ipyparallel's connection file for clients.

    ``session`` is Jupyter's, the same for all clients, so that each hears of the others' cells;
    ``client`` is the number of this one, for names that no other has given.
    """

    connection: dict[str, Any]
    engines: tuple[str, ...]
    session: str = ""
    client: int = 1

    def __repr__(self) -> str:
        """Without the connection, which holds a key."""
        return f"Booted(engines={self.engines!r}, client={self.client}, ...)"


class BootFailed(msgspec.Struct, frozen=True, tag="boot_failed", forbid_unknown_fields=True):
    """Root: the ranks did not come up, and why."""

    message: str


class CellAllowed(msgspec.Struct, frozen=True, tag="cell_allowed", forbid_unknown_fields=True):
    """Root: go. ``reform`` asks for the world to be joined anew first (a new epoch).

    ``dead`` lists the ranks that cannot take part, with the reason.
    """

    id: int
    epoch: int
    reform: bool
    dead: dict[int, str]


class TopologyIs(msgspec.Struct, frozen=True, tag="topology_is", forbid_unknown_fields=True):
    """Root: the answer to `GetTopology`."""

    id: int
    topology: Topology


class StacksAre(msgspec.Struct, frozen=True, tag="stacks_are", forbid_unknown_fields=True):
    """Root: the answer to `GetStacks`, by rank."""

    id: int
    stacks: dict[int, RankStack]


class TraceIs(msgspec.Struct, frozen=True, tag="trace_is", forbid_unknown_fields=True):
    """Root: the answer to `GetTrace`: of each rank, alive or not, its flight recorder.

    ``records`` are packed as the engine packs them, ``dropped`` counts those that are not in it any
    more. Times are of the clocks of ``hosts``, of which ``host`` gives the index; ``now_ns`` is the
    root's when it looked.
    """

    id: int
    now_ns: int
    hosts: tuple[HostClock, ...]
    host: tuple[int, ...]
    records: tuple[bytes, ...]
    dropped: tuple[int, ...]


class Notice(msgspec.Struct, frozen=True, tag="notice", forbid_unknown_fields=True):
    """Root: one line for whoever looks on while the ranks run."""

    text: str


class RankLost(msgspec.Struct, frozen=True, tag="rank_lost", forbid_unknown_fields=True):
    """Root: a rank's process is gone. ``tail`` is the end of its raw output.

    ``will_return``: it is being replaced.
    """

    rank: int
    host: str
    reason: str
    tail: str
    will_return: bool = False


class Replaced(msgspec.Struct, frozen=True, tag="replaced", forbid_unknown_fields=True):
    """Root: a new process is this rank, and takes cells; ``reason`` is how the last one went."""

    rank: int
    engine: str
    reason: str


class Restarted(msgspec.Struct, frozen=True, tag="restarted", forbid_unknown_fields=True):
    """Root: the answer to `Restart`, after the `Replaced` of each; ``failed`` says why not.

    ``joined`` were being restarted already when that was asked.
    """

    id: int
    ranks: tuple[int, ...]
    failed: dict[int, str]
    joined: tuple[int, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """Root: the request cannot be met, in one line."""

    id: int
    message: str


class Stopped(msgspec.Struct, frozen=True, tag="stopped", forbid_unknown_fields=True):
    """Root: all ranks are gone; so am I in a moment."""

    id: int


ToRoot = (
    Hello
    | BeginCell
    | ForgetCell
    | GetTopology
    | GetStacks
    | GetTrace
    | GetStanding
    | GetOutput
    | KeepCell
    | Settled
    | LetGo
    | Restart
    | Stop
    | WatchSamples
)
FromRoot = (
    Booted
    | BootFailed
    | BootProgress
    | CellAllowed
    | TopologyIs
    | StacksAre
    | TraceIs
    | StandingIs
    | OutputIs
    | Notice
    | NotYours
    | Taken
    | RankLost
    | Replaced
    | Restarted
    | Failed
    | Stopped
    | Samples
)
