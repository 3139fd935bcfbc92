"""Define the messages between the root and other hosts' supervisors.

The root's own `LocalHost` takes and says the same messages, without a connection. A request goes in
an `AskHost`, and its answer comes in a `HostAnswered`; every other message needs no answer. Docstrings
say the sender first: "Root: ..." or "Host: ...".

Reports: before each answer the host says what all its ranks do. The root asks (`Refresh`) before it
decides by that.

Scripts: output goes to the root and input goes to the host as bytes, in the same order as the
message that a rank has ended. Each output stream has a flow-control window: the root sends acks
(`OutputDone`) for what `phalanx launch` has shown. Input is sent once per host, for all its ranks.

Samples: the root requests each sample, so nothing is read or sent while no client watches. A slow
host gets no second request before its answer. Times are of the host's own clock.

Reconnection: a side that misses messages asks for a `Resend` of those that it has not acknowledged.
Sequence numbers tell which are missing and which were received already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from .activity import Activity
from .client import GetOutput, OutputIs
from .rank import (
    MOST_RANKS,
    Amount,
    Code,
    EpochAborted,
    Message,
    Pid,
    Rank,
    ToRank,
    ToSupervisor,
    WorldConfig,
)
from .records import RankSample

Stream = Literal["stdout", "stderr"]

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # of a monotonic clock, in nanoseconds


class RunCommand(Message, frozen=True):
    """Root: start this rank's command.

    ``words`` are the command line as the user gave it. The command starts in the host's folder.
    A script or module runs with ``python`` (empty: the supervisor's own interpreter).
    ``is_script_checked``: the supervisor reports a missing script without starting Python.
    ``is_resolved``: ``words`` begin with the program's path.
    """

    rank: Rank
    words: tuple[bytes, ...]
    env: dict[bytes, bytes]
    is_script_checked: bool
    python: bytes = b""
    is_resolved: bool = False


class CommandInput(Message, frozen=True):
    """Launcher to root to host: input for all ranks; empty: its end."""

    data: bytes


class OutputDone(Message, frozen=True):
    """Launcher to root to host: output of this cost was written out."""

    rank: Rank
    stream: Stream
    cost: Amount


class CommandRuns(Message, frozen=True):
    """Host: this rank's command was started."""

    rank: Rank
    pid: Pid


class CommandFails(Message, frozen=True):
    """Host: this rank's command could not be started; ``text`` says why."""

    rank: Rank
    text: str


class CommandOutput(Message, frozen=True):
    """Host to root, root to launcher: bytes that a rank wrote."""

    rank: Rank
    stream: Stream
    data: bytes


class InputTaken(Message, frozen=True):
    """Host: its fastest rank has received ``nbytes`` of the input."""

    nbytes: Amount


class InputCut(Message, frozen=True):
    """Host: the input of this rank ends, as ``nbytes`` wait for it."""

    rank: Rank
    nbytes: Amount


ToCommand = RunCommand | CommandInput | OutputDone
FromCommand = CommandRuns | CommandFails | CommandOutput | InputTaken | InputCut


class HostBoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that a host's supervisor reads first on its standard input.

    The host connects to the first of ``endpoints`` that it reaches, with the CURVE keys that the
    root made for it. If the folder ``cwd`` is missing, the home folder is used, unless
    ``is_cwd_asked`` says that the user requested ``cwd``. ``ranks`` are the host's ranks. They
    listen on ``addresses``, or on the addresses of ``interface``, or on the address through which
    the host reached the root.
    """

    version: str
    world: WorldConfig
    host: int
    name: str
    ranks: tuple[Rank, ...]
    endpoints: tuple[str, ...]
    root_name: str
    root_key: bytes
    public_key: bytes
    secret_key: bytes
    cwd: str
    linger_s: float
    addresses: tuple[str, ...] = ()
    interface: str = ""
    env: dict[str, str] = {}
    is_cwd_asked: bool = False

    def __repr__(self) -> str:
        """Return a text without keys, for logs and tracebacks."""
        return f"HostBoot(world={self.world}, host={self.host}, name={self.name!r}, ...)"


# -- from a host ----------------------------------------------------------------------------------


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of libraries and Python on a host; "": unknown.

    ``python`` has the major and minor number only.
    """

    numpy: str = ""
    python: str = ""
    torch: str = ""
    mlx: str = ""


class HostUp(Message, frozen=True):
    """Host: first message, when the supervisor is up.

    The host's ranks will listen on ``addresses``. ``device`` is the network card that has the first
    address. ``root_address`` is the address at which the host reached the root; ranks reach the
    controller there too. ``free_port`` is a port that no process uses yet; 0: none is known.
    ``version`` is that of phalanx.
    """

    version: str
    pid: Pid
    name: str
    cores: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    addresses: tuple[str, ...]
    root_address: str = ""
    device: str = ""
    free_port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    versions: Versions = Versions()


class RankReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a rank on its host: process, operation, size of output."""

    rank: Rank
    pid: Pid
    activity: Activity
    doing: str
    rss_nbytes: Amount
    shown_nbytes: Amount


class HostReport(Message, frozen=True):
    """Host: what its ranks do now.

    ``aborted`` is the abort of the newest epoch, as the control page has it.
    """

    ranks: tuple[RankReport, ...]
    aborted: EpochAborted | None = None


class FromRankEnvelope(Message, frozen=True):
    """Host: forward a message that a rank sent on its channel."""

    rank: Rank
    message: ToSupervisor


class RankGone(Message, frozen=True):
    """Host: a rank's process has ended, or could not be started."""

    rank: Rank
    status: Code
    reason: str
    tail: str


class RankFrozen(Message, frozen=True):
    """Host: a rank gives no sign of life; repeated while this holds."""

    rank: Rank
    reason: str


class HostPong(Message, frozen=True):
    """Host: answer a `HostPing` of that time; ``now_ns`` is the host's clock."""

    sent_ns: Time
    now_ns: Time


class Looked(Message, frozen=True):
    """Host: answer a `Look` with the dump of the rank's stacks.

    ``dump`` is empty if the rank did not answer and None if the rank has no channel.
    """

    is_stopped: bool
    dump: str | None


class Traces(Message, frozen=True):
    """Host: answer a `GetTraces` with the flight recorder of each slot."""

    traces: tuple[tuple[bytes, Amount], ...]  # packed records, number of overwritten ones


class Refreshed(Message, frozen=True):
    """Host: answer a `Refresh`, after the report."""


class HostSamples(Message, frozen=True):
    """Host: answer a `SampleRanks` with the operations since the sample before."""

    ranks: Annotated[tuple[RankSample, ...], msgspec.Meta(max_length=MOST_RANKS)]


HostAnswer = Looked | Traces | OutputIs | Refreshed | HostSamples


class HostAnswered(Message, frozen=True):
    """Host: answer the `AskHost` with this id."""

    id: int
    answer: HostAnswer


class Resend(Message, frozen=True):
    """Root or host: send again what is not acknowledged.

    A host says so on every new connection, and both do where a message is missing.
    """


class HostLeaving(Message, frozen=True):
    """Host: all ranks have ended and the supervisor ends next."""


# -- to a host ------------------------------------------------------------------------------------


class Spawn(Message, frozen=True):
    """Root: start the process of this rank."""

    rank: Rank


class ToRankEnvelope(Message, frozen=True):
    """Root: forward an answer to this rank; the host completes a `Welcome`."""

    rank: Rank
    message: ToRank


class SignalRank(Message, frozen=True):
    """Root: send a signal to this rank and its child processes.

    SIGKILL also takes back a `Spawn` that waits for the fork server.
    """

    rank: Rank
    number: Annotated[int, msgspec.Meta(ge=1, lt=65)]


class Look(Message, frozen=True):
    """Root: ask for this rank's Python stacks."""

    rank: Rank


class GetTraces(Message, frozen=True):
    """Root: ask for the flight recorders of all ranks of the host."""


class Refresh(Message, frozen=True):
    """Root: ask for a report on all ranks."""


class SampleRanks(Message, frozen=True):
    """Root: sample all ranks of the host."""


HostRequest = Look | GetTraces | GetOutput | Refresh | SampleRanks
# By type of a request: type of its answer.
ANSWER_TO: Mapping[type[HostRequest], type[HostAnswer]] = {
    Look: Looked, GetTraces: Traces, GetOutput: OutputIs, Refresh: Refreshed, SampleRanks: HostSamples,
}  # fmt: skip


class AskHost(Message, frozen=True):
    """Root: send a request; the `HostAnswered` has the same id."""

    id: int
    request: HostRequest


class GiveBack(Message, frozen=True):
    """Root: release the memory of this dead rank."""

    rank: Rank


class HostPing(Message, frozen=True):
    """Root: heartbeat at this time; the host answers with a `HostPong`."""

    sent_ns: Time


class StopHost(Message, frozen=True):
    """Root: end your ranks and yourself; also after a loss."""


FromHost = (
    HostUp
    | HostReport
    | FromRankEnvelope
    | RankGone
    | RankFrozen
    | HostPong
    | HostAnswered
    | Resend
    | HostLeaving
    | FromCommand
)
ToHost = (
    Spawn
    | ToRankEnvelope
    | EpochAborted
    | SignalRank
    | AskHost
    | GiveBack
    | HostPing
    | Resend
    | StopHost
    | ToCommand
)


_T = TypeVar("_T", FromHost, ToHost)


class Envelope(
    msgspec.Struct, Generic[_T], frozen=True, array_like=True, forbid_unknown_fields=True
):
    """Envelope of a message between a host and the root.

    ``number`` is the sequence number. A message that may be lost, unlike one that ``is_kept``, has
    the number of the last one before it. ``ack`` is the number of the last message received.
    """

    number: Count
    ack: Count
    is_kept: bool
    message: _T
