"""What a person is told of ranks that go and come, a line each.

Pure text.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from phalanx.protocol import RankDeath, RankReturn

from ._ranks import name_ranks

__all__ = [
    "say_copied",
    "say_died",
    "say_failed",
    "say_joined",
    "say_lost",
    "say_replaced",
    "say_returned",
    "say_unasked",
    "say_without",
]


def _was(reason: str) -> str:
    """Make a claim of a reason: "killed by ..." was done to a rank, all others it does itself."""
    return f"was {reason}" if reason.startswith("killed") else reason


def say_lost(rank: int, reason: str, *, will_return: bool) -> str:
    """Say in one line that a rank is gone, and what to do.

    Examples
    --------
    >>> say_lost(2, "killed by signal 9 (SIGKILL)", will_return=False)
    'rank 2 was killed by signal 9 (SIGKILL); `%distributed restart 2` replaces it'
    """
    if reason.startswith("is being"):
        after = ""
    elif will_return:
        after = "; it is being replaced"
    else:
        after = f"; `%distributed restart {rank}` replaces it"
    return f"rank {rank} {_was(reason)}{after}"


def say_without(dead: Mapping[int, str]) -> str:
    """Say in one line that a cell runs without the dead, and what to do.

    Examples
    --------
    >>> say_without({2: "killed by signal 9 (SIGKILL)"})
    'this cell runs without rank 2, which was killed by signal 9 (SIGKILL); `%distributed restart 2` replaces it'
    >>> say_without({2: "lost its host: it has not answered for 5 s"})
    'this cell runs without rank 2, which lost its host: it has not answered for 5 s; `%distributed restart 2` replaces it'
    >>> say_without({1: "exited with status 3", 2: "is being restarted"})
    'this cell runs without rank 1, which exited with status 3, and rank 2, which is being restarted; `%distributed restart` replaces rank 1'
    """
    lost = {rank: why.partition("\n")[0] for rank, why in sorted(dead.items())}
    who = ", and ".join(f"rank {rank}, which {_was(why)}" for rank, why in lost.items())
    text = f"this cell runs without {who}"
    gone = sorted(rank for rank, why in lost.items() if not why.startswith("is being"))
    if gone == sorted(lost) and len(gone) == 1:
        text += f"; `%distributed restart {gone[0]}` replaces it"
    elif gone:
        them = "them" if gone == sorted(lost) else name_ranks(gone)
        text += f"; `%distributed restart` replaces {them}"
    return text


def say_failed(failed: Mapping[int, str]) -> str:
    """Say why ranks were not replaced."""
    return f"not replaced: {'; '.join(f'rank {rank} {why}' for rank, why in failed.items())}"


def say_joined(ranks: Collection[int]) -> str:
    """Say that a restart that was asked for was under way.

    Examples
    --------
    >>> say_joined((1, 2))
    'ranks 1-2 were being restarted already; that was waited for'
    """
    were = "was" if len(ranks) == 1 else "were"
    return f"{name_ranks(sorted(ranks))} {were} being restarted already; that was waited for"


def say_unasked(rank: int, reason: str) -> str:
    """Say in one line that a rank was replaced by itself.

    Examples
    --------
    >>> say_unasked(2, "exited with status 1")
    'rank 2 is new, without the variables of the one before, which exited with status 1'
    """
    return f"rank {rank} is new, without the variables of the one before, which {_was(reason)}"


def say_copied(source: int, ranks: Collection[int], copied: int, problems: dict[str, str]) -> str:
    """Say in one line what became of the names that were copied.

    Examples
    --------
    >>> say_copied(0, (2,), 5, {"lock": "cannot pickle", "f": "cannot pickle"})
    'rank 2 has 5 names of rank 0; not copied: lock, f (cannot pickle)'
    """
    have = "has" if len(ranks) == 1 else "have"
    names = "1 name" if copied == 1 else f"{copied} names"
    text = f"{name_ranks(sorted(ranks))} {have} {names} of rank {source}"
    by_reason: dict[str, list[str]] = {}
    for name, why in problems.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        text += "; not copied: "
        text += "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    return text


def say_replaced(ranks: Collection[int], size: int) -> str:
    """Say in one line which ranks are new, and what the others have.

    Examples
    --------
    >>> say_replaced((2,), 4)
    'rank 2 is new; ranks 0-1,3 have all they had'
    """
    text = f"{name_ranks(sorted(ranks))} {'is' if len(ranks) == 1 else 'are'} new"
    others = sorted(set(range(size)) - set(ranks))
    have = "has all it had" if len(others) == 1 else "have all they had"
    return f"{text}; {name_ranks(others)} {have}" if others else text


# -- of what happened while nobody looked -------------------------------------------------------


def _at(at: float) -> str:
    """Give the time of day; on another day the date as well."""
    is_today = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", time.localtime(at))


def say_died(death: RankDeath) -> str:
    """Say in one line when and how a rank died that is dead."""
    why = death.reason.partition("\n")[0]
    if why.startswith("is being"):
        return f"rank {death.rank} {why}, since {_at(death.at)}"
    restart = f"`%distributed restart {death.rank}` replaces it"
    return f"rank {death.rank} died at {_at(death.at)} ({why}); {restart}"


def say_returned(its: RankReturn) -> str:
    """Say in one line when and how a rank died that was replaced since."""
    if its.reason.startswith("is being"):
        return f"rank {its.rank} was replaced at {_at(its.replaced_at)}: it is new"
    died = f"died at {_at(its.died_at)} ({its.reason.partition(chr(10))[0]})"
    return f"rank {its.rank} {died} and was replaced at {_at(its.replaced_at)}: it is new"
