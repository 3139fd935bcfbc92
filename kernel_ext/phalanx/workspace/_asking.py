"""Asking for a cell: one question at a time, its answer to the ranks, freed when nobody waits.

It runs on the thread of the cell's loop and knows the view and where lines go, not sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from phalanx.protocol import LineNeed, TypedLine

from ._questions import Question, Questions, WrongAddress
from ._ranks import format_ranks, name_ranks
from ._view import CannotAsk, OpenPrompt, View

__all__ = ["Asking", "LineSender"]


class LineSender(Protocol):
    """Where typed lines go."""

    def send_line(self, cell: str, index: int, entry: TypedLine) -> None:
        """Tell all ranks an entry of the log."""

    def refuse_line(self, cell: str, message: str) -> None:
        """Tell all ranks that nobody can be asked."""


class Asking:
    """The questions of one cell and the prompt that a person has in front of them, if any.

    ``before`` is called before anything is shown here: a prompt and a notice stand below what
    ranks said before. ``typed`` is the log so far of a cell that another client began.
    """

    def __init__(
        self,
        cell: str,
        ranks: Iterable[int],
        view: View,
        sender: LineSender,
        before: Callable[[], None],
        typed: Iterable[TypedLine] = (),
    ) -> None:
        self._cell = cell
        self._view = view
        self._sender = sender
        self._before = before
        self._questions = Questions(ranks, typed)
        self._prompt: OpenPrompt | None = None
        self._question: Question | None = None
        self._known: set[int] = set()  # ranks that the open question was said to be for
        self._said = ""  # the last notice about who else waits
        self._has_stopped = False

    @property
    def is_waiting(self) -> bool:
        """Whether a rank waits for a line, so that the loop must look often."""
        return bool(self._questions.waiting)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait for a line."""
        return self._questions.waiting

    def need(self, rank: int, need: LineNeed, now_s: float) -> None:
        """Take a rank's need."""
        if self._has_stopped:
            self._sender.refuse_line(self._cell, "the cell was stopped: nobody is asked any more")
            return
        if need.is_again:  # a second time an entry changes nothing
            for index, entry in self._questions.typed_since(need.index):
                self._sender.send_line(self._cell, index, entry)
        self._questions.need(rank, need, now_s)

    def forget(self, rank: int) -> None:
        """Drop a rank that is done or gone; a question that only it waited for is taken back."""
        self._questions.forget(rank)
        if self._question is not None and not self._asked():
            self.close()

    def withdraw(self, rank: int) -> None:
        """Drop a rank's need of data; it goes on. A debugger of it may wait for a command."""
        self._questions.forget(rank, commands=False)
        if self._question is not None and not self._asked():
            self.close()

    def stop(self) -> None:
        """Ask no more: the cell was stopped."""
        self._has_stopped = True
        for rank in self._questions.waiting:
            self._questions.forget(rank)
        self.close()

    def step(self, running: Iterable[int], now_s: float) -> None:
        """Ask if a question is due, or look whether the open one was answered."""
        if self._prompt is None:
            self._open(set(running), now_s)
        if self._prompt is not None:
            self._greet()
            self._poll()

    def close(self) -> None:
        """Take the open question back, if there is one."""
        if self._prompt is not None:
            self._prompt.close()
        self._prompt = self._question = None

    def _asked(self) -> tuple[int, ...]:
        """Ranks that wait for the answer to the open question."""
        if self._question is None:
            return ()
        return self._questions.ranks_at(self._question.prompt, self._question.is_command)

    def _open(self, running: set[int], now_s: float) -> None:
        question = self._questions.due(running, now_s)
        if question is None:
            return
        self._before()
        self._say_others(question)
        try:
            self._prompt = self._view.ask(question)
        except CannotAsk as error:
            self._sender.refuse_line(self._cell, str(error))
            for rank in self._questions.waiting:
                self._questions.forget(rank)
            return
        self._question = question
        self._known = set(question.ranks)

    def _say_others(self, question: Question) -> None:
        """Say once who waits at another prompt."""
        who = "; ".join(
            f"{name_ranks(other.ranks)} at {other.prompt.strip()!r}"
            + (" (hears the same line)" if other.hears else "")
            for other in question.others
        )
        if who and who != self._said:
            rank = format_ranks(question.others[0].ranks)
            self._view.notice(f"also waiting: {who}; @{rank} … answers there alone")
        self._said = who

    def _greet(self) -> None:
        """Say which ranks came to a debugger's open prompt: an answer drives them as well."""
        if self._question is None or not self._question.is_command:
            return
        joined = set(self._asked()) - self._known
        if joined:
            self._known |= joined
            self._before()
            verb = "wait" if len(joined) > 1 else "waits"
            self._view.notice(f"{name_ranks(joined)} {verb} at this prompt as well")

    def _poll(self) -> None:
        answer = self._prompt.poll(0) if self._prompt is not None else None
        if answer is None or self._question is None:
            return
        try:
            entries = self._questions.answer(self._question, answer[0])
        except WrongAddress as error:
            self._before()
            self._view.notice(str(error))
            entries = []
        for index, entry in entries:
            self._sender.send_line(self._cell, index, entry)
        self.close()
