"""A world of three hosts over ssh, driven from one of them, as tests of what happens to hosts use it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
from support.hosts.bed_host import kill_all
from support.hosts.hosts_bed import check_nothing_left
from support.promise import after_silence_s, check
from support.waiting import wait_until

__all__ = ["DRIVER", "SILENCE_S", "SSHD", "SharedWorld", "World", "check_named"]

DRIVER = Path(__file__).with_name("world_driver.py")
SILENCE_S = 2.0
SSHD = "sshd: "  # it cannot know that its connection has broken before its cable is back
# Says by a file that it waits with the others, over and over, and by another what ended that. The
# pause leaves the machine's cores to other tests.
WAITING = """
import os, time
open({folder!r} + f'/{{rank}}', 'w').close()
try:
    while True:
        px.all_sum(np.ones(4))
        time.sleep(0.005)
except Exception as error:
    with open({folder!r} + f'/{{rank}}.part', 'w') as file:
        file.write(f'{{type(error).__name__}}: {{error}}')
    os.rename({folder!r} + f'/{{rank}}.part', {folder!r} + f'/{{rank}}.error')
    raise
"""


class World:
    """A driver on host a, and the hosts with two ranks each that it starts."""

    def __init__(self, bed, folder):
        self.bed, self.folder = bed, folder
        self.booted = None  # what was said when the hosts were up
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.popen = bed.popen(0, [sys.executable, DRIVER], cwd=folder, **pipes)

    def say(self, words):
        self.popen.stdin.write(json.dumps(words) + "\n")
        self.popen.stdin.flush()

    def answer(self):
        line = self.popen.stdout.readline()
        assert line, "the driver has died"
        return json.loads(line)

    def say_start(self, **options):
        self.say({"n": 2, "hosts": "a,b,c", "linger": 0, "silence": SILENCE_S, **options})

    def boot(self, **options):
        """Start the hosts; return what was said of it."""
        self.say_start(**options)
        self.booted = self.answer()
        assert "up" in self.booted, self.booted
        return self.booted

    def run(self, code):
        self.say(code)
        return self.answer()

    def restart(self):
        """Have new ranks in the place of those that are lost."""
        self.say(None)
        said = self.answer()
        assert "values" in said, said

    def wait_together(self, folder):
        """Have all ranks in a cell in which they wait for each other; its files are in a folder."""
        self.waiting_in = folder
        start = time.monotonic()
        self.say(WAITING.format(folder=str(folder)))
        files = [folder / str(rank) for rank in range(6)]
        wait_until(lambda: all(file.exists() for file in files), "all ranks wait together")
        self.waited_s = time.monotonic() - start

    def stop(self):
        self.popen.stdin.close()
        said = self.answer()
        self.popen.wait(20)
        return said

    def root(self):
        """Return the supervisor that the driver has started."""
        words = "phalanx.supervisor"
        found = psutil.Process(self.popen.pid).children()
        (root,) = (process for process in found if process.cmdline()[-1] == words)
        return root

    def find(self, host, words):
        """Return the processes on a host with these words in their command line, by pid."""
        found = []
        for process in self.bed.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):
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


class SharedWorld:
    """Holds a world of three hosts that tests use one after the other."""

    def __init__(self, bed, folder, **options):
        self.bed, self.folder, self.options = bed, folder, options
        self.world = None

    def driver(self):
        """Return a driver that has started no world yet."""
        if self.world is not None and self.world.booted is not None:
            self.end()
        return self._living()

    def take(self):
        """Return a world whose ranks all live."""
        world = self._living()
        if world.booted is None:
            world.boot(**self.options)
        return world

    def _living(self):
        if self.world is not None and self.world.popen.poll() is not None:
            self.drop()
        if self.world is None:
            self.world = World(self.bed, self.folder)
        return self.world

    def drop(self):
        """End the driver and all else on the hosts, whatever state they are in."""
        world, self.world = self.world, None
        if world is not None:
            with world:
                kill_all(self.bed.processes())

    def end(self):
        """Stop the world, if there is one; nothing of it is left."""
        world = self.world
        if world is not None and world.booted is not None and world.popen.poll() is None:
            assert "stopped" in world.stop()
            check_nothing_left(self.bed)
        self.drop()


def check_named(world, host, bound_s=None, reason=""):
    """The cell and every rank elsewhere name a rank of that host, in time."""
    said = world.answer()
    assert f"on {host}: lost its host" in said["problem"], said
    assert reason in said["problem"]
    for rank in set(range(6)) - {"b": {2, 3}, "c": {4, 5}}[host]:
        text = (world.waiting_in / f"{rank}.error").read_text()
        assert text.startswith("RankFailure: rank "), text
        assert f"on {host}: " in text
    check(said["seconds"] - world.waited_s, bound_s or after_silence_s(SILENCE_S))
