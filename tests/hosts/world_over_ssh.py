"""A world of three hosts over ssh, driven from one of them, as tests of what happens to hosts use it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["BOUND_S", "SILENCE_S", "SLACK_S", "World", "check_named"]

DRIVER = Path(__file__).with_name("world_driver.py")
SILENCE_S = 2.0
BOUND_S = 2.0  # design.md section 5, for what is known at once
SLACK_S = 2.0  # a machine with more to do than our tests
# Says by a file that it waits with the others, over and over, and by another what ended that.
WAITING = """
open({folder!r} + f'/{{rank}}', 'w').close()
try:
    while True:
        px.all_sum(np.ones(4))
except Exception as error:
    with open({folder!r} + f'/{{rank}}.part', 'w') as file:
        file.write(f'{{type(error).__name__}}: {{error}}')
    import os
    os.rename({folder!r} + f'/{{rank}}.part', {folder!r} + f'/{{rank}}.error')
    raise
"""


class World:
    """Three hosts with two ranks each, driven from host a."""

    def __init__(self, bed, folder, **options):
        self.bed, self.folder = bed, folder
        options = {"n": 2, "hosts": "a,b,c", "linger": 0, "silence": SILENCE_S, **options}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.popen = bed.popen(0, [sys.executable, DRIVER], cwd=folder, **pipes)
        self.say(options)

    def say(self, words):
        self.popen.stdin.write(json.dumps(words) + "\n")
        self.popen.stdin.flush()

    def answer(self):
        line = self.popen.stdout.readline()
        assert line, "the driver has died"
        return json.loads(line)

    def boot(self):
        said = self.answer()
        assert "up" in said, said
        return said

    def run(self, code):
        self.say(code)
        return self.answer()

    def wait_together(self):
        """Have all ranks in a cell in which they wait for each other."""
        start = time.monotonic()
        self.say(WAITING.format(folder=str(self.folder)))
        deadline_s = time.monotonic() + 20
        while not all((self.folder / str(rank)).exists() for rank in range(6)):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        self.waited_s = time.monotonic() - start

    def stop(self):
        self.popen.stdin.close()
        said = self.answer()
        self.popen.wait(20)
        return said

    def find(self, host, words):
        """Return the processes on a host with these words in their command line, by pid."""
        found = []
        for process in self.bed.processes(host):
            line = " ".join(process.cmdline())
            if words in line and "sh -c" not in line:
                found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.popen.wait()


def check_named(world, host, within_s, reason=""):
    """The cell and every rank elsewhere name a rank of that host, in time."""
    said = world.answer()
    assert f"on {host}: lost its host" in said["problem"]
    assert reason in said["problem"]
    for rank in set(range(6)) - {"b": {2, 3}, "c": {4, 5}}[host]:
        text = (world.folder / f"{rank}.error").read_text()
        assert text.startswith("RankFailure: rank "), text
        assert f"on {host}: " in text
    assert said["seconds"] - world.waited_s < within_s, said
