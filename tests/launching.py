"""Launchers as processes of their own, for the tests of `phalanx launch`."""

from __future__ import annotations

import os
import subprocess
import sys

import processes
import psutil

BOUND_S = 2.0  # design.md section 5: on one machine
# Of what a script measures while others start, end and compete with it for the machine's cores: it
# tells being freed from waiting; how long that takes is time_to_freedom.py's to say.
PATIENCE_S = 15.0
LAUNCH = [sys.executable, "-m", "phalanx.cli", "launch"]


def launch(*words, stdin=b"", env=None):
    return subprocess.run(
        [*LAUNCH, *words],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


class Running:
    """A launcher that runs, with what it started."""

    def __init__(self, *words, **options):
        self.popen = subprocess.Popen(
            [*LAUNCH, *words],
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

    @property
    def root(self):
        (root,) = psutil.Process(self.popen.pid).children()
        return root

    @property
    def ranks(self):
        words = {process: " ".join(process.cmdline()) for process in self.root.children()}
        return [process for process, said in words.items() if "_sweep.py" not in said]

    def end(self):
        """Wait for the end: (exit status, stderr)."""
        _, said = self.popen.communicate(timeout=30)
        return self.popen.returncode, said.decode()


def wait_gone(family, timeout_s=BOUND_S):
    return processes.wait_gone(family, timeout_s)
