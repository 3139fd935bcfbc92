"""Values to and from the ranks' namespaces: ipyparallel's calls and serialization.

It knows what travels; sending and waiting are the runner's.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from ipyparallel.serialize import deserialize_object, pack_apply_message
from ipyparallel.util import _pull, _push

from phalanx.rank import copy_report

from ._cell import Cell
from ._messages import Message

__all__ = ["Call", "pull_request", "push_request", "report_request"]


class Call(Cell):
    """A call of a function on ranks; `values` holds what came back, by rank.

    What comes back is unpickled: it is signed with the key of our own controller, and who can
    sign runs code of this user anyway.
    """

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        super().__init__(name, ranks)
        self.values: dict[int, Any] = {}

    def on_shell(self, rank: int, message: Message) -> None:
        """Take a rank's answer."""
        content = message["content"]
        if content["status"] == "ok":
            self.values[rank], _ = deserialize_object(message["buffers"])
        else:
            # No code of the user's runs in a call: the frames are ipyparallel's.
            message = {**message, "content": {**content, "traceback": []}}
        super().on_shell(rank, message)


def _checked(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        msg = f"{name!r} is not the name of a variable"
        raise ValueError(msg)
    return name


def push_request(values: Mapping[str, Any]) -> list[Any]:
    """Buffers of a call that binds the names; `ValueError` for what is no name."""
    named = {_checked(name): value for name, value in values.items()}
    return list(pack_apply_message(_push, (), named))


def report_request() -> list[Any]:
    """Buffers of a call that returns what the last copy of names came to."""
    return list(pack_apply_message(copy_report, (), {}))


def pull_request(names: Sequence[str]) -> list[Any]:
    """Buffers of a call that returns the named values as a list."""
    return list(pack_apply_message(_pull, ([_checked(name) for name in names],), {}))
