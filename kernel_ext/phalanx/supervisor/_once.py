"""Requests that may come twice: each is run once, and its answer can be had again.

Pure state: it knows the metadata of a workspace's requests; who runs and sends them is the
kernel's. It is touched by the kernel's main thread only.
"""

from __future__ import annotations

from typing import Any

__all__ = ["OnceOnly"]

# A client repeats nothing but the request that it waits for, and a connection keeps the order: a
# copy comes at most behind the handful of requests that were sent meanwhile.
KEPT = 1024

Message = dict[str, Any]
Reply = tuple[Message, Message]  # content, metadata

_LOST: Message = {
    "status": "error",
    "ename": "AnswerLost",
    "evalue": "what was asked was done, but the answer was lost on its way: ask again",
    "traceback": [],
}


class OnceOnly:
    """Tells the first copy of a request from those that follow, and keeps the last reply.

    Of one whose reply is kept no more, or was too large to be, it is known that it was run.

    A connection that breaks takes along what is on its way. So a client that hears nothing sends
    its request again, under the same id (``phalanx.workspace._again``); one that misses the end of a
    cell that has begun asks ``{"phalanx": {"cell": ..., "again": True}}``, which is never run.

    Examples
    --------
    >>> def request(message_id, **said):
    ...     return {"header": {"msg_id": message_id}, "metadata": {"phalanx": {"cell": "a", **said}}}
    >>> once = OnceOnly()
    >>> once.is_new(request("a#0", again=True)), once.is_new(request("a#0"))
    (False, True)
    >>> once.keep(request("a#0"), {"status": "ok"}, {})
    >>> once.is_new(request("a#0")), once.reply_to(request("a#0"))
    (False, ({'status': 'ok'}, {}))
    >>> once.is_new(request("b#0")), once.reply_to(request("b#0", again=True))
    (True, None)
    >>> once.finish(request("b#0"))
    >>> once.reply_to(request("b#0", again=True))[0]["ename"]
    'AnswerLost'
    """

    def __init__(self) -> None:
        self._seen: dict[str, bool] = {}  # in their order; whether it is over
        self._last: tuple[str, Reply] | None = None

    def is_new(self, message: Message) -> bool:
        """Whether to run this request; from now on it is not new any more."""
        said = (message.get("metadata") or {}).get("phalanx") or {}
        if said.get("again"):
            return False
        if not isinstance(said.get("cell"), str):  # no client of ours waits for it
            return True
        message_id = message["header"]["msg_id"]
        if message_id in self._seen:
            return False
        self._seen[message_id] = False
        if len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        return True

    def finish(self, message: Message) -> None:
        """Note that a request was run."""
        message_id = message["header"]["msg_id"]
        if message_id in self._seen:
            self._seen[message_id] = True

    def keep(self, message: Message, content: Message, metadata: Message) -> None:
        """Keep the reply to a request that was run."""
        self._last = message["header"]["msg_id"], (content, metadata)

    def reply_to(self, message: Message) -> Reply | None:
        """Return the reply to a request that was run; None where it was not, or not yet."""
        message_id = message["header"]["msg_id"]
        if self._last is not None and self._last[0] == message_id:
            return self._last[1]
        return (_LOST, {}) if self._seen.get(message_id) else None
