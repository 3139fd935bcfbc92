"""How what a root and another host's supervisor say to each other is numbered on its way.

A connection may break and be made anew: each end keeps what the other is not known to have, and
knows by the numbers what it has heard already.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .hosts import FromHost, ToHost

__all__ = ["FromHostLetter", "ToHostLetter"]

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class FromHostLetter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a host says; ``number`` is 0 where it need not come, ``heard`` the last that has come."""

    number: Count
    heard: Count
    message: FromHost


class ToHostLetter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a root says, in the same way."""

    number: Count
    heard: Count
    message: ToHost
