"""Complete words in IPython with its line editor, in a terminal. `test_tmux` has its questions."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from support.patience import ASKED_TOGETHER, LONG_HELP, TOGETHER

pytestmark = pytest.mark.slow

_PATIENT = f"{ASKED_TOGETHER}\n{TOGETHER}\n{LONG_HELP}".replace("\n", "; ")
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """IPython at the end of a pseudo terminal."""

    def __init__(self, folder) -> None:
        self._fd, other = pty.openpty()
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "xterm"}
        environment["PROMPT_TOOLKIT_NO_CPR"] = "1"  # nobody here tells it where the cursor is
        # What it suggests from history looks as what it has completed.
        kind = ["--no-tip", "--TerminalInteractiveShell.autosuggestions_provider=None"]
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "IPython", "--no-banner", *kind],
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


def test_completion_in_a_terminal(tmp_path):
    terminal = Terminal(tmp_path)
    try:
        terminal.until("In [1]:")
        terminal.type("%load_ext phalanx\r")
        terminal.until("In [2]:")
        terminal.type("%distributed start -n 2 --linger 0\r")
        terminal.until("In [3]:")
        terminal.type(f"{_PATIENT}\r")
        terminal.until("In [4]:")
        terminal.type("ws.run('only_there = 4')\r")
        terminal.until("In [5]:")
        terminal.type("%%distributed\ronly_th\t")
        terminal.until("only_there")
        terminal.type("\r\r\r")  # a cell magic ends with empty lines
        terminal.until("[0-1] Out: 4")
        terminal.until("In [6]:")
        terminal.type("%distributed inter\t")
        terminal.until("rupt")
        terminal.type("\r")
        terminal.until("In [7]:")
        terminal.type("%%local --help\r\r\r")
        terminal.until("usage: %%local")
        terminal.until("In [8]:")
        terminal.type("%autodistributed on\r")
        terminal.until("In [9]:")
        terminal.type("only_th\t")
        terminal.until("only_there")
        terminal.type(" + 1\r")  # and another cell at once
        terminal.until("[0-1] Out: 5")
    finally:
        terminal.close()
