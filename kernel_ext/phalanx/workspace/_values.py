"""Values to and from the ranks' namespaces: ipyparallel's calls and serialization.

It knows what travels; sending and waiting are the runner's. ipyparallel is loaded with the first
value: its package brings all of its client, a fifth of what `%load_ext phalanx` would take.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.rank import copy_report

from ._cell import Cell
from ._messages import Message

__all__ = ["Call", "pull_request", "push_request", "report_request"]


class Call(Cell):
    """A call of a function on ranks; `values` holds what came back, by rank.

    What comes back is unpickled: it is signed with the key of our own controller, and who can
    sign runs code of this user anyway.
    """

    is_announced = False

    def __init__(self, name: str, ranks: tuple[int, ...], nbytes: int = 0) -> None:
        super().__init__(name, ranks)
        self.nbytes = nbytes
        self.values: dict[int, Any] = {}

    def on_shell(self, rank: int, message: Message) -> None:
        """Take a rank's answer."""
        content = message["content"]
        if content["status"] == "ok":
            from ipyparallel.serialize import deserialize_object

            self.values[rank], _ = deserialize_object(message["buffers"])
        else:
            # No code of the user's runs in a call: the frames are ipyparallel's.
            message = {**message, "content": {**content, "traceback": []}}
        super().on_shell(rank, message)


def _checked(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        msg = f"{name!r} is not the name of a variable"
        raise ValueError(msg)
    return name


def push_request(values: Any) -> list[Any]:
    """Buffers of a call that binds the names of a mapping; `ValueError` for what is no name."""
    if not isinstance(values, Mapping):
        msg = f"push takes values by name, like {{'x': x}}, not {type(values).__name__}"
        raise TypeError(msg)
    from ipyparallel.util import _push

    named = {_checked(name): value for name, value in values.items()}
    try:
        return _call(_push, named=named)
    except Exception as error:  # whatever a value's own pickling raises
        msg = f"{' or '.join(named)} cannot be sent: {type(error).__name__}: {error}"
        raise TypeError(msg) from error


def report_request() -> list[Any]:
    """Buffers of a call that returns what the last copy of names came to."""
    return _call(copy_report)


def pull_request(names: Sequence[str]) -> list[Any]:
    """Buffers of a call that returns the named values as a list."""
    from ipyparallel.util import _pull

    return _call(_pull, [_checked(name) for name in names])


def _call(function: Any, *args: Any, named: Mapping[str, Any] | None = None) -> list[Any]:
    from ipyparallel.serialize import pack_apply_message

    return list(pack_apply_message(function, args, named or {}))
