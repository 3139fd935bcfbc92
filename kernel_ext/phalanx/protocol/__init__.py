"""The records and messages that both sides of every seam share.

A leaf: it imports nothing of phalanx but itself.
"""

from __future__ import annotations

from ._channel import MAX_FRAME, Channel, ChannelClosed, FrameReader, pack_frame
from ._input import LineNeed, TypedLine
from ._rank_messages import (
    CellEnded,
    EngineReady,
    EpochAborted,
    Gather,
    Gathered,
    Join,
    Refused,
    Register,
    Registered,
    ToRank,
    ToSupervisor,
    Welcome,
)
from ._records import (
    MEASUREMENT_MIME,
    HostInfo,
    LinkInfo,
    Measurement,
    RankInfo,
    RankState,
    Topology,
)
from ._workspace_messages import (
    BeginCell,
    Booted,
    BootFailed,
    BootOptions,
    CellAllowed,
    Failed,
    FromRoot,
    GetTopology,
    Hello,
    RankLost,
    RootAddress,
    Stop,
    Stopped,
    TopologyIs,
    ToRoot,
)

__all__ = [
    "MAX_FRAME",
    "MEASUREMENT_MIME",
    "BeginCell",
    "BootFailed",
    "BootOptions",
    "Booted",
    "CellAllowed",
    "CellEnded",
    "Channel",
    "ChannelClosed",
    "EngineReady",
    "EpochAborted",
    "Failed",
    "FrameReader",
    "FromRoot",
    "Gather",
    "Gathered",
    "GetTopology",
    "Hello",
    "HostInfo",
    "Join",
    "LineNeed",
    "LinkInfo",
    "Measurement",
    "RankInfo",
    "RankLost",
    "RankState",
    "Refused",
    "Register",
    "Registered",
    "RootAddress",
    "Stop",
    "Stopped",
    "ToRank",
    "ToRoot",
    "ToSupervisor",
    "Topology",
    "TopologyIs",
    "TypedLine",
    "Welcome",
    "pack_frame",
]
