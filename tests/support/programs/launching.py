"""Start launchers as processes of their own, for the tests of `phalanx launch`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
from support.programs import processes
from support.promise import BOUND_S, PATIENCE_S, check
from support.waiting import wait_until

LAUNCH = [sys.executable, "-m", "phalanx", "launch"]
_TIMEOUT_S = 100.0  # for a launch that hangs; below pytest's own limit


def launcher_with(statements: str) -> list[str]:
    """Return the words of a launcher that executes these statements first."""
    code = f"{statements}\nfrom phalanx.cli import main; raise SystemExit(main())"
    return [sys.executable, "-c", code, "launch"]


# `print` writes a line and its end apart. Where a busy machine does not run a rank for 2 s between
# the two, the begin of the line is shown as a prompt is, and the whole line may follow.
PATIENT = launcher_with("import phalanx.cli.launch.lines as lines; lines.PROMPT_AFTER_S = 60.0")


def launch(*words, stdin=b"", env=None, launcher=PATIENT):
    """Run a launcher to its end."""
    return subprocess.run(
        [*launcher, *words],
        input=stdin,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


def write_script(folder: Path, code: str, name: str = "script.py") -> str:
    """Write a script; return its path."""
    path = folder / name
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return str(path)


def run_script(folder: Path, n: int, code: str, *words: str):
    """Run a script on ``n`` ranks to its end; pytest shows their stderr."""
    ended = launch("-n", str(n), *words, write_script(folder, code))
    sys.stderr.write(ended.stderr.decode())
    return ended


def printed(folder: Path, n: int, code: str, *words: str) -> list[str]:
    """Run a script on ``n`` ranks; return the lines that they print, sorted."""
    return sorted(run_script(folder, n, code, *words).stdout.decode().splitlines())


def of_each(n: int, line: str) -> list[str]:
    """Return the lines where each of ``n`` ranks prints this one."""
    return [f"[{rank}] {line}" for rank in range(n)]


class Running:
    """A launcher that runs, with what it started."""

    def __init__(self, *words, launcher=PATIENT, **options):
        self.popen = subprocess.Popen(
            [*launcher, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def wait_lines(self, *lines):
        """Read stdout until each of these lines has come."""
        missing = {line.encode() for line in lines}
        while missing:
            line = self.popen.stdout.readline()
            assert line, self.popen.stderr.read()
            missing.discard(line.rstrip(b"\n"))

    def processes(self):
        process = psutil.Process(self.popen.pid)
        return [process, *process.children(recursive=True)]

    def children(self):
        return psutil.Process(self.popen.pid).children()

    @property
    def ranks(self):
        words = {process: " ".join(process.cmdline()) for process in self.children()}
        return [process for process, said in words.items() if "sweep_main.py" not in said]

    def end(self, timeout_s=PATIENCE_S):
        """Wait for the end: (exit status, stderr)."""
        _, said = self.popen.communicate(timeout=timeout_s)
        return self.popen.returncode, said.decode()

    def close(self):
        """Kill the launcher, with which its ranks end, and close its pipes."""
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()
        self.popen.stderr.close()


# Ranks that print for ever, and write down for the test how many bytes they have printed.
ENDLESS = """
import os, sys
place = f"{sys.argv[1]}/{os.environ['PHALANX_RANK']}"
written = 0
while True:
    written += os.write(1, b"x" * 1000 + b"\\n")
    with open(place, "w") as file: file.write(str(written))
"""


def wait_held_up(folder: Path, n: int, most_nbytes: int = 4 << 20, still_s: float = 1.0) -> None:
    """Wait until ``n`` ranks of `ENDLESS` write no more, before each has written this much.

    A machine that does not run them for ``still_s`` ends the wait early, which fails nothing.
    """
    places = [folder / str(rank) for rank in range(n)]
    seen, since_s = [""] * n, time.monotonic()

    def are_still() -> bool:
        nonlocal seen, since_s
        now = [place.read_text() if place.exists() else "" for place in places]
        if now != seen or not all(now):
            seen, since_s = now, time.monotonic()
        assert all(int(text or 0) < most_nbytes for text in now), now
        return time.monotonic() - since_s > still_s

    wait_until(are_still, "ranks whose output nobody reads write no more", poll_s=0.05)


def wait_gone(family, timeout_s=BOUND_S):
    """Wait until these processes are gone; return those that are not, record how long it took."""
    begin_s = time.monotonic()
    left = processes.wait_gone(family, timeout_s)
    if not left:
        check(time.monotonic() - begin_s, timeout_s + 1.0)  # the last look may come late
    return left
