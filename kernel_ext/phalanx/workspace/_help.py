"""Help while typing, from a rank: names that complete, and what an object is.

It knows Jupyter's complete and inspect requests and which ranks are lost; what the text around
them means (magics, options) is the front end's.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.errors import DistributedError

from ._messages import Message
from ._ranks import name_ranks

__all__ = ["Completions", "Description", "Help", "NoHelp"]

# A person who types does not wait longer for a list (Nielsen 1993: after 1 s a train of thought
# breaks), and meanwhile the notebook's kernel answers nothing else. A description was asked for.
COMPLETE_S = 0.5
INSPECT_S = 1.0

JUPYTER_TYPES = "_jupyter_types_experimental"  # ipykernel's name for what kind each match is

Send = Callable[[int, str, Message, Callable[[str], None]], None]


class NoHelp(DistributedError):
    """No rank answered in time; the text says which was asked."""


@dataclass(frozen=True)
class Completions:
    """What may stand at ``start:end`` of the text; ``kinds`` and ``signatures`` by match."""

    matches: tuple[str, ...]
    start: int
    end: int
    kinds: tuple[str, ...]
    signatures: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """What an object is, as `obj?` shows it."""

    rank: int
    text: str


class Help:
    """Asks the first living rank of those that are named; may be used by any thread.

    ``send(rank, kind, content, register)`` sends on the control channel, which a rank serves
    while its cell runs. Pending questions are added and removed by the thread that asks, and read
    by the socket thread (single dict operations, which are atomic); a late answer finds none.
    """

    def __init__(self, size: int, send: Send) -> None:
        self._size = size
        self._send = send
        self._lost: set[int] = set()
        self._pending: dict[str, tuple[int, queue.SimpleQueue[Message | None]]] = {}

    def complete(
        self, code: str, cursor: int, *, ranks: Iterable[int] | None = None
    ) -> Completions:
        """Return what a rank would put at the cursor.

        Parameters
        ----------
        code : str
            The text of a cell.
        cursor : int
            Place in it, in characters.
        ranks : iterable of int, optional
            Whose names count: the first of them that lives is asked; by default of all.

        Raises
        ------
        NoHelp
            None of them lives, or there was no answer within half a second.
        """
        content = {"code": code, "cursor_pos": cursor}
        _, reply = self._ask("complete_request", content, ranks, COMPLETE_S)
        matches = tuple(str(match) for match in reply["matches"])
        known = reply["metadata"].get(JUPYTER_TYPES) or [{}] * len(matches)
        return Completions(
            matches,
            int(reply["cursor_start"]),
            int(reply["cursor_end"]),
            tuple(str(match.get("type") or "") for match in known),
            tuple(str(match.get("signature") or "") for match in known),
        )

    def inspect(
        self, code: str, cursor: int, *, detail: int = 0, ranks: Iterable[int] | None = None
    ) -> Description | None:
        """Describe the object under the cursor as a rank knows it; None if it has none there.

        Parameters
        ----------
        code : str
            The text of a cell.
        cursor : int
            Place in it, in characters.
        detail : {0, 1}
            1: with the source, as `obj??`.
        ranks : iterable of int, optional
            Whose object: the first of them that lives is asked; by default of all.

        Raises
        ------
        NoHelp
            None of them lives, or there was no answer within a second.
        """
        content = {"code": code, "cursor_pos": cursor, "detail_level": detail}
        rank, reply = self._ask("inspect_request", content, ranks, INSPECT_S)
        if not reply["found"]:
            return None
        # Only the text: nothing of a rank becomes HTML that it did not display.
        return Description(rank, str(reply["data"].get("text/plain", "")))

    def _ask(
        self, kind: str, content: Message, ranks: Iterable[int] | None, timeout_s: float
    ) -> tuple[int, Message]:
        wanted = sorted(range(self._size) if ranks is None else set(ranks))
        deadline_s = time.monotonic() + timeout_s
        asked: list[int] = []
        # One that dies while it is asked is known at once, and the next one has time left.
        for rank in (rank for rank in wanted if rank not in self._lost):
            if time.monotonic() > deadline_s:
                break
            asked.append(rank)
            reply = self._ask_rank(rank, kind, content, deadline_s)
            if reply is not None:
                return rank, reply
        dead = f"{name_ranks(wanted)} cannot answer: no such rank is alive"
        raise NoHelp(f"{name_ranks(asked)} did not answer in {timeout_s} s" if asked else dead)

    def _ask_rank(
        self, rank: int, kind: str, content: Message, deadline_s: float
    ) -> Message | None:
        """Return the final answer, or the last draft of it when time is over."""
        answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        ids: list[str] = []

        def register(message_id: str) -> None:
            ids.append(message_id)
            self._pending[message_id] = rank, answers

        best: Message | None = None
        try:
            self._send(rank, kind, content, register)
            while (left_s := deadline_s - time.monotonic()) > 0:
                answer = answers.get(timeout=left_s)
                if answer is None:
                    break
                best = answer
                if not answer.get("metadata", {}).get("is_draft"):
                    break
        except queue.Empty:
            pass
        finally:
            for message_id in ids:
                del self._pending[message_id]
        return best

    def on_reply(self, message: Message) -> None:
        """Take a reply from the control channel; one that nobody waits for is dropped."""
        found = self._pending.get(message["parent_header"]["msg_id"])
        if found is not None and message["content"].get("status") == "ok":
            found[1].put(message["content"])

    def on_replaced(self, rank: int) -> None:
        """Ask this rank again: a new process is there."""
        self._lost.discard(rank)

    def on_lost(self, rank: int) -> None:
        """Ask this rank no more, and wait for it no longer."""
        self._lost.add(rank)
        for where, answers in [*self._pending.values()]:
            if where == rank:
                answers.put(None)
