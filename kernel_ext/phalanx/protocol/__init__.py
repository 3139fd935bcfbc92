"""The records and messages that both sides of every seam share.

A leaf: it imports nothing of phalanx but itself.
"""

from __future__ import annotations

from ._channel import MAX_FRAME, Channel, ChannelClosed, FrameReader, pack_frame
from ._rank_messages import (
    CellEnded,
    CellStarted,
    EpochAborted,
    Gather,
    Gathered,
    Join,
    Refused,
    ToRank,
    ToSupervisor,
    Welcome,
)
from ._records import HostInfo, LinkInfo, Measurement, RankInfo, RankState, Topology

__all__ = [
    "MAX_FRAME",
    "CellEnded",
    "CellStarted",
    "Channel",
    "ChannelClosed",
    "EpochAborted",
    "FrameReader",
    "Gather",
    "Gathered",
    "HostInfo",
    "Join",
    "LinkInfo",
    "Measurement",
    "RankInfo",
    "RankState",
    "Refused",
    "ToRank",
    "ToSupervisor",
    "Topology",
    "Welcome",
    "pack_frame",
]
