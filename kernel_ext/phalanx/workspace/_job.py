"""What a launch is to run, and where: put together by whoever has checked it.

It holds; it looks at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._where import Where

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """A command that runs once per rank.

    ``command`` is a program and its arguments on this machine; other hosts look ``words`` up, which
    are the user's. ``env`` is added to the environment of each host, ``cwd`` is where ranks start.
    ``is_script_checked``: a script has to be there on every host before any rank starts.
    """

    command: Sequence[str]
    words: Sequence[str]
    at: Where
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    is_script_checked: bool = True
