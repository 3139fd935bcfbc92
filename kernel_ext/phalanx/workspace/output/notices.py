"""Write one-line notices about ranks and parse users' sets of ranks."""

from __future__ import annotations

import operator
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from phalanx.protocol import RankLost, Replaced, name_ranks

Ranks = int | slice | Iterable[int]  # as a caller names them


def chosen_ranks(ranks: Any, size: int) -> tuple[int, ...] | None:
    """Check one rank, several ranks or a slice; None (all) stays None.

    Raises
    ------
    ValueError
        A rank does not exist, or no rank is named.
    TypeError
        A rank is not a whole number.

    Examples
    --------
    >>> chosen_ranks(2, 4), chosen_ranks([3, 0], 4), chosen_ranks(slice(None, None, 2), 4)
    ((2,), (0, 3), (0, 2))
    """
    if ranks is None:
        return None
    if isinstance(ranks, slice):
        ranks = _sliced(ranks, size)
    several = ranks if isinstance(ranks, Iterable) and not isinstance(ranks, str) else (ranks,)
    try:
        chosen = tuple(sorted({operator.index(rank) for rank in several}))  # accepts numpy integers
    except TypeError:
        msg = f"ranks are a number or several, like 2 or [0, 2]; {ranks!r} is not"
        raise TypeError(msg) from None
    for rank in chosen:
        if not 0 <= rank < size:
            msg = f"there is no rank {rank}: the ranks are 0 to {size - 1}"
            raise ValueError(msg)
    if not chosen:
        msg = "no ranks to run on"
        raise ValueError(msg)
    return chosen


def _sliced(ranks: slice, size: int) -> range:
    parts = (ranks.start, ranks.stop, *(() if ranks.step is None else (ranks.step,)))
    text = ":".join("" if part is None else str(part) for part in parts)
    try:
        taken = range(size)[ranks]
    except TypeError:
        msg = f"a slice of ranks has whole numbers, like 1:3 or ::2; {text!r} has not"
        raise TypeError(msg) from None
    except ValueError:
        msg = f"the step of the ranks {text!r} is 0; ::2 takes every second rank"
        raise ValueError(msg) from None
    if not taken:
        msg = f"there are no ranks {text!r}: the ranks are 0 to {size - 1}"
        raise ValueError(msg)
    return taken


def is_one_rank(ranks: Any) -> bool:
    """Return whether a caller named one rank by its number.

    False for several ranks, a slice, or None (all ranks).

    Examples
    --------
    >>> is_one_rank(2), is_one_rank([2]), is_one_rank(slice(2, 3)), is_one_rank(None)
    (True, False, False, False)
    """
    return not (ranks is None or isinstance(ranks, (slice, Iterable)))


def chosen_rank(rank: Any, size: int) -> int:
    """Check one rank; raise the same errors as `chosen_ranks`."""
    if not is_one_rank(rank):
        msg = f"a rank is a number, like 2; {rank!r} is not"
        raise TypeError(msg)
    (chosen,) = chosen_ranks(rank, size) or ()
    return chosen


