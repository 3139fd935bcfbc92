"""Ask one prompt at a time, and send its answer to ranks.

`InputRequests` makes one question of the ranks' requests; `phalanx.rank.input` explains the log of
typed lines. `PromptController` runs on the thread of the cell's loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from phalanx.protocol import LineNeed, RefuseInput, TypedLine, TypeLine, format_ranks, name_ranks

from ..output.front_end import CannotAsk, OpenPrompt, OtherPrompt, Question, View
from ..output.notices import parse_ranks

# Prompts of ranks within this time become one question (as `WINDOW_S` in `printer`). The wait
# happens only while some rank still runs. It is too short for a person to notice.
GRACE_S = 0.1
ADDRESSED = re.compile(r"@(\d[\d,-]*)(?:\s(.*))?", re.DOTALL)


class WrongAddress(ValueError):
    """A line was addressed to a rank that waits for none.

    The text names the ranks that do.
    """


class InputRequests:
    """Turns input requests of ranks into one question at a time.

    A request is dropped as soon as the log has its answer, whether or not the rank has received it.
    So ``waiting`` has exactly the ranks that would take a line typed now.
    """

    def __init__(self, ranks: Iterable[int], typed: Iterable[TypedLine] = ()) -> None:
        self._ranks = frozenset(ranks)
        self._log = list(typed)
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command
        self._since_s: float | None = None  # time of the first request after the last answer

    def need(self, rank: int, need: LineNeed, now_s: float) -> None:
        """Add a rank's input request, unless the log already answers it."""
        if any(entry.is_for(rank, need.is_command) for entry in self._log[need.index :]):
            return
        if not self._needs or self._since_s is None:
            self._since_s = now_s
        self._needs[rank, need.is_command] = need

    def forget(self, rank: int, *, commands: bool = True) -> None:
        """Drop the requests of a rank that ended its part or died.

        Without ``commands``, keep a request for a debugger command.
        """
        self._needs.pop((rank, False), None)
        if commands:
            self._needs.pop((rank, True), None)

    def forget_all(self) -> None:
        self._needs.clear()

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the ranks that wait for a line."""
        return tuple(sorted({rank for rank, _ in self._needs}))

    def due(self, running: Collection[int], now_s: float) -> Question | None:
        """Return the question to ask now, or None.

        A question is due when all running ranks wait for input, or after `GRACE_S`. If ranks wait
        at different prompts, the prompt of the lowest rank comes first.
        """
        if not self._needs:
            return None
        if self._since_s is None:
            self._since_s = now_s
        if set(running) - set(self.waiting) and now_s - self._since_s < GRACE_S:
            return None
        first, *rest = (self._needs[key] for key in sorted(self._needs))
        # If one of the prompts asks for a password, hide the typed text for all.
        password = any(n.password for n in (first, *rest) if n.is_command == first.is_command)
        others = dict.fromkeys((n.prompt, n.is_command) for n in rest)
        others.pop((first.prompt, first.is_command), None)
        return Question(
            self.ranks_at(first.prompt, first.is_command),
            first.prompt,
            password,
            first.is_command,
            tuple(
                OtherPrompt(self._with_prompt(prompt, kind), prompt, not (kind or first.is_command))
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
        """Return the waiting ranks that an answer at this prompt goes to.

        A debugger command goes to the ranks at the same prompt; data go to all ranks that read
        data.
        """
        if is_command:
            return self._with_prompt(prompt, is_command)
        return tuple(sorted(rank for rank, kind in self._needs if not kind))

    def answer(self, question: Question, line: str | None) -> list[TypedLine]:
        """Append the typed answer to the log; return the new entries.

        ``@2 …`` and ``@0-1 …`` go to these ranks only, at any prompt. ``@@2 …`` is the literal line
        ``@2 …``. A password is never parsed.

        Raises
        ------
        WrongAddress
            The line names a rank that is not in the cell or does not wait. Nothing was added.
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
        # If a rank has two requests (a thread reads as well), its debugger gets the line.
        commanded = tuple(rank for rank in ranks if (rank, True) in self._needs)
        reading = tuple(rank for rank in ranks if rank not in commanded)
        return [
            TypedLine(line, group, is_command=kind)
            for group, kind in ((commanded, True), (reading, False))
            if group
        ]

    def _append(self, entries: list[TypedLine]) -> list[TypedLine]:
        self._since_s = None
        self._log += entries
        for entry in entries:
            for rank, kind in list(self._needs):
                if entry.is_for(rank, kind):
                    del self._needs[rank, kind]
        return entries


class PromptController:
    """The pending questions of one cell, and the open prompt if any.

    ``before`` is called before a prompt or notice is shown, so that earlier output of the ranks
    stands above it. ``typed`` is the input log so far of a cell that another client began.
    """

    def __init__(
        self,
        cell: str,
        ranks: Iterable[int],
        view: View,
        send: Callable[[TypeLine | RefuseInput], None],
        before: Callable[[], None],
        typed: Iterable[TypedLine] = (),
    ) -> None:
        self._cell = cell
        self._view = view
        self._send = send
        self._before = before
        self._questions = InputRequests(ranks, typed)
        self._prompt: OpenPrompt | None = None
        self._question: Question | None = None
        self._known: set[int] = set()  # ranks that a person knows to wait at the open prompt
        self._said = ""  # the last notice about ranks at other prompts
        self._has_stopped = False

    @property
    def waiting(self) -> tuple[int, ...]:
        return self._questions.waiting

    def need(self, rank: int, need: LineNeed, now_s: float) -> None:
        if self._has_stopped:
            self._refuse("the cell was stopped: nobody is asked any more")
            return
        self._questions.need(rank, need, now_s)

    def forget(self, rank: int, *, commands: bool = True) -> None:
        """Drop the requests of a rank; close a prompt of no rank.

        Without ``commands``, keep a request for a debugger command.
        """
        self._questions.forget(rank, commands=commands)
        if self._question is not None and not self._asked():
            self.close()

    def _refuse(self, message: str) -> None:
        self._send(RefuseInput(self._cell, message))

    def stop(self) -> None:
        """Close the prompt and ask no more: the cell was stopped."""
        self._has_stopped = True
        self._questions.forget_all()
        self.close()

    def step(self, running: Iterable[int], now_s: float) -> None:
        """Open a prompt that is due, or poll the open prompt."""
        if self._prompt is None:
            self._open(set(running), now_s)
        if self._prompt is not None:
            self._greet()
            self._poll()

    def close(self) -> None:
        if self._prompt is not None:
            self._prompt.close()
        self._prompt = self._question = None

    def _asked(self) -> tuple[int, ...]:
        """Return the ranks that wait for the answer to the open prompt."""
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
            self._refuse(str(error))
            self._questions.forget_all()
            return
        self._question = question
        self._known = set(question.ranks)

    def _say_others(self, question: Question) -> None:
        """Report once which ranks wait at another prompt."""
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
        """Report ranks that reach a debugger's open prompt.

        The answer will drive these ranks, too.
        """
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
        for entry in entries:
            self._send(TypeLine(self._cell, entry))
        self.close()
