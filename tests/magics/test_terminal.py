"""IPython in a terminal: a question on all ranks, answered, hidden, and stopped."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """IPython at the end of a pseudo terminal, without its own line editor."""

    def __init__(self, folder) -> None:
        self._fd, other = pty.openpty()
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "dumb"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner"],
            stdin=other, stdout=other, stderr=other, env=environment,
        )  # fmt: skip
        os.close(other)
        self.text = ""

    def until(self, wanted: str, timeout: float = 40.0) -> str:
        """Read until this is shown; return what came before it, and drop both."""
        deadline = time.monotonic() + timeout
        while wanted not in self.text:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._fd], [], [], left)[0]:
                msg = f"no {wanted!r} in:\n{self.text}"
                raise AssertionError(msg)
            self.text += _CODES.sub("", os.read(self._fd, 1 << 16).decode(errors="replace"))
        before, _, self.text = self.text.partition(wanted)
        return before

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


def test_questions_in_a_terminal(tmp_path):
    terminal = Terminal(tmp_path)
    try:
        terminal.until("In [1]:")
        terminal.type("%load_ext phalanx\n")
        terminal.until("In [2]:")
        terminal.type("%distributed start -n 2\n")
        terminal.until("In [3]:")
        ask = "get_ipython().run_cell_magic('distributed', '', {!r})\n"
        terminal.type(ask.format("print('hello', input('who? '))"))
        terminal.until("[0-1] who? ")
        terminal.type("ann\n")
        terminal.until("[0-1] hello ann")
        terminal.until("In [4]:")
        terminal.type(ask.format("import getpass; len(getpass.getpass('key? '))"))
        terminal.until("[0-1] key? ")
        terminal.type("secret\n")
        assert "secret" not in terminal.until("[0-1] Out: 6")
        terminal.until("In [5]:")
        terminal.type(ask.format("input('never? ')"))
        terminal.until("[0-1] never? ")
        terminal.type("\x03")
        terminal.until("KeyboardInterrupt")
        terminal.until("In [6]:")
        terminal.type(ask.format("breakpoint()\nprint('end')"))
        terminal.until("[0-1] ipdb> ")
        terminal.type("p rank + 5\n")
        terminal.until("[1] 6")
        terminal.until("[0-1] ipdb> ")
        terminal.type("\x04")
        terminal.until("BdbQuit: the debugger was quit")
        terminal.until("In [7]:")
    finally:
        terminal.close()
