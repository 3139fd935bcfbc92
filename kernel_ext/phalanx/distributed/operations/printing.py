"""Print on one rank."""

from __future__ import annotations

from typing import Any

from ..group.group import Group
from .collectives import group_or_world


def print0(*values: Any, group: Group | None = None, **options: Any) -> None:
    """Print on rank 0; the other ranks print nothing.

    Parameters
    ----------
    *values : object
        What to print.
    group : Group, optional
        Rank 0 of this group prints; ``None``: of the group of all ranks.
    **options : object
        As for `print`: ``sep``, ``end``, ``file``, ``flush``.

    See Also
    --------
    barrier : waits for all ranks.

    Notes
    -----
    Cost: no communication, and no rank waits for another.

    Examples
    --------
    >>> import phalanx as px
    >>> px.print0("loss", 0.5, sep="=")
    loss=0.5
    """
    if group_or_world(group).rank() == 0:
        print(*values, **options)  # noqa: T201
