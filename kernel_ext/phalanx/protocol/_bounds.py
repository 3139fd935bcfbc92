"""Numbers as a message may have them: what is decoded beyond these bounds is refused as a whole.

A leaf. They are checked where a message is decoded, so nothing behind that has to look again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["Amount", "Code", "Epoch", "GroupNumber", "Pid", "Rank"]

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]  # 0: none
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Epoch = Annotated[int, msgspec.Meta(ge=1, lt=1 << 48)]  # as in the word of an abort page
GroupNumber = Annotated[int, msgspec.Meta(ge=0)]  # of 64 bits, as in a record of the engine
Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # of the engine: an int of C
Amount = Annotated[int, msgspec.Meta(ge=0)]  # of bytes
