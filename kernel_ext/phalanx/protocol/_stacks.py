"""Where a rank is, as seen from outside, and how that is said.

Pure records and words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ._ranks import format_ranks, name_ranks

__all__ = ["RankStack", "say_busy", "say_late", "say_where", "way_out"]


class RankStack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank is in (``doing``), and where in the user's code (``place``, ``frames``).

    ``doing`` is an operation or a question, empty for the rank's own code; ``frames`` is the
    stack, innermost first; ``note`` stands for these where nothing was to be seen. ``is_still``:
    a second look a moment later saw the same.
    """

    doing: str = ""
    place: str = ""
    frames: tuple[str, ...] = ()
    note: str = ""
    is_still: bool = False

    @property
    def summary(self) -> str:
        """One line.

        Examples
        --------
        >>> RankStack("in all_sum #3", "train.py:31 in load").summary
        'in all_sum #3 at train.py:31 in load'
        """
        if not self.place:
            return self.doing or self.note
        # What stays where it is, and in nothing of ours, is in code that is not Python.
        at = "in C code called from" if self.is_still and not self.doing else "at"
        return f"{self.doing} {at} {self.place}".lstrip()

    @property
    def text(self) -> str:
        """The whole stack, a line each."""
        first = self.doing or self.note or "runs"
        return "\n".join([first, *(f"    {frame}" for frame in self.frames)])


def say_where(stacks: Mapping[int, RankStack]) -> str:
    """Where ranks are, in one line; those at one place together.

    Examples
    --------
    >>> stack = RankStack(place="train.py:31 in load")
    >>> say_where({0: stack, 1: stack, 2: RankStack("in all_sum #3")})
    'ranks 0-1 at train.py:31 in load; rank 2 in all_sum #3'
    """
    by_place: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        by_place.setdefault(stack.summary, []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} {where}" for where, ranks in by_place.items())


def say_busy(stacks: Mapping[int, RankStack]) -> str:
    """Say that ranks still run an earlier cell, where they are in it, and what to do.

    Examples
    --------
    >>> print(say_busy({1: RankStack(place="solver.py:12 in solve", is_still=True)}))
    rank 1 still runs the cell before (in C code called from solver.py:12 in solve); wait, use \
--ranks to run on the others, or replace it: %distributed restart 1 --force
    """
    verb = "runs" if len(stacks) == 1 else "run"
    return (
        f"{name_ranks(stacks)} still {verb} the cell before ({_places(stacks)}); {way_out(stacks)}"
    )


def way_out(ranks: Collection[int]) -> str:
    """Say what a person can do about ranks that do not end a cell.

    Examples
    --------
    >>> way_out([2, 0])
    'wait, use --ranks to run on the others, or replace them: %distributed restart 0,2 --force'
    """
    them = "it" if len(ranks) == 1 else "them"
    command = f"%distributed restart {format_ranks(ranks)} --force"
    return f"wait, use --ranks to run on the others, or replace {them}: {command}"


def say_late(stacks: Mapping[int, RankStack], limit_s: float) -> str:
    """Say that a stop has not ended ranks, and where they are.

    Examples
    --------
    >>> say_late({1: RankStack(place="train.py:31 in load")}, 5.0)
    'rank 1 did not end within 5 s of the stop (at train.py:31 in load)'
    """
    return f"{name_ranks(stacks)} did not end within {limit_s:g} s of the stop ({_places(stacks)})"


def _places(stacks: Mapping[int, RankStack]) -> str:
    """Where the ranks are that were just named: which is where, if that differs."""
    places = {stack.summary for stack in stacks.values()}
    return places.pop() if len(places) == 1 else say_where(stacks)
