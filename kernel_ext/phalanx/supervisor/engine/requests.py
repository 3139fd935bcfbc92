"""Answer completion and inspection requests while a cell runs."""

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
