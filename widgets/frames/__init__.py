"""Make the records that live widgets send to their pages."""

from __future__ import annotations

from typing import Literal

import msgspec


class WidgetFrame(msgspec.Struct, frozen=True):
    """The changing data of a widget.

    ``why`` explains a status other than "live". ``now`` is a clock; frames that differ only in it
    show the same.
    """

    status: Literal["live", "silent", "gone"]
    why: str
    now: float
