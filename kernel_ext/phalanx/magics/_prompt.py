"""A question in front of a person: in a notebook without blocking, in a terminal as ever.

It knows ipykernel's stdin channel; nothing of ranks.
"""

from __future__ import annotations

import select
import sys
import termios
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
        request = kernel.session.send(
            self._socket,
            "input_request",
            {"prompt": prompt, "password": password},
            kernel.get_parent("shell"),
            ident=kernel._get_shell_context_var(kernel._shell_parent_ident),
        )
        self._id = request["header"]["msg_id"]

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return the line in a tuple once it came; None in it is the end of input."""
        if not self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            return None
        _, reply = self._kernel.session.recv(self._socket, mode=zmq.NOBLOCK)
        if reply is None or reply["header"]["msg_type"] != "input_reply":
            return None
        # A front end that names the question it answers (JupyterLab does) may mean an older one.
        if reply["parent_header"].get("msg_id", self._id) != self._id:
            return None
        value = str(reply["content"].get("value", ""))
        return (None if value == END_OF_INPUT else value,)

    def close(self) -> None:
        """Leave the question."""


class TerminalPrompt:
    """A question in a terminal, polled as well; its own line editing is the terminal's.

    Where standard input is no terminal (a pipe, a file) the line is read in one go: what Python
    has buffered of it cannot be polled for.
    """

    def __init__(self, prompt: str, password: bool) -> None:
        self.is_open = True
        self._stdin = sys.stdin
        self._is_tty = self._stdin.isatty()
        self._settings: list[Any] | None = None
        if password and self._is_tty:
            self._settings = termios.tcgetattr(self._stdin)
            silent = [*self._settings]
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, silent)
        sys.stdout.write(prompt)
        sys.stdout.flush()

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return the line in a tuple once it came; None in it is the end of input (Ctrl-D)."""
        if self._is_tty and not select.select([self._stdin], [], [], timeout_s)[0]:
            return None
        line = self._stdin.readline()
        return (line.rstrip("\n") if line else None,)

    def close(self) -> None:
        """Give the terminal back as it was; what is shown next begins on a line of its own."""
        self.is_open = False
        if self._settings is not None:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._settings)
            self._settings = None
            sys.stdout.write("\n")
            sys.stdout.flush()


def open_prompt(shell: Any, prompt: str, password: bool) -> KernelPrompt | TerminalPrompt:
    """Ask in the way this shell can; `CannotAsk` if it cannot."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return TerminalPrompt(prompt, password)
    return KernelPrompt(kernel, prompt, password)
