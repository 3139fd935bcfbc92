"""The log of typed lines as one rank sees it: which entry a read takes. The rule stands here.

Pure: entries and reads in, lines out. It knows no threads, no clock, no front end.

The rule
--------
1. A cell has one log. The workspace appends each typed line once, as entry 0, 1, 2 …, and tells
   every rank; so all ranks have the same log, each up to some entry.
2. An entry says what it is and whom it is for. *Data* was typed where a program reads (`input`,
   `getpass`, ``sys.stdin``); a *command* was typed at a prompt of an interpreter (pdb,
   `code.interact`). ``@2 …`` addresses rank 2 alone. Without an address, data is for every rank,
   also one that reads later; a command is for the ranks that wait at that very prompt.
3. A rank reads data and commands apart, with a place of its own for each. A read takes the first
   entry at or after the place that is of its kind and for this rank, and the place moves behind
   it; where there is none yet, the read waits and asks.

What follows. The k-th read of data on a rank returns the k-th line of data for it, whenever it
comes: a slow rank hears what the fast ones were told. A command is only ever for ranks that wait
for one when it is typed, so a rank that comes to its breakpoint later finds no old command to
replay, and waits for its own. What pdb is told never answers an `input`, nor the reverse.
The end of input ends all data of the ranks it is for; at a debugger it is one command (it quits).
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.protocol import TypedLine

__all__ = ["LogOfRank", "Missing"]


@dataclass(frozen=True)
class Missing:
    """Nothing for this read yet; ``index`` is the first entry that could be."""

    index: int


class LogOfRank:
    """One rank's copy of a cell's log and its two places in it.

    Entries may come in any order and twice; a read never passes one that has not come.

    Examples
    --------
    >>> log = LogOfRank(1)
    >>> log.read(is_command=False)
    Missing(index=0)
    >>> log.feed(0, TypedLine("n", ranks=(0,), is_command=True))
    >>> log.feed(1, TypedLine("ann"))
    >>> log.read(is_command=False), log.read(is_command=True)
    ('ann', Missing(index=2))
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._entries: dict[int, TypedLine] = {}
        self._places = {False: 0, True: 0}  # by is_command

    def feed(self, index: int, entry: TypedLine) -> None:
        """Take entry ``index`` of the log; a second time changes nothing."""
        self._entries.setdefault(index, entry)

    @property
    def entries(self) -> list[tuple[int, TypedLine]]:
        """The entries that have come, with their index, in order."""
        return sorted(self._entries.items(), key=lambda found: found[0])

    def read(self, *, is_command: bool) -> str | Missing:
        """Take the next line of this kind for this rank.

        Raises
        ------
        EOFError
            It is the end of input: for data now and always, for a command this once.
        """
        place = self._places[is_command]
        while (entry := self._entries.get(place)) is not None:
            if entry.is_for(self._rank, is_command):
                self._places[is_command] = place + (entry.line is not None or is_command)
                if entry.line is None:
                    raise EOFError
                return entry.line
            place += 1
        self._places[is_command] = place
        return Missing(place)
