"""Answer completion and inspection requests while a cell runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    ProvisionalCompleterWarning,
    rectify_completions,
)

from phalanx.protocol import Complete, Completed, Inspect, Inspected
from phalanx.rank import HelpDesk, escape_surrogates


class KernelHelp:
    """Complete code and inspect objects while a cell runs.

    Matches from the live namespace take milliseconds and are sent as a draft. jedi is slower (first
    completion of os.path: 1.6 s on two cores), so it has a `HelpDesk` and completer of its own.
    """

    def __init__(
        self,
        shell: Any,
        inspect: Callable[[str, int, int], dict[str, Any]],
        send: Callable[[Completed | Inspected], None],
    ) -> None:
        self._shell = shell
        self._inspect = inspect
        self._send = send
        self._desk, self._desk_of_jedi = HelpDesk(), HelpDesk()
        self._with_jedi = shell.Completer if shell.Completer.use_jedi else None
        self._without = _copy_completer(shell)
        self._without.use_jedi = False
        warnings.simplefilter("ignore", ProvisionalCompleterWarning)

    def answer(self, order: Complete | Inspect) -> None:
        """Answer soon, on another thread."""
        if isinstance(order, Inspect):
            self._desk.take("inspect", lambda: self._describe(order))
            return
        self._desk.take("complete", lambda: self._complete(self._without, order))
        if self._with_jedi is not None:
            self._desk_of_jedi.take("complete", lambda: self._complete(self._with_jedi, order))

    def _describe(self, order: Inspect) -> None:
        found = self._inspect(order.code, order.cursor, order.detail)
        # Only the text: a rank's data is shown as HTML only if the rank displayed it as HTML.
        text = str(found["data"].get("text/plain", "")) if found["found"] else None
        self._send(Inspected(order.id, text and escape_surrogates(text)))

    def _complete(self, completer: Any, order: Complete) -> None:
        # Copies: the main thread may bind names at the same time.
        completer.namespace = dict(self._shell.user_ns)
        completer.global_namespace = dict(self._shell.user_global_ns)
        code, cursor = order.code, order.cursor
        found = list(rectify_completions(code, completer.completions(code, cursor)))
        start, end = (found[0].start, found[0].end) if found else (cursor, cursor)
        self._send(
            Completed(
                order.id,
                self._with_jedi is not None and completer is not self._with_jedi,
                tuple(escape_surrogates(one.text) for one in found),
                start,
                end,
                tuple(str(one.type or "") for one in found),
                tuple(escape_surrogates(str(one.signature or "")) for one in found),
            )
        )


def _copy_completer(shell: Any) -> Any:
    """Make a second completer that finds the same names as the shell's."""
    names = {"namespace": shell.user_ns, "global_namespace": shell.user_global_ns}
    completer = IPCompleter(shell=shell, parent=shell, **names)
    completer.custom_completers = shell.Completer.custom_completers
    return completer
