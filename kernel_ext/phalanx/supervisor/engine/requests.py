"""Answer completion requests while a cell runs, and run each request once.

`KernelHelp` answers completion and inspection requests. `DuplicateRequestFilter` recognizes a
request that comes again, however often it is sent.
"""

from __future__ import annotations

import warnings
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    ProvisionalCompleterWarning,
    rectify_completions,
)

from phalanx.rank import HelpDesk

TYPES = "_jupyter_types_experimental"  # ipykernel's metadata key for the types of matches

# A client repeats only the request that it waits for, and a connection keeps the order. So a
# duplicate comes after at most a few later requests.
KEPT = 1024

Message = dict[str, Any]
Reply = tuple[Message, Message]  # content, metadata
_LOST: Message = {
    "status": "error",
    "ename": "AnswerLost",
    "evalue": "what was asked was done, but the answer was lost on its way: ask again",
    "traceback": [],
}


class KernelHelp:
    """Answer Jupyter's completion and inspection requests on the control channel.

    Matches from the live namespace take milliseconds and are sent as a draft (``is_draft``). jedi
    is slower (first completion of os.path: 1.6 s on two cores), so it has a `HelpDesk` and completer
    of its own.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._desk, self._desk_of_jedi = HelpDesk(), HelpDesk()
        shell = kernel.shell
        self._with_jedi = shell.Completer if shell.Completer.use_jedi else None
        self._without = _copy_completer(shell)
        self._without.use_jedi = False
        warnings.simplefilter("ignore", ProvisionalCompleterWarning)
        kernel.control_handlers["complete_request"] = self._on_complete
        kernel.control_handlers["inspect_request"] = self._on_inspect

    def _on_complete(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        code, cursor = message["content"]["code"], message["content"]["cursor_pos"]

        def answer(completer: Any) -> None:
            reply = _complete(self._kernel.shell, completer, code, cursor)
            is_draft = self._with_jedi is not None and completer is not self._with_jedi
            reply["metadata"]["is_draft"] = is_draft
            self._reply(stream, "complete_reply", reply, message, ident)

        self._desk.take("complete", lambda: answer(self._without))
        if self._with_jedi is not None:
            self._desk_of_jedi.take("complete", lambda: answer(self._with_jedi))

    def _on_inspect(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        asked = message["content"]

        def answer() -> None:
            reply = self._kernel.do_inspect(
                asked["code"], asked["cursor_pos"], asked["detail_level"]
            )
            self._reply(stream, "inspect_reply", reply, message, ident)

        self._desk.take("inspect", answer)

    def _reply(self, stream: Any, kind: str, content: Any, message: Any, ident: Any) -> None:
        """Send a reply from the control thread, which owns the stream."""
        send = self._kernel.session.send
        loop = self._kernel.control_thread.io_loop
        loop.add_callback(send, stream, kind, content, message, ident)


def _copy_completer(shell: Any) -> Any:
    """Make a second completer that finds the same names as the shell's."""
    names = {"namespace": shell.user_ns, "global_namespace": shell.user_global_ns}
    completer = IPCompleter(shell=shell, parent=shell, **names)
    completer.custom_completers = shell.Completer.custom_completers
    return completer


def _complete(shell: Any, completer: Any, code: str, cursor: int) -> dict[str, Any]:
    """Return Jupyter's reply, in the form that ipykernel makes it."""
    # Copies: the main thread may bind names at the same time.
    completer.namespace = dict(shell.user_ns)
    completer.global_namespace = dict(shell.user_global_ns)
    found = list(rectify_completions(code, completer.completions(code, cursor)))
    start, end = (found[0].start, found[0].end) if found else (cursor, cursor)
    kinds = [
        {
            "start": one.start,
            "end": one.end,
            "text": one.text,
            "type": one.type,
            "signature": one.signature,
        }
        for one in found
    ]
    return {
        "status": "ok",
        "matches": [one.text for one in found],
        "cursor_start": start,
        "cursor_end": end,
        "metadata": {TYPES: kinds},
    }


class DuplicateRequestFilter:
    """Recognize repeated requests, and keep the last reply for them.

    A client without an answer sends its request again under the same id
    (``phalanx.workspace.cells.dispatch``). With ``{"phalanx": {"cell": ..., "again": True}}`` it
    only asks how the cell ended. Older replies and replies to calls are not kept: they are answered
    with ``AnswerLost``.

    Examples
    --------
    >>> def request(message_id, **said):
    ...     return {"header": {"msg_id": message_id}, "metadata": {"phalanx": {"cell": "a", **said}}}
    >>> once = DuplicateRequestFilter()
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
        self._seen: dict[str, bool] = {}  # by message id, in order of arrival: whether it is done
        self._last: tuple[str, Reply] | None = None

    def is_new(self, message: Message) -> bool:
        """Whether to run this request; records that it was seen."""
        said = (message.get("metadata") or {}).get("phalanx") or {}
        if said.get("again"):
            return False
        if not isinstance(said.get("cell"), str):  # no client of the workspace waits for it
            return True
        message_id = message["header"]["msg_id"]
        if message_id in self._seen:
            return False
        self._seen[message_id] = False
        if len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        return True

    def finish(self, message: Message) -> None:
        """Record that a request was run."""
        message_id = message["header"]["msg_id"]
        if message_id in self._seen:
            self._seen[message_id] = True

    def keep(self, message: Message, content: Message, metadata: Message) -> None:
        """Keep the reply to a request that was run."""
        self._last = message["header"]["msg_id"], (content, metadata)

    def reply_to(self, message: Message) -> Reply | None:
        """Return the reply to a request; None if it is unfinished."""
        message_id = message["header"]["msg_id"]
        if self._last is not None and self._last[0] == message_id:
            return self._last[1]
        return (_LOST, {}) if self._seen.get(message_id) else None
