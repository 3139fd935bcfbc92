"""Help while typing, of a rank's kernel: what lives there by name, also while a cell runs.

It knows the shell's completer and inspector, and the control channel that they are asked on.
"""

from __future__ import annotations

from typing import Any

from phalanx.rank import HelpDesk

__all__ = ["KernelHelp"]


class KernelHelp:
    """Answers Jupyter's ``complete_request`` and ``inspect_request`` on the control channel.

    Requests come on the control thread; the desk answers them on a thread of its own.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._desk = HelpDesk()
        self._has_jedi = kernel.shell.Completer.use_jedi
        kernel.control_handlers["complete_request"] = self._on_complete
        kernel.control_handlers["inspect_request"] = self._on_inspect

    def _on_complete(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        content, shell = message["content"], self._kernel.shell

        def answer() -> None:
            completer = shell.Completer
            # Copies: the main thread may bind names meanwhile.
            completer.namespace = dict(shell.user_ns)
            completer.global_namespace = dict(shell.user_global_ns)
            # What lives here is found in milliseconds: a draft, for whoever cannot wait for
            # jedi, which also reads the text (os.path the first time: 1.6 s on two cores).
            for use_jedi in (False, True)[: 1 + self._has_jedi]:
                completer.use_jedi = use_jedi
                reply = self._kernel.do_complete(content["code"], content["cursor_pos"])
                reply["metadata"]["is_draft"] = self._has_jedi and not use_jedi
                self._reply(stream, "complete_reply", reply, message, ident)

        self._desk.take("complete", answer)

    def _on_inspect(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        asked = message["content"]

        def answer() -> None:
            reply = self._kernel.do_inspect(
                asked["code"], asked["cursor_pos"], asked["detail_level"]
            )
            self._reply(stream, "inspect_reply", reply, message, ident)

        self._desk.take("inspect", answer)

    def _reply(self, stream: Any, kind: str, content: Any, message: Any, ident: Any) -> None:
        """Send from the control thread, whose stream it is."""
        send = self._kernel.session.send
        loop = self._kernel.control_thread.io_loop
        loop.add_callback(send, stream, kind, content, message, ident)
