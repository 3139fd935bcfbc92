"""`KEY=VALUE` settings for ranks, as options and hostfiles say them.

It knows names of variables; who gets them is the caller's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["environment"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment(settings: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` settings; a bare ``KEY`` is handed on from our own environment.

    Raises
    ------
    ValueError
        A name that no shell takes, or a bare one that is not set.

    Examples
    --------
    >>> environment(["A=1=2", "HOME"], {"HOME": "/root"})
    {'A': '1=2', 'HOME': '/root'}
    """
    env = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not _VARIABLE.fullmatch(name):
            msg = f"--env {setting}: '{name}' is no name of a variable"
            raise ValueError(msg)
        if "\0" in value:
            msg = f"--env {name}: the value holds a null character"
            raise ValueError(msg)
        if name == "PHALANX_CHANNEL":
            msg = "--env PHALANX_CHANNEL: the launcher sets it for each rank"
            raise ValueError(msg)
        if not equals and name not in own:
            msg = f"--env {name}: it is not set here; --env {name}= sets it to nothing"
            raise ValueError(msg)
        env[name] = value if equals else own[name]
    return env
