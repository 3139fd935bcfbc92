"""Complete names and inspect objects on a rank.

The front end handles magics and their options.
"""

from __future__ import annotations

import itertools
import queue
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from phalanx.errors import DistributedError
from phalanx.protocol import Complete, Completed, Inspect, Inspected, name_ranks

# A person who types does not wait longer for a list (Nielsen 1993: a delay of 1 s breaks a train of
# thought), and the notebook's kernel is blocked meanwhile. For a description a person waits longer,
# because the person asked for it.
COMPLETE_S = 0.5
INSPECT_S = 1.0

HelpAnswer = Completed | Inspected


class NoHelp(DistributedError):
    """No rank answered in time; the text names the ranks asked."""


@dataclass(frozen=True)
class Description:
    """The description of an object, as `obj?` shows it."""

    rank: int
    text: str


class Help:
    """Asks the first living rank of those named.

    Any thread may ask. ``send(rank, order)`` sends the question to a rank, which answers while its
    cell runs. The asking and the socket thread share the pending questions (single dict operations,
    which are atomic). A late answer is dropped.
    """

    def __init__(
        self, size: int, lost: Collection[int], send: Callable[[int, Complete | Inspect], None]
    ) -> None:
        self._size = size
        self._send = send
        self._lost = lost  # the dead ranks, as they are now
        # From a random number on: an answer to another client's question is dropped, too.
        self._ids = itertools.count(secrets.randbits(48))
        self._pending: dict[int, tuple[int, queue.SimpleQueue[HelpAnswer | None]]] = {}

    def complete(self, code: str, cursor: int, *, ranks: Iterable[int] | None = None) -> Completed:
        """Return a rank's completions at the cursor.

        Parameters
        ----------
        code : str
            The text of a cell.
        cursor : int
            Position in ``code``, in characters.
        ranks : iterable of int, optional
            The ranks to use: the first of them that lives is asked. By default all.

        Raises
        ------
        NoHelp
            None of the ranks lives, or there was no answer within half a second.
        """
        _, found = self._ask(lambda id_: Complete(id_, code, cursor), ranks, COMPLETE_S)
        assert isinstance(found, Completed)
        return found

    def inspect(
        self, code: str, cursor: int, *, detail: int = 0, ranks: Iterable[int] | None = None
    ) -> Description | None:
        """Describe the object under the cursor; None if there is none.

        Parameters
        ----------
        code : str
            The text of a cell.
        cursor : int
            Position in ``code``, in characters.
        detail : {0, 1}
            1: with the source, as `obj??`.
        ranks : iterable of int, optional
            The ranks to use: the first of them that lives is asked. By default all.

        Raises
        ------
        NoHelp
            None of the ranks lives, or there was no answer within a second.
        """
        rank, found = self._ask(lambda id_: Inspect(id_, code, cursor, detail), ranks, INSPECT_S)
        assert isinstance(found, Inspected)
        return None if found.text is None else Description(rank, found.text)

    def _ask(
        self,
        make: Callable[[int], Complete | Inspect],
        ranks: Iterable[int] | None,
        timeout_s: float,
    ) -> tuple[int, HelpAnswer]:
        wanted = sorted(range(self._size) if ranks is None else set(ranks))
        deadline_s = time.monotonic() + timeout_s
        asked: list[int] = []
        # The death of the asked rank is known at once, so there is time left for the next rank.
        for rank in (rank for rank in wanted if rank not in self._lost):
            if time.monotonic() > deadline_s:
                break
            asked.append(rank)
            answer = self._ask_rank(rank, make(next(self._ids)), deadline_s)
            if answer is not None:
                return rank, answer
        dead = f"{name_ranks(wanted)} cannot answer: no such rank is alive"
        raise NoHelp(f"{name_ranks(asked)} did not answer in {timeout_s} s" if asked else dead)

    def _ask_rank(
        self, rank: int, order: Complete | Inspect, deadline_s: float
    ) -> HelpAnswer | None:
        """Return the final answer, or the last draft at the timeout."""
        answers: queue.SimpleQueue[HelpAnswer | None] = queue.SimpleQueue()
        self._pending[order.id] = rank, answers
        best: HelpAnswer | None = None
        try:
            self._send(rank, order)
            while (left_s := deadline_s - time.monotonic()) > 0:
                answer = answers.get(timeout=left_s)
                if answer is None:
                    break
                best = answer
                if not (isinstance(answer, Completed) and answer.is_draft):
                    break
        except queue.Empty:
            pass
        finally:
            del self._pending[order.id]
        return best

    def on_answer(self, answer: HelpAnswer) -> None:
        """Take a rank's answer; one that nobody waits for is dropped."""
        found = self._pending.get(answer.id)
        if found is not None:
            found[1].put(answer)

    def on_lost(self, rank: int) -> None:
        """Wait no longer for a rank that has died."""
        for where, answers in [*self._pending.values()]:
            if where == rank:
                answers.put(None)