def grouped(texts: Mapping[int, str]) -> list[tuple[tuple[int, ...], str]]:
    """Group ranks by equal texts, ordered by each group's first rank.

    Examples
    --------
    >>> grouped({0: "a", 1: "b", 2: "a"})
    [((0, 2), 'a'), ((1,), 'b')]
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        ranks.setdefault(text, []).append(rank)
    return [(tuple(of), text) for text, of in ranks.items()]


def parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Parse ranks like ``0,2-3`` or ``::2``; return them sorted, each once.

    A slice has Python's meaning and selects from all ranks.

    Raises
    ------
    ValueError
        The text is not a list of ranks, or names a rank outside ``0 .. size - 1``.

    Examples
    --------
    >>> parse_ranks("0,2-3", 4), parse_ranks("::2", 4), parse_ranks("0,-2:", 4)
    ((0, 2, 3), (0, 2), (0, 2, 3))
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            if ":" in part:
                ends = [int(word) if word.strip() else None for word in part.split(":")]
                named: range | slice = slice(*ends)
            else:
                named = range(int(first), int(last if dash else first) + 1)
        except (ValueError, TypeError):  # not numbers, or too many of them
            msg = f"ranks are written like 0,2-3 or ::2; {text!r} is not"
            raise ValueError(msg) from None
        if isinstance(named, slice):
            ranks.update(_sliced(named, size))
            continue
        if not named:
            msg = f"the ranks {part.strip()!r} run backwards; write {last.strip()}-{first.strip()}"
            raise ValueError(msg)
        chosen_ranks((named[0], named[-1]), size)
        ranks.update(named)
    return tuple(sorted(ranks))


def _was(reason: str) -> str:
    """Turn a reason into a predicate: put "was" before "killed by ..."."""
    return f"was {reason}" if reason.startswith("killed") else reason


def say_lost(rank: int, reason: str, *, will_return: bool) -> str:
    """Describe a dead rank in one line; say how to replace it.

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
    """Say in one line that a cell runs without dead ranks.

    The line also says how to replace them.

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


def say_joined(ranks: Collection[int]) -> str:
    """Say that a requested restart was already in progress.

    Examples
    --------
    >>> say_joined((1, 2))
    'ranks 1-2 were being restarted already; that was waited for'
    """
    were = "was" if len(ranks) == 1 else "were"
    return f"{name_ranks(sorted(ranks))} {were} being restarted already; that was waited for"


def say_unasked(rank: int, reason: str) -> str:
    """Say in one line that a rank was replaced automatically.

    Examples
    --------
    >>> say_unasked(2, "exited with status 1")
    'rank 2 is new, without the variables of the one before, which exited with status 1'
    """
    return f"rank {rank} is new, without the variables of the one before, which {_was(reason)}"


def say_copied(source: int, ranks: Collection[int], copied: int, problems: dict[str, str]) -> str:
    """Say in one line which names were copied and which were not.

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
    """Say in one line which ranks are new and which are old.

    Examples
    --------
    >>> say_replaced((2,), 4)
    'rank 2 is new; ranks 0-1,3 have all they had'
    """
    text = f"{name_ranks(sorted(ranks))} {'is' if len(ranks) == 1 else 'are'} new"
    others = sorted(set(range(size)) - set(ranks))
    have = "has all it had" if len(others) == 1 else "have all they had"
    return f"{text}; {name_ranks(others)} {have}" if others else text


def ranks_of(name: str, size: int) -> str:
    """Name all ranks of a workspace.

    Examples
    --------
    >>> ranks_of("ours", 4), ranks_of("mine", 1)
    ("the 4 ranks of 'ours'", "the rank of 'mine'")
    """
    return f"the {size} ranks of {name!r}" if size > 1 else f"the rank of {name!r}"


# -- events while no client was attached -------------------------------------------------------


def _at(at: float) -> str:
    """Format a time as time of day, with the date unless today."""
    is_today = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", time.localtime(at))


def say_died(death: RankLost) -> str:
    """Say in one line when and how a dead rank died."""
    why = death.reason.partition("\n")[0]
    if why.startswith("is being"):
        return f"rank {death.rank} {why}, since {_at(death.at)}"
    restart = f"`%distributed restart {death.rank}` replaces it"
    return f"rank {death.rank} died at {_at(death.at)} ({why}); {restart}"


def say_returned(its: Replaced) -> str:
    """Say in one line when a replaced rank died, and of what."""
    if its.reason.startswith("is being"):
        return f"rank {its.rank} was replaced at {_at(its.replaced_at)}: it is new"
    died = f"died at {_at(its.died_at)} ({its.reason.partition(chr(10))[0]})"
    return f"rank {its.rank} {died} and was replaced at {_at(its.replaced_at)}: it is new"
