"""Use IPython in a terminal: complete words, answer questions, without a line editor as well."""

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
    """IPython at the end of a pseudo terminal, with or without its own line editor."""

    def __init__(self, folder, *, has_editor=False) -> None:
        self._fd, other = pty.openpty()
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "dumb"}
        kind = ["--simple-prompt"]
        if has_editor:
            # Nobody here tells prompt_toolkit where the cursor is.
            environment |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
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


@pytest.mark.deep  # test_tmux.py asks as well, where people have a line editor
def test_questions_in_a_terminal(tmp_path):
    terminal = Terminal(tmp_path)
    try:
        terminal.until("In [1]:")
        terminal.type("%load_ext phalanx\n")
        terminal.until("In [2]:")
        terminal.type(f"{_PATIENT}\n")
        terminal.until("In [3]:")
        terminal.type("%distributed start -n 2 --linger 0\n")
        terminal.until("In [4]:")
        ask = "get_ipython().run_cell_magic('distributed', '', {!r})\n"
        terminal.type(ask.format("print('hello', input('who? '))"))
        terminal.until("[0-1] who? ")
        terminal.type("ann\n")
        terminal.until("[0-1] hello ann")
        terminal.until("In [5]:")
        terminal.type(ask.format("import getpass; len(getpass.getpass('key? '))"))
        terminal.until("[0-1] key? ")
        terminal.type("secret\n")
        assert "secret" not in terminal.until("[0-1] Out: 6")
        terminal.until("In [6]:")
        terminal.type(ask.format("input('never? ')"))
        terminal.until("[0-1] never? ")
        terminal.type("\x03")
        terminal.until("KeyboardInterrupt")
        terminal.until("In [7]:")
        terminal.type(ask.format("breakpoint()\nprint('end')"))
        terminal.until("[0-1] ipdb> ")
        terminal.type("p rank + 5\n")
        terminal.until("[1] 6")
        terminal.until("[0-1] ipdb> ")
        terminal.type("\x04")
        terminal.until("BdbQuit: the debugger was quit")
        terminal.until("In [8]:")
    finally:
        terminal.close()


def test_completion_in_a_terminal(tmp_path):
    terminal = Terminal(tmp_path, has_editor=True)
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
