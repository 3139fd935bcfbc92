"""What the root supervisor and the supervisor of another host say to each other.

Requests carry an ``id`` that their answer repeats; the rest needs no answer. Before a host hands
on what a rank has said it reports on that rank, so that the root never learns of an end before it
knows how far the rank had come.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ._activity import Activity
from ._bounds import Amount, Code, Epoch, Pid, Rank
from ._rank_messages import ToRank, ToSupervisor
from .host_commands import FromCommand, ToCommand
from .host_samples import HostSamples, SampleRanks

__all__ = [
    "AbortEpoch",
    "Beat",
    "Beaten",
    "Bye",
    "Disowned",
    "FromHost",
    "GetTraces",
    "GiveBack",
    "HostBoot",
    "HostReport",
    "HostUp",
    "Kill",
    "Killed",
    "Look",
    "Looked",
    "RankFrozen",
    "RankGone",
    "RankReport",
    "RankSaid",
    "ReadShown",
    "Refresh",
    "Refreshed",
    "Rejoin",
    "Rejoined",
    "ReleaseOutput",
    "Shown",
    "SignalRank",
    "Spawn",
    "StopHost",
    "TellRank",
    "ToHost",
    "Traces",
    "WatchRanks",
]

Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # of a monotonic clock, in nanoseconds


class HostBoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first thing a host's supervisor reads, on its standard input.

    It connects to the first of ``endpoints`` that it reaches, with its keys, which the root has
    made. Where ``cwd`` is missing the home folder stands in, unless it ``is_cwd_asked`` for. Its
    ``ranks``, of ``size``, listen on ``addresses``, or those of ``interface``, or on the one through
    which the root was reached; ``connections_per_ip`` is as in `RemoteOptions`.
    """

    version: str
    workspace: str
    host: int
    name: str
    ranks: tuple[Rank, ...]
    size: Rank
    endpoints: tuple[str, ...]
    root_name: str
    root_key: bytes
    public_key: bytes
    secret_key: bytes
    cwd: str
    linger_s: float
    silence_s: float
    addresses: tuple[str, ...] = ()
    interface: str = ""
    env: dict[str, str] = {}
    is_cwd_asked: bool = False
    connections_per_ip: int = 1

    def __repr__(self) -> str:
        """Without the keys: a log or a traceback may show it."""
        return f"HostBoot(workspace={self.workspace!r}, host={self.host}, name={self.name!r}, ...)"


# -- from a host ----------------------------------------------------------------------------------


class HostUp(msgspec.Struct, frozen=True, tag="host_up", forbid_unknown_fields=True):
    """Host, first of all: I am there, and my ranks will listen on ``addresses``.

    ``device`` has the first. At ``root_address`` it has reached the root, and ranks the controller.
    """

    version: str
    pid: Pid
    name: str
    cores: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    addresses: tuple[str, ...]
    root_address: str = ""
    device: str = ""


class RankReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank as its host sees it: its process, what it is in, how much it has shown."""

    rank: Rank
    pid: Pid
    activity: Activity
    doing: str
    rss_nbytes: Amount
    shown_nbytes: Amount


class HostReport(msgspec.Struct, frozen=True, tag="host_report", forbid_unknown_fields=True):
    """Host: these ranks have changed. ``aborted`` is what the page says of the newest epoch."""

    ranks: tuple[RankReport, ...]
    aborted: tuple[Epoch, Code, Code, str] | None = None


class RankSaid(msgspec.Struct, frozen=True, tag="rank_said", forbid_unknown_fields=True):
    """Host: what a rank has said on its channel."""

    rank: Rank
    message: ToSupervisor


class RankGone(msgspec.Struct, frozen=True, tag="rank_gone", forbid_unknown_fields=True):
    """Host: a rank's process has ended, or could not be started."""

    rank: Rank
    status: Code
    reason: str
    tail: str


class RankFrozen(msgspec.Struct, frozen=True, tag="rank_frozen", forbid_unknown_fields=True):
    """Host: a rank gives no sign of life; said again and again."""

    rank: Rank
    reason: str


class Beaten(msgspec.Struct, frozen=True, tag="beaten", forbid_unknown_fields=True):
    """Host: the answer to `Beat`; ``now_ns`` is its clock."""

    number: int
    now_ns: Time


class Killed(msgspec.Struct, frozen=True, tag="killed", forbid_unknown_fields=True):
    """Host: the answer to `Kill`; whether the rank is over."""

    id: int
    is_over: bool


class Looked(msgspec.Struct, frozen=True, tag="looked", forbid_unknown_fields=True):
    """Host: the answer to `Look`; ``dump`` is empty without an answer, None without a channel."""

    id: int
    is_stopped: bool
    dump: str | None


class Traces(msgspec.Struct, frozen=True, tag="traces", forbid_unknown_fields=True):
    """Host: the answer to `GetTraces`: by slot, the recorder and how many records it has lost."""

    id: int
    traces: tuple[tuple[bytes, Amount], ...]


