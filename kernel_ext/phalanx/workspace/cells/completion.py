"""Complete names and inspect objects on a rank.

Uses Jupyter's complete and inspect requests. The front end handles magics and their options.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.errors import DistributedError
from phalanx.protocol import name_ranks

from ..connection.transport import Message

# A person who types does not wait longer for a list (Nielsen 1993: a delay of 1 s breaks a train of
# thought), and the notebook's kernel is blocked meanwhile. For a description a person waits longer,
# because the person asked for it.
COMPLETE_S = 0.5
INSPECT_S = 1.0

JUPYTER_TYPES = "_jupyter_types_experimental"  # ipykernel's key for the kind of each match

Send = Callable[[int, str, Message, Callable[[str], None]], None]


class NoHelp(DistributedError):
    """No rank answered in time; the text names the ranks asked."""


@dataclass(frozen=True)
class Completions:
    """Completions of the text at ``start:end``.

    ``kinds`` and ``signatures`` have one entry per match.
    """

    matches: tuple[str, ...]
    start: int
    end: int
    kinds: tuple[str, ...]
    signatures: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """The description of an object, as `obj?` shows it."""

    rank: int
    text: str


class Help:
    """Asks the first living rank of those named.

    Any thread may ask. ``send(rank, kind, content, register)`` sends on the control channel, which
    a rank serves while its cell runs. The asking and the socket thread share the pending questions
    (single dict operations, which are atomic). A late answer is dropped.
    """

    def __init__(self, size: int, send: Send) -> None:
        self._size = size
        self._send = send
        self._lost: set[int] = set()
        self._pending: dict[str, tuple[int, queue.SimpleQueue[Message | None]]] = {}

    def complete(
        self, code: str, cursor: int, *, ranks: Iterable[int] | None = None
    ) -> Completions:
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
        content = {"code": code, "cursor_pos": cursor, "detail_level": detail}
        rank, reply = self._ask("inspect_request", content, ranks, INSPECT_S)
        if not reply["found"]:
            return None
        # Only the text: a rank's data is shown as HTML only if the rank displayed it as HTML.
        return Description(rank, str(reply["data"].get("text/plain", "")))

    def _ask(
        self, kind: str, content: Message, ranks: Iterable[int] | None, timeout_s: float
    ) -> tuple[int, Message]:
        wanted = sorted(range(self._size) if ranks is None else set(ranks))
        deadline_s = time.monotonic() + timeout_s
        asked: list[int] = []
        # The death of the asked rank is known at once, so there is time left for the next rank.
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
        """Return the final answer, or the last draft at the timeout."""
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
        """Take a reply from the control channel.

        A reply that nobody waits for is dropped.
        """
        found = self._pending.get(message["parent_header"]["msg_id"])
        if found is not None and message["content"].get("status") == "ok":
            found[1].put(message["content"])

    def on_replaced(self, rank: int) -> None:
        """Ask this rank again: it has a new process."""
        self._lost.discard(rank)

    def on_lost(self, rank: int) -> None:
        """Stop asking this rank and waiting for it."""
        self._lost.add(rank)
        for where, answers in [*self._pending.values()]:
            if where == rank:
                answers.put(None)
