"""One log of typed lines for a cell: when to ask for the next, and whom an answer is for.

Pure: ranks' needs, a person's lines and the clock in; questions and entries out. It knows no
front end. The rule of the log is in `phalanx.rank._log`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx.protocol import LineNeed, TypedLine

from ._ranks import name_ranks, parse_ranks

__all__ = ["Question", "Questions", "Waiting", "WrongAddress"]

# Ranks that ask the same thing come together within this time (that of equal lines, `_output`).
# It is waited only where some rank runs on; a person does not feel it, and answers one prompt.
GRACE_S = 0.1
ADDRESSED = re.compile(r"@(\d[\d,-]*)(?:\s(.*))?", re.DOTALL)


class WrongAddress(ValueError):
    """A line was addressed to a rank that does not wait for one; the text says who does."""


@dataclass(frozen=True)
class Waiting:
    """Ranks that wait at another prompt; ``hears`` says that the answer is for them as well."""

    ranks: tuple[int, ...]
    prompt: str
    hears: bool


@dataclass(frozen=True)
class Question:
    """What a person is asked, for the ranks that the answer is for, and who waits elsewhere."""

    ranks: tuple[int, ...]
    prompt: str
    password: bool = False
    is_command: bool = False
    others: tuple[Waiting, ...] = ()


class Questions:
    """Collects the needs of ranks and turns them into one question at a time.

    A need is kept from the moment a rank tells it until an entry that the rank takes for it is in
    the log (the rank may not know yet), so ``waiting`` is who would take a line typed now.
    """

    def __init__(self, ranks: Iterable[int], typed: Iterable[TypedLine] = ()) -> None:
        self._ranks = frozenset(ranks)
        self._log = list(typed)
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command
        self._since_s: float | None = None  # first need after the last answer

    @property
    def n_typed(self) -> int:
        """Length of the log: the index of the next entry."""
        return len(self._log)

    def need(self, rank: int, need: LineNeed, now_s: float) -> None:
        """Note that a rank waits, unless its line was typed meanwhile and is on its way."""
        if any(entry.is_for(rank, need.is_command) for entry in self._log[need.index :]):
            return
        if not self._needs or self._since_s is None:
            self._since_s = now_s
        self._needs[rank, need.is_command] = need

    def typed_since(self, index: int) -> list[tuple[int, TypedLine]]:
        """Return the entries of the log from this one on."""
        return list(enumerate(self._log))[index:]

    def forget(self, rank: int, *, commands: bool = True) -> None:
        """Drop the needs of a rank that is done or gone; only those of data without ``commands``."""
        self._needs.pop((rank, False), None)
        if commands:
            self._needs.pop((rank, True), None)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait for a line."""
        return tuple(sorted({rank for rank, _ in self._needs}))

    def due(self, running: Collection[int], now_s: float) -> Question | None:
        """Return the question to ask now: all that run wait for it, or the grace is over.

        Where ranks wait at different prompts, those come first that the lowest rank waits with.
        """
        if not self._needs:
            return None
        if self._since_s is None:
            self._since_s = now_s
        if set(running) - set(self.waiting) and now_s - self._since_s < GRACE_S:
            return None
        first, *rest = (self._needs[key] for key in sorted(self._needs))
        # One secret among the prompts and nothing is shown.
        password = any(n.password for n in (first, *rest) if n.is_command == first.is_command)
        others = dict.fromkeys((n.prompt, n.is_command) for n in rest)
        others.pop((first.prompt, first.is_command), None)
        return Question(
            self.ranks_at(first.prompt, first.is_command),
            first.prompt,
            password,
            first.is_command,
            tuple(
                Waiting(self._with_prompt(prompt, kind), prompt, not (kind or first.is_command))
                for prompt, kind in others
            ),
        )

    def _with_prompt(self, prompt: str, is_command: bool) -> tuple[int, ...]:
        return tuple(
            sorted(
                rank
                for (rank, kind), need in self._needs.items()
                if kind == is_command and need.prompt == prompt
            )
        )

    def ranks_at(self, prompt: str, is_command: bool) -> tuple[int, ...]:
        """Ranks that an answer at this prompt is for, of those that wait now.

        A command is for those at the same prompt, data for all that read data.
        """
        if is_command:
            return self._with_prompt(prompt, is_command)
        return tuple(sorted(rank for rank, kind in self._needs if not kind))

    def answer(self, question: Question, line: str | None) -> list[tuple[int, TypedLine]]:
        """Put what was typed at a question into the log; return the new entries with their index.

        ``@2 …`` and ``@0-1 …`` are for these ranks alone, at whatever prompt they wait;
        ``@@2 …`` is the line ``@2 …``. A secret is taken as it is.

        Raises
        ------
        WrongAddress
            It names a rank that is not in the cell or does not wait; nothing was added.
        """
        if line is not None and not question.password:
            match = ADDRESSED.fullmatch(line)
            if match:
                return self._append(self._addressed(match[1], match[2] or ""))
            if line.startswith("@@") and ADDRESSED.fullmatch(line[1:]):
                line = line[1:]
        if question.is_command:
            ranks = self.ranks_at(question.prompt, is_command=True)
            return self._append([TypedLine(line, ranks, is_command=True)])
        return self._append([TypedLine(line)])

    def _addressed(self, ranks_text: str, line: str) -> list[TypedLine]:
        who = f"{name_ranks(self.waiting)} {'do' if len(self.waiting) > 1 else 'does'}"
        try:
            ranks = parse_ranks(ranks_text, max(self._ranks) + 1)
        except ValueError as error:
            msg = f"@{ranks_text}: {error}"
            raise WrongAddress(msg) from None
        deaf = set(ranks) - set(self.waiting)
        if deaf:
            verb = "do" if len(deaf) > 1 else "does"
            msg = f"@{ranks_text}: {name_ranks(deaf)} {verb} not wait for a line; {who}"
            raise WrongAddress(msg)
        # A rank with two needs (a thread of it reads, too) gets it at its debugger.
        commanded = tuple(rank for rank in ranks if (rank, True) in self._needs)
        reading = tuple(rank for rank in ranks if rank not in commanded)
        return [
            TypedLine(line, group, is_command=kind)
            for group, kind in ((commanded, True), (reading, False))
            if group
        ]

    def _append(self, entries: list[TypedLine]) -> list[tuple[int, TypedLine]]:
        self._since_s = None
        added = []
        for entry in entries:
            added.append((len(self._log), entry))
            self._log.append(entry)
            for rank, kind in list(self._needs):
                if entry.is_for(rank, kind):
                    del self._needs[rank, kind]
        return added
