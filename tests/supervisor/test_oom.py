"""Who was killed because memory had run out, by the kernel's counts: written by us, and real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import launching
import pytest

from phalanx.supervisor._oom import REASON, RECENT_S, OutOfMemory

MEMORY = Path("/sys/fs/cgroup/memory")  # version 1
PID = 4711


class Kernel:
    """The files that the kernel would write."""

    def __init__(self, root: Path, lines: str, file: str) -> None:
        (root / "proc" / str(PID)).mkdir(parents=True)
        (root / "proc" / str(PID) / "cgroup").write_text(lines)
        self.file = root / "groups" / file
        self.file.parent.mkdir(parents=True)
        self.watch = OutOfMemory(root / "proc", root / "groups")

    def count(self, kills: int) -> None:
        self.file.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture(
    params=[
        ("0::/user/job\n", "user/job/memory.events"),
        ("0::/user/job\n", "memory.events"),  # the path is the one outside of a container
        ("5:cpu:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("4:memory:/docker/12ab\n0::/\n", "memory/memory.oom_control"),
        ("0::/job\n", "unified/job/memory.events"),
    ]
)
def kernel(request, tmp_path):
    return Kernel(tmp_path, *request.param)


def test_a_count_that_grew_explains_one_death(kernel):
    kernel.count(3)
    kernel.watch.look(PID, 0.0)
    kernel.count(4)
    assert kernel.watch.explains(PID, 1.0)
    kernel.watch.look(PID, 2.0)
    assert not kernel.watch.explains(PID, 2.0)


def test_a_count_that_was_seen_to_grow_just_before_explains_it_too(kernel):
    kernel.count(0)
    kernel.watch.look(PID, 0.0)
    kernel.count(1)
    kernel.watch.look(PID, 5.0)  # the victim is not gone yet
    assert kernel.watch.explains(PID, 5.1)


def test_what_was_long_ago_explains_nothing(kernel):
    kernel.count(0)
    kernel.watch.look(PID, 0.0)
    kernel.count(1)  # another process of the group
    kernel.watch.look(PID, 5.0)
    assert not kernel.watch.explains(PID, 5.1 + RECENT_S)


def test_where_the_kernel_says_nothing_nothing_is_said(tmp_path):
    watch = OutOfMemory(tmp_path, tmp_path)
    watch.look(PID, 0.0)
    assert not watch.explains(PID, 1.0)


@pytest.fixture
def small_group():
    """A control group that may use 64 MiB, or a skip."""
    group = MEMORY / f"phalanx-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"cannot make a control group of version 1 here: {error}")
    yield group
    deadline_s = time.monotonic() + 5
    while True:
        try:
            group.rmdir()
            break
        except OSError:  # the last process is on its way out
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_memory_is_named_so(small_group, tmp_path):
    script = tmp_path / "eats.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others are ended at once\n"
        "import phalanx as px\n"
        "world = px.init()\n"
        "if world.rank() == 1:\n"
        f"    pathlib.Path({str(small_group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(2.5)  # the supervisor sees where we are\n"
        "    hoard = [b'x' * (1 << 20) for _ in range(256)]\n"
        "try:\n"
        "    px.all_sum(1)\n"
        "except px.RankFailure as error:\n"
        "    print(error)\n"
        "    sys.exit(3)\n"
    )
    ended = launching.launch("-n", "2", str(script))
    assert f"rank 1 {REASON}" in ended.stderr.decode()
    assert f": {REASON}" in ended.stdout.decode()
    assert ended.returncode == 128 + signal.SIGKILL


def test_a_rank_whose_own_limit_is_reached_gets_a_memory_error(tmp_path):
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource\n"
        "import phalanx as px\n"
        "world = px.init()\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)\n"
        "try:\n"
        "    bytearray(1 << 30)\n"
        "except MemoryError:\n"
        "    print('refused', px.all_sum(1))\n"
    )
    ended = subprocess.run(
        [*launching.LAUNCH, "-n", "2", str(script)], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert sorted(ended.stdout.split(b"\n")) == [b"", b"[0] refused 2", b"[1] refused 2"]
