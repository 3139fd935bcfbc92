"""The records that the rooms hand to each other: who is where, what was measured.

A leaf: immutable, typed, validated when they come from outside; it knows no room.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "LINKS_DONE_MIME",
    "LINKS_MIME",
    "MEASUREMENT_MIME",
    "HostClock",
    "HostInfo",
    "LinkInfo",
    "LinkMeasurement",
    "Measurement",
    "RankInfo",
    "RankState",
    "Topology",
]

# In which a rank displays its measurements to whoever runs the sweep.
MEASUREMENT_MIME = "application/vnd.phalanx.measurement+json"
LINKS_MIME = "application/vnd.phalanx.links+json"
LINKS_DONE_MIME = "application/vnd.phalanx.links-done+json"  # how many there are so far

# A planned rank is one of a hostfile, in a world that nobody has started.
RankState = Literal["planned", "starting", "idle", "busy", "input", "dead"]


class HostInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine of a world: its place in the hostfile, its name, address and usable cores.

    ``device`` is the network card that has the address; "" where it is not known, or there is none.
    """

    index: int
    name: str
    address: str
    cores: int
    device: str = ""


class HostClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine's clock beside that of the root supervisor's machine, in nanoseconds.

    The root's time is the host's plus ``offset_ns``, give or take ``uncertainty_ns``; both are 0 on
    the root's own machine, whose processes share one clock.
    """

    name: str
    offset_ns: int
    uncertainty_ns: int


class RankInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank: its host (index), process, engine uuid and what it is doing.

    ``detail`` is empty or one line in a user's words: why it is dead, what it waits for.
    ``rss_nbytes`` is the memory it has in use, 0 where that is not known.
    """

    rank: int
    host: int
    pid: int
    state: RankState
    engine: str = ""
    detail: str = ""
    rss_nbytes: int = 0


class LinkInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The path between two ranks, ``a < b``: shared memory of one host, or tcp."""

    a: int
    b: int
    transport: Literal["arena", "tcp"]


class LinkMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast the path between two ranks is, ``a < b``, while nothing else moves.

    ``latency_us`` is half of a small message's way there and back, ``gbs`` 1e9 bytes a second one
    way, of messages of ``nbytes``; ``n_wrong`` counts bytes that did not come back as they went.
    """

    a: int
    b: int
    latency_us: float
    gbs: float
    nbytes: int
    n_wrong: int


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A world as it stands: hosts, ranks and the paths between them."""

    name: str
    epoch: int
    hosts: tuple[HostInfo, ...]
    ranks: tuple[RankInfo, ...]
    links: tuple[LinkInfo, ...]

    @property
    def size(self) -> int:
        """Number of ranks, dead ones included."""
        return len(self.ranks)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a bandwidth sweep, in the words of nccl-tests.

    ``algbw_gbs = nbytes / seconds / 1e9``; ``busbw_gbs`` is that times the operation's factor.
    ``n_wrong`` counts wrong elements on all ranks (0 on a sound machine); times are of the
    slowest rank, median and 99th percentile over ``iterations``, in microseconds.
    """

    op: str
    algorithm: str
    transport: str
    dtype: str
    ranks: int
    count: int
    nbytes: int
    time_us: float
    p99_us: float
    algbw_gbs: float
    busbw_gbs: float
    n_wrong: int
    iterations: int
