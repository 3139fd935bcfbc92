"""Worlds on several hosts, over real sshd: they boot, agree, lose a host, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx

DRIVER = Path(__file__).with_name("world_driver.py")
SILENCE_S = 2.0
BOUND_S = 2.0  # design.md section 5, for what is known at once
SLACK_S = 2.0  # a machine with more to do than our tests
WHERE = "import socket; socket.gethostname(), int(px.all_sum(rank))"
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

pytestmark = pytest.mark.slow


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
        """Return the processes on a host with these words in their command line."""
        found = []
        for process in self.bed.processes(host):
            line = " ".join(process.cmdline())
            if words in line and "sh -c" not in line:
                found.append(process)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.popen.wait()


@pytest.fixture
def world(bed, tmp_path):
    with World(bed, tmp_path) as world:
        world.boot()
        yield world
    left = bed.left(BOUND_S + SLACK_S)
    assert left == []


def _check_named(world, host, within_s, reason=""):
    """The cell and every rank elsewhere name a rank of that host, in time."""
    said = world.answer()
    assert f"on {host}: lost its host" in said["problem"]
    assert reason in said["problem"]
    for rank in set(range(6)) - {"b": {2, 3}, "c": {4, 5}}[host]:
        text = (world.folder / f"{rank}.error").read_text()
        assert text.startswith("RankFailure: rank "), text
        assert f"on {host}: " in text
    assert said["seconds"] - world.waited_s < within_s, said


def test_three_hosts_boot_agree_and_stop(bed, tmp_path):
    with World(bed, tmp_path) as world:
        said = world.boot()
        assert sorted(line for line in said["news"] if "up" in line.split()) == ["b: up ", "c: up "]
        values = world.run(WHERE)["values"]
        assert values == [f"('{host}', 15)" for host in "aabbcc"]
        assert world.run("import os; os.getcwd()")["values"] == [repr(str(tmp_path))] * 6
        assert "stopped" in world.stop()
    assert bed.left(BOUND_S) == []


def test_hosts_that_have_only_ipv6(bed, tmp_path):
    with World(bed, tmp_path, hosts="b6,c6", n=1) as world:
        world.boot()
        assert world.run(WHERE)["values"] == ["('b', 1)", "('c', 1)"]
        world.stop()
    assert bed.left(BOUND_S) == []


def test_a_host_that_is_cut_off_is_named_and_ends_its_ranks(bed, world):
    world.wait_together()
    bed.cut(2)
    try:
        _check_named(world, "c", SILENCE_S + 0.5 + SLACK_S)
        # Its root is silent for it, and linger is 0: nothing of it stays there.
        # (sshd cannot know that its connection has broken before it is mended.)
        assert bed.left(SILENCE_S + BOUND_S + SLACK_S, 2, but="sshd: ") == []
    finally:
        bed.mend(2)
    assert "stopped" in world.stop()


def test_a_frozen_host_is_named_and_leaves_nothing(bed, world):
    world.wait_together()
    bed.signal(1, signal.SIGSTOP)
    try:
        _check_named(world, "b", SILENCE_S + 0.5 + SLACK_S)
    finally:
        bed.signal(1, signal.SIGCONT)
    assert bed.left(BOUND_S + SLACK_S, 1) == []
    assert "stopped" in world.stop()


def test_a_killed_host_supervisor_is_named_at_once(bed, world):
    world.wait_together()
    (supervisor,) = world.find(1, "phalanx.supervisor host")
    supervisor.kill()
    _check_named(world, "b", BOUND_S + SLACK_S, "killed by signal 9 (SIGKILL)")
    assert "stopped" in world.stop()


def test_a_host_goes_on_without_its_ssh(bed, world):
    for process in bed.processes(0):
        if process.name() == "ssh":
            process.kill()
    for _ in range(3):
        assert len(world.run(WHERE)["values"]) == 6
    assert "stopped" in world.stop()


def _root(world):
    (root,) = (
        process
        for process in world.find(0, "-m phalanx.supervisor")
        if process.cmdline()[-1] == "phalanx.supervisor"
    )
    return root


def test_nothing_is_left_of_a_killed_root(bed, world):
    world.wait_together()
    _root(world).kill()
    assert bed.left(BOUND_S + SLACK_S, 1, 2) == []


def test_nothing_is_left_of_a_root_that_is_killed_while_it_boots(bed, tmp_path):
    came = tmp_path / "came"
    python = bed.python("late", f'touch {came}; sleep 0.5; exec {sys.executable} "$@"')
    with World(bed, tmp_path, python=str(python)) as world:
        deadline_s = time.monotonic() + 20
        while not came.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        _root(world).kill()
        assert "problem" in world.answer()
    assert bed.left(BOUND_S + SLACK_S) == []


def test_nothing_is_left_of_a_killed_notebook(bed, world):
    world.wait_together()
    world.popen.kill()
    world.popen.wait()
    assert bed.left(BOUND_S + SLACK_S) == []


def test_all_hosts_that_fail_are_named(bed, tmp_path):
    bed.stop_sshd(1)
    try:
        with World(bed, tmp_path, hosts="a,b,nowhere") as world:
            problem = world.answer()["problem"]
            world.popen.wait(10)
    finally:
        bed.restart_sshd(1)
    assert "it refuses ssh at port 22" in problem
    assert "the name nowhere does not resolve" in problem
    assert bed.left(BOUND_S) == []


def test_a_firewall_before_the_root_is_named(bed, tmp_path):
    bed.block(1, 0)
    try:
        with World(bed, tmp_path) as world:
            problem = world.answer()["problem"]
            world.popen.wait(10)
    finally:
        bed.unblock(0)
    assert "it cannot reach the supervisor at 10.77.0.11" in problem, problem
    assert "firewall" in problem
    assert bed.left(BOUND_S) == []


def _problem(bed, folder, **options):
    """Why no world boots."""
    with World(bed, folder, hosts="b", **options) as world:
        said = world.answer()
        world.popen.wait(10)
    assert bed.left(BOUND_S) == []
    return said["problem"], said["news"]


def test_another_version_is_named(bed, tmp_path):
    patched = (
        "import phalanx, runpy; phalanx.__version__ = '9.9'; "
        "runpy.run_module('phalanx.supervisor', run_name='__main__', alter_sys=True)"
    )
    python = bed.python("newer", f'exec {sys.executable} -c "{patched}" host')
    problem, _ = _problem(bed, tmp_path, python=str(python))
    assert problem == ("b: its phalanx is 9.9, the one that starts it is " + phalanx.__version__)


def test_a_missing_interface_is_named(bed, tmp_path):
    lines = ["link add wire7 type veth peer name wire8", "link set wire8 up", "link set wire7 up"]
    lines.append("addr add 10.77.0.111/32 dev wire7")
    bed.run(0, ["ip", "-batch", "-"], input="\n".join(lines))
    try:
        problem, _ = _problem(bed, tmp_path, interface="wire7")
    finally:
        bed.run(0, ["ip", "link", "del", "wire7"])
    assert "it has no interface 'wire7'; there are: eth0, lo" in problem


def test_a_missing_folder_is_named_if_it_was_asked_for(bed, tmp_path):
    bed.run(0, ["mkdir", "/run/here"])  # each host has a /run of its own
    problem, _ = _problem(bed, tmp_path, cwd="/run/here")
    assert problem == ("b: it has no folder /run/here: make it there, or name another with --cwd")
    bed.run(0, ["rmdir", "/run/here"])


def test_a_host_that_never_comes_up_is_given_up(bed, tmp_path):
    python = bed.python("sleeping", "exec cat >/dev/null")
    problem, news = _problem(bed, tmp_path, python=str(python), boot_timeout=4)
    assert problem == "b: it has let us in, its Python has not answered yet, after 4 s"
    assert "b: starting it has let us in, its Python has not answered yet" in news
