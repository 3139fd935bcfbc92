"""What a rank's kernel sends, noted on its way out, so that who comes later can catch up.

It knows Jupyter's messages; the file they are noted in is the rank room's.
"""

from __future__ import annotations

import threading
from typing import Any

from phalanx.rank import OutputRecord

__all__ = ["note_outgoing"]

Message = dict[str, Any]


def note_outgoing(session: Any, record: OutputRecord) -> None:
    """Have a session note what it shows in ``record``, before it is sent.

    Each such message says in its metadata (``{"phalanx": {"end": ...}}``) where it ends in the
    record: a client that has read that far has seen it. The idle status that follows a cell's
    reply has what the reply says (``{"phalanx": {"reply": ..., "shown": ...}}``): a reply goes to
    the client that asked, which may be gone, and what is published to whoever listens. And it has
    how many such messages the cell has shown: some may be lost with a connection that breaks.
    """
    send = session.send
    last_reply: list[tuple[Any, Message]] = []  # one at most: its parent's id, and what it says
    shown = _Counts()

    def send_noted(
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,
        header: Any = None,
        metadata: Any = None,
    ) -> Any:
        is_made = not isinstance(msg_or_type, str)
        kind = msg_or_type["header"]["msg_type"] if is_made else msg_or_type
        said = msg_or_type["content"] if is_made else content
        ours: Message = {}
        if kind == "execute_reply":
            last_reply[:] = [(_parent_id(parent), _outcome(said))]
        elif kind == "status":
            if last_reply and said["execution_state"] == "idle":
                asked, outcome = last_reply[0]
                if asked is not None and asked == _parent_id(parent):
                    ours = {"reply": outcome}
                    if n_shown := shown.of(asked):
                        ours["shown"] = n_shown
                    last_reply.clear()
        elif (text := _text_of(kind, said)) and (end := record.append(text)) is not None:
            ours = {"end": end}
        if ours and is_made:
            msg_or_type["metadata"] = {**msg_or_type["metadata"], "phalanx": ours}
        elif ours:
            metadata = {**(metadata or {}), "phalanx": ours}
        sent = send(stream, msg_or_type, content, parent, ident, buffers, track, header, metadata)
        if "end" in ours:  # only now: an idle status that counts it must not overtake it
            shown.add(_parent_id(msg_or_type.get("parent_header") if is_made else parent))
        return sent

    session.send = send_noted


class _Counts:
    """How many messages each of the last cells has shown; its threads may outlive a cell."""

    KEPT = 8

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Any, int] = {}

    def add(self, cell: Any) -> None:
        with self._lock:
            self._counts[cell] = self._counts.get(cell, 0) + 1
            if len(self._counts) > self.KEPT:
                del self._counts[next(iter(self._counts))]

    def of(self, cell: Any) -> int:
        with self._lock:
            return self._counts.get(cell, 0)


def _parent_id(parent: Message | None) -> Any:
    if not parent:
        return None
    return parent.get("header", parent).get("msg_id")


def _outcome(reply: Message) -> Message:
    return {key: reply[key] for key in ("status", "ename", "evalue", "traceback") if key in reply}


def _text_of(kind: str, content: Message) -> str:
    """What a message shows, as text: a figure is named, not drawn."""
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join(content["traceback"]) + "\n"
    if kind not in {"display_data", "execute_result"}:
        return ""
    rich = [name for name in content["data"] if name != "text/plain" and "vnd.phalanx" not in name]
    text = str(content["data"].get("text/plain", ""))
    if kind == "execute_result":
        return f"Out: {text}\n"
    if rich:
        return f"<{rich[0]}: {text}>\n" if text else f"<{rich[0]}>\n"
    return f"{text}\n" if text else ""
