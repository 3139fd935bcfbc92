"""A question in front of a person: in a notebook without blocking, in a terminal as ever.

It knows ipykernel's stdin channel; nothing of ranks.
"""

from __future__ import annotations

import getpass
from typing import Any

import zmq

from phalanx.workspace import CannotAsk

__all__ = ["KernelPrompt", "TerminalPrompt", "open_prompt"]

END_OF_INPUT = "\x04"  # what a front end sends for Ctrl-D, as ipykernel reads it


class KernelPrompt:
    """An input request of a Jupyter kernel that can be polled, so that output goes on meanwhile.

    The protocol cannot take a request back: `close` leaves it, and the front end drops it when
    the cell ends; an answer that still comes is thrown away before the next question.
    """

    def __init__(self, kernel: Any, prompt: str, password: bool) -> None:
        if not kernel._allow_stdin:
            msg = (
                f"nobody can answer {prompt!r}: this front end has no input; "
                "give the value in the cell instead"
            )
            raise CannotAsk(msg)
        self._kernel = kernel
        self._socket = kernel.stdin_socket
        while self._socket.poll(0):
            self._socket.recv_multipart()
        kernel.session.send(
            self._socket,
            "input_request",
            {"prompt": prompt, "password": password},
            kernel.get_parent("shell"),
            ident=kernel._get_shell_context_var(kernel._shell_parent_ident),
        )

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return the line in a tuple once it came; None in it is the end of input."""
        if not self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            return None
        _, reply = self._kernel.session.recv(self._socket, mode=zmq.NOBLOCK)
        if reply is None or reply["header"]["msg_type"] != "input_reply":
            return None
        value = str(reply["content"].get("value", ""))
        return (None if value == END_OF_INPUT else value,)

    def close(self) -> None:
        """Leave the question."""


class TerminalPrompt:
    """A question in a terminal: blocks until the line is typed."""

    def __init__(self, prompt: str, password: bool) -> None:
        self._prompt = prompt
        self._password = password

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Read the line; the end of input (Ctrl-D) is None in the tuple."""
        try:
            return (getpass.getpass(self._prompt) if self._password else input(self._prompt),)
        except EOFError:
            return (None,)

    def close(self) -> None:
        """Nothing stays open."""


def open_prompt(shell: Any, prompt: str, password: bool) -> KernelPrompt | TerminalPrompt:
    """Ask in the way this shell can; `CannotAsk` if it cannot."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return TerminalPrompt(prompt, password)
    return KernelPrompt(kernel, prompt, password)
