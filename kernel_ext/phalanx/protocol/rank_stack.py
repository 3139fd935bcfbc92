"""Say where ranks are in the user's code."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from .activity import format_ranks, name_ranks


class RankStack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operation (``doing``) and place in the user's code of a rank.

    ``doing`` is an operation or a question, empty while the rank runs its own code. ``frames`` is
    the stack, innermost first. ``note`` says why there is no stack, if there is none.
    ``is_silent``: the rank runs no Python now, since it is suspended or C code holds the GIL.
    ``is_still``: a second look a moment later saw the same.
    """

    doing: str = ""
    place: str = ""
    frames: tuple[str, ...] = ()
    note: str = ""
    is_still: bool = False
    is_silent: bool = False

    @property
    def summary(self) -> str:
        """Return one line with the operation and the place.

        Examples
        --------
        >>> RankStack("in all_sum #3", "train.py:31 in load").summary
        'in all_sum #3 at train.py:31 in load'
        """
        if not self.place:
            return self.doing or self.note
        # A rank that stays at one place outside of our operations runs code that is not Python.
        at = "in C code called from" if self.is_still and not self.doing else "at"
        return f"{self.doing} {at} {self.place}".lstrip()

    @property
    def text(self) -> str:
        """Return the whole stack, one line per frame."""
        first = self.doing or self.note or "runs"
        return "\n".join([first, *(f"    {frame}" for frame in self.frames)])


def say_where(stacks: Mapping[int, RankStack]) -> str:
    """Say in one line where ranks are; group ranks at one place.

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
    """Say where ranks still run an earlier cell, and how to continue.

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
    """Say how to continue when ranks do not end a cell.

    Examples
    --------
    >>> way_out([2, 0])
    'wait, use --ranks to run on the others, or replace them: %distributed restart 0,2 --force'
    """
    them = "it" if len(ranks) == 1 else "them"
    command = f"%distributed restart {format_ranks(ranks)} --force"
    return f"wait, use --ranks to run on the others, or replace {them}: {command}"


def say_late(stacks: Mapping[int, RankStack], limit_s: float) -> str:
    """Say which ranks a stop has not ended, and where they are.

    Examples
    --------
    >>> say_late({1: RankStack(place="train.py:31 in load")}, 5.0)
    'rank 1 did not end within 5 s of the stop (at train.py:31 in load)'
    """
    return f"{name_ranks(stacks)} did not end within {limit_s:g} s of the stop ({_places(stacks)})"


def say_killed(stacks: Mapping[int, RankStack], limit_s: float) -> str:
    """Say which ranks were killed because a stop has not ended them.

    Examples
    --------
    >>> say_killed({1: RankStack(place="cell line 3"), 2: RankStack(place="cell line 3")}, 5.0)
    'ranks 1-2 did not end within 5 s of the stop (at cell line 3) and were killed'
    """
    return f"{say_late(stacks, limit_s)} and {'was' if len(stacks) == 1 else 'were'} killed"


def say_killed_at_once(ranks: Collection[int]) -> str:
    """Say which ranks a second stop has killed.

    Examples
    --------
    >>> say_killed_at_once([1])
    'rank 1 had not ended at the second stop and was killed'
    """
    were = "was" if len(ranks) == 1 else "were"
    return f"{name_ranks(sorted(ranks))} had not ended at the second stop and {were} killed"


def _places(stacks: Mapping[int, RankStack]) -> str:
    """Return the ranks' common place, or the place of each rank."""
    places = {stack.summary for stack in stacks.values()}
    return places.pop() if len(places) == 1 else say_where(stacks)
