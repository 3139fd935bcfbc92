"""Complete code and inspect objects while a cell runs."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

from IPython.core.completer import IPCompleter, ProvisionalCompleterWarning, rectify_completions

from phalanx.protocol import Complete, Completed, Inspect, Inspected

from .output.error_text import escape_surrogates

log = logging.getLogger(__name__)


class KernelHelp:
    """Answer `Complete` and `Inspect`.

    Matches from the live namespace take milliseconds and are sent as a draft. jedi is slower (first
    completion of os.path: 1.6 s on two cores), so it has a thread and completer of its own.
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
        self._thread, self._jedi_thread = AnswerThread(), AnswerThread()
        self._with_jedi = shell.Completer if shell.Completer.use_jedi else None
        self._without = _copy_completer(shell)
        self._without.use_jedi = False
        warnings.simplefilter("ignore", ProvisionalCompleterWarning)

    def answer(self, order: Complete | Inspect) -> None:
        """Answer soon, on another thread."""
        if isinstance(order, Inspect):
            self._thread.take("inspect", lambda: self._describe(order))
            return
        self._thread.take("complete", lambda: self._complete(self._without, order))
        if self._with_jedi is not None:
            self._jedi_thread.take("complete", lambda: self._complete(self._with_jedi, order))

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


class AnswerThread:
    """Answer questions on a thread of their own.

    The thread that takes orders must stay free for typed lines and for a stop, and jedi can take
    seconds to read a library for the first time. Only the newest question of each kind waits: the
    user has typed on since an older one.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="help", daemon=True).start()

    def take(self, kind: str, answer: Callable[[], None]) -> None:
        """Queue a question; replace a waiting one of the same kind."""
        with self._changed:
            self._waiting[kind] = answer
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                answer = self._waiting.pop(next(iter(self._waiting)))
            try:
                answer()
            except Exception:
                # Inspecting a user's objects runs their code, which may raise anything; go on.
                log.exception("a question while typing could not be answered")
