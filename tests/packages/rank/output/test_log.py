"""The rule of the log: ranks and the workspace, at any time, against a model of one sentence."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.runs.tiers import examples

from phalanx.protocol import LineNeed, TypedLine
from phalanx.rank.input import RankInputLog
from phalanx.workspace.cells.prompting import InputRequests, WrongAddress

N_RANKS = 2
RANKS = st.integers(0, N_RANKS - 1)


class Ranks(RuleBasedStateMachine):
    """Ranks read data and commands, a person types, and messages come late.

    The model: what a rank has read of a kind is, line by line, what was typed of that kind for
    it; and every command was read by exactly the ranks that waited for it when it was typed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.questions = InputRequests(range(N_RANKS))
        self.logs = [RankInputLog(rank) for rank in range(N_RANKS)]
        self.typed: list[TypedLine] = []
        self.on_the_way: list[list[TypedLine]] = [[] for _ in range(N_RANKS)]
        self.needs_on_the_way: list[tuple[int, LineNeed]] = []
        self.reading: dict[tuple[int, bool], str] = {}  # who waits, at which prompt
        self.has_read: Counter[tuple[int, bool]] = Counter()
        self.n = 0

    def try_to_read(self, rank: int, is_command: bool) -> None:
        """Let a reader look again; what it gets must be the next line for it."""
        found = self.logs[rank].read(is_command=is_command)
        if found is None:
            if (rank, is_command) not in self.reading:
                prompt = f"{'ipdb' if is_command else 'who'}{rank if self.n % 3 == 2 else ''}> "
                self.reading[rank, is_command] = prompt
                need = LineNeed("cell", len(self.logs[rank].entries), prompt, False, is_command)
                self.needs_on_the_way.append((rank, need))
            return
        self.reading.pop((rank, is_command), None)
        mine = [entry.line for entry in self.typed if entry.is_for(rank, is_command)]
        assert found == mine[self.has_read[rank, is_command]]
        self.has_read[rank, is_command] += 1

    @rule(rank=RANKS, is_command=st.booleans(), is_slow=st.booleans())
    def read(self, rank, is_command, is_slow):
        if (rank, is_command) not in self.reading:
            self.try_to_read(rank, is_command)
        if self.needs_on_the_way and not is_slow:
            self.questions.need(*self.needs_on_the_way.pop(), now_s=0)

    @precondition(lambda self: self.needs_on_the_way)
    @rule(data=st.data())
    def a_need_arrives(self, data):
        at = data.draw(st.integers(0, len(self.needs_on_the_way) - 1))
        rank, need = self.needs_on_the_way.pop(at)
        self.questions.need(rank, need, now_s=0)

    @precondition(lambda self: self.questions.waiting)
    @rule(address=st.none() | st.sets(RANKS, min_size=1))
    def a_line_is_typed(self, address):
        question = self.questions.due((), 9)
        waiting = set(self.questions.waiting)
        self.n += 1
        line = f"line {self.n}"
        text = line if address is None else f"@{','.join(map(str, address))} {line}"
        try:
            entries = self.questions.answer(question, text)
        except WrongAddress:
            assert address - waiting
            return
        for entry in entries:
            assert entry.line == line
            self.typed.append(entry)
            if entry.is_command:  # only to who waits: nobody can find it later
                assert all((rank, True) in self.reading for rank in entry.ranks)
            for rank in range(N_RANKS):
                self.on_the_way[rank].append(entry)
        taken = {rank for entry in entries for rank in entry.ranks or ()}
        assert address is None or taken == address

    @rule(rank=RANKS)
    def an_entry_arrives(self, rank):
        if self.on_the_way[rank]:
            self.logs[rank].entries.append(self.on_the_way[rank].pop(0))
            for is_command in (False, True):
                if (rank, is_command) in self.reading:
                    self.try_to_read(rank, is_command)

    @invariant()
    def nobody_is_forgotten(self):
        """Who waits is known to the workspace, or its need or its line is on the way."""
        for rank, is_command in self.reading:
            mine = [entry for entry in self.typed if entry.is_for(rank, is_command)]
            assert (
                (rank, is_command) in self.questions._needs
                or any(r == rank and n.is_command == is_command for r, n in self.needs_on_the_way)
                or len(mine) > self.has_read[rank, is_command]
            )

    @invariant()
    def nobody_is_thought_to_wait_who_does_not(self):
        for rank, is_command in self.questions._needs:
            mine = [entry for entry in self.typed if entry.is_for(rank, is_command)]
            assert (rank, is_command) in self.reading
            assert len(mine) == self.has_read[rank, is_command]

    def teardown(self):
        """When all has arrived, nobody has a line in the log that it did not get."""
        for rank in range(N_RANKS):
            self.logs[rank].entries.extend(self.on_the_way[rank])
            for is_command in (False, True):
                if (rank, is_command) in self.reading:
                    self.try_to_read(rank, is_command)
                mine = [e for e in self.typed if e.is_for(rank, is_command)]
                if is_command or (rank, is_command) in self.reading:
                    assert self.has_read[rank, is_command] == len(mine)


TestRanks = Ranks.TestCase
TestRanks.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
