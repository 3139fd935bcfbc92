"""Use IPython with its own line editor in a terminal as people have it: a pane of tmux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.patience import ASKED_TOGETHER, LONG_HELP, TOGETHER
from support.programs.processes import wait_gone
from support.promise import PATIENCE_S
from support.waiting import wait_until

pytestmark = pytest.mark.slow


class Pane:
    """A terminal in a tmux server of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._n_prompts = 0

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return done.stdout

    def screen(self) -> str:
        """All that was shown, without the blanks at the ends of lines."""
        shown = self.tmux("capture-pane", "-p", "-S", "-", "-t", "ipython")
        return "\n".join(line.rstrip() for line in shown.splitlines())

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", "ipython", *keys)

    def until(self, wanted: str, n_times: int = 1) -> str:
        """Wait until this is shown so often; return all that is shown then."""
        seen = [""]

        def is_shown() -> bool:
            seen[:] = [self.screen()]
            return seen[0].count(wanted) >= n_times

        try:
            # Each look is a process.
            wait_until(is_shown, f"{wanted!r} ({n_times} times)", 2 * PATIENCE_S, poll_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error} in:\n{seen[0]}") from None  # noqa: EM102
        return seen[0]

    def until_prompt(self) -> str:
        """Wait for IPython's next prompt."""
        self._n_prompts += 1
        return self.until(f"In [{self._n_prompts}]:")

    def line(self, text: str) -> None:
        self.keys("-l", text)
        self.keys("Enter")

    def tab(self, text: str, wanted: str) -> None:
        """Type this and a tab; wait for what it is completed to."""
        self.keys("-l", text)
        self.keys("Tab")
        self.until(wanted)

    def cell(self, *lines: str) -> None:
        """Type a cell; two empty lines end one that begins with %%."""
        for line in ("%%distributed", *lines):
            self.line(line)
        self.keys("Enter")
        self.keys("Enter")


@contextmanager
def ipython_in_tmux(folder: Path) -> Iterator[Pane]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    # A socket's path is 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="px-tmux-") as short:
        pane = Pane(Path(short) / "socket")
        pane.tmux(
            "new-session", "-d", "-s", "ipython", "-x", "150", "-y", "50",
            "-e", f"IPYTHONDIR={folder}", "-e", f"PATH={os.environ['PATH']}",
            sys.executable, "-m", "IPython", "--no-banner", "--no-confirm-exit",
            # What it suggests from history looks as what it has completed.
            "--TerminalInteractiveShell.autosuggestions_provider=None",
        )  # fmt: skip
        try:
            yield pane
        finally:
            if pane._socket.exists():
                subprocess.run(
                    ["tmux", "-S", pane._socket, "kill-server"], capture_output=True, check=False
                )


def test_a_session_in_tmux(tmp_path):
    with ipython_in_tmux(tmp_path) as pane:
        ipython = psutil.Process(int(pane.tmux("list-panes", "-F", "#{pane_pid}")))
        pane.until_prompt()
        pane.line("%load_ext phalanx")
        pane.until_prompt()
        pane.line(f"{ASKED_TOGETHER}\n{TOGETHER}\n{LONG_HELP}".replace("\n", "; "))
        pane.until_prompt()
        pane.line("%distributed start -n 2 --linger 0")
        pane.until("ranks 0-1 share memory")
        pane.until_prompt()
        pane.cell("print('hello', size)")
        pane.until("[0-1] hello 2\n")
        pane.until_prompt()
        _question(pane)
        _hidden(pane)
        _debugger(pane)
        _stop(pane)
        _completion(pane)
        pane.line("%distributed stop")
        pane.until_prompt()
        pane.line("exit")
        assert wait_gone([ipython], PATIENCE_S) == []


def _question(pane: Pane) -> None:
    pane.cell("print('hello', input('who? '))")
    pane.until("\n[0-1] who?")
    pane.line("ann")
    pane.until("[0-1] hello ann\n")
    pane.until_prompt()


def _hidden(pane: Pane) -> None:
    pane.cell("import getpass; len(getpass.getpass('key? '))")
    pane.until("\n[0-1] key?")
    pane.line("secret")
    assert "secret" not in pane.until("[0-1] Out: 6")
    pane.until_prompt()


def _debugger(pane: Pane) -> None:
    pane.cell("breakpoint()", "x = 1")
    pane.until("\n[0-1] ipdb>")
    pane.line("p rank + 40")
    pane.until("[0] 40")
    pane.until("[1] 41")
    pane.until("\n[0-1] ipdb>", 2)
    pane.line("@1 p rank + 50")
    screen = pane.until("[1] 51")
    pane.until("\n[0-1] ipdb>", 3)
    assert "[0] 50" not in screen
    pane.line("c")
    pane.until_prompt()


def _stop(pane: Pane) -> None:
    pane.cell("import time; print('go on')", "while True: time.sleep(0.01)")
    pane.until("[0-1] go on\n")
    pane.keys("C-c")
    screen = pane.until_prompt()
    assert "KeyboardInterrupt" in screen
    assert "Traceback" not in screen
    pane.cell("px.all_sum(1)")
    pane.until("[0-1] Out: 2")
    pane.until_prompt()


def _completion(pane: Pane) -> None:
    pane.line("ws.run('only_there = 4')")
    pane.until_prompt()
    pane.line("%%distributed")  # which is no whole cell
    pane.tab("only_th", "...: only_there")
    pane.keys("Enter", "Enter", "Enter")
    pane.until("[0-1] Out: 4")
    pane.until_prompt()
    pane.tab("%distributed inter", "%distributed interrupt")
    pane.keys("Enter")
    pane.until_prompt()
    pane.line("%%local --help")
    pane.keys("Enter", "Enter")
    pane.until("usage: %%local")
    pane.until_prompt()
    pane.line("%autodistributed on")
    pane.until_prompt()
    pane.tab("only_th", "]: only_there")
    pane.line(" + 1")
    pane.until("[0-1] Out: 5")
    pane.until_prompt()