class Shown(msgspec.Struct, frozen=True, tag="shown", forbid_unknown_fields=True):
    """Host: the answer to `ReadShown`; ``left_out_lines`` is -1 where they are too many."""

    id: int
    text: bytes
    end: Amount
    left_out_nbytes: Amount
    left_out_lines: int


class Refreshed(msgspec.Struct, frozen=True, tag="refreshed", forbid_unknown_fields=True):
    """Host: the answer to `Refresh`, after the report."""

    id: int


class Rejoin(msgspec.Struct, frozen=True, tag="rejoin", forbid_unknown_fields=True):
    """Host, first of all on a connection that is not its first one: here I am again.

    What was said before its ``turn`` is of an older connection, wherever it has been meanwhile.
    """

    turn: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]


class Bye(msgspec.Struct, frozen=True, tag="bye", forbid_unknown_fields=True):
    """Host: my ranks are gone, and so am I in a moment."""


# -- to a host ------------------------------------------------------------------------------------


class Spawn(msgspec.Struct, frozen=True, tag="spawn", forbid_unknown_fields=True):
    """Root: start the process of this rank."""

    rank: Rank


class TellRank(msgspec.Struct, frozen=True, tag="tell_rank", forbid_unknown_fields=True):
    """Root: answer this rank. The descriptors and addresses of a `Welcome` are its host's."""

    rank: Rank
    message: ToRank


class AbortEpoch(msgspec.Struct, frozen=True, tag="abort_epoch", forbid_unknown_fields=True):
    """Root: free every rank that waits in this epoch."""

    epoch: Epoch
    kind: Code
    culprit: Code
    message: str


class WatchRanks(msgspec.Struct, frozen=True, tag="watch_ranks", forbid_unknown_fields=True):
    """Root: begin, or cease, to report what ranks do as it changes."""

    is_on: bool


class SignalRank(msgspec.Struct, frozen=True, tag="signal_rank", forbid_unknown_fields=True):
    """Root: send a signal to this rank and all that it has started."""

    rank: Rank
    number: Annotated[int, msgspec.Meta(ge=1, lt=65)]


class Kill(msgspec.Struct, frozen=True, tag="kill", forbid_unknown_fields=True):
    """Root: end this rank, and say when it is over."""

    id: int
    rank: Rank
    timeout_s: float


class Look(msgspec.Struct, frozen=True, tag="look", forbid_unknown_fields=True):
    """Root: where is this rank's Python? A report comes before the answer."""

    id: int
    rank: Rank


class GetTraces(msgspec.Struct, frozen=True, tag="get_traces", forbid_unknown_fields=True):
    """Root: what did your ranks do last?"""

    id: int


class ReadShown(msgspec.Struct, frozen=True, tag="read_shown", forbid_unknown_fields=True):
    """Root: what has this rank shown since a byte, at most so many lines (0: any number)?"""

    id: int
    rank: Rank
    since: Amount
    max_lines: Amount


class Refresh(msgspec.Struct, frozen=True, tag="refresh", forbid_unknown_fields=True):
    """Root: report on all ranks now."""

    id: int


class GiveBack(msgspec.Struct, frozen=True, tag="give_back", forbid_unknown_fields=True):
    """Root: the memory of this rank, which is dead, is not needed any more."""

    rank: Rank


class ReleaseOutput(msgspec.Struct, frozen=True, tag="release_output", forbid_unknown_fields=True):
    """Root: this rank takes care of its output from now on."""

    rank: Rank


class Beat(msgspec.Struct, frozen=True, tag="beat", forbid_unknown_fields=True):
    """Root: I live; do you?"""

    number: int


class Rejoined(msgspec.Struct, frozen=True, tag="rejoined", forbid_unknown_fields=True):
    """Root: so you are; each of us says again what the other has not heard."""


class StopHost(msgspec.Struct, frozen=True, tag="stop_host", forbid_unknown_fields=True):
    """Root: end your ranks and yourself."""


class Disowned(msgspec.Struct, frozen=True, tag="disowned", forbid_unknown_fields=True):
    """Root: you were taken for lost; end your ranks and yourself."""


FromHost = (
    HostUp
    | HostReport
    | RankSaid
    | RankGone
    | RankFrozen
    | Beaten
    | Killed
    | Looked
    | Traces
    | Shown
    | Refreshed
    | Rejoin
    | Bye
    | HostSamples
    | FromCommand
)
ToHost = (
    Spawn
    | TellRank
    | AbortEpoch
    | WatchRanks
    | SignalRank
    | Kill
    | Look
    | GetTraces
    | ReadShown
    | Refresh
    | GiveBack
    | ReleaseOutput
    | Beat
    | Rejoined
    | StopHost
    | Disowned
    | SampleRanks
    | ToCommand
)
