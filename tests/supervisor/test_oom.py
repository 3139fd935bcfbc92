"""Who was killed because memory had run out, by the kernel's counts: written by us, and real ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import launching
from support.loops import run_jumping
from support.waiting import wait_until

from phalanx.supervisor.health.liveness import HealthWatch
from phalanx.supervisor.processes.child import OOM_RECENT_S, OUT_OF_MEMORY, OutOfMemory

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
    assert not kernel.watch.explains(PID, 5.1 + OOM_RECENT_S)


def test_where_the_kernel_says_nothing_nothing_is_said(tmp_path):
    watch = OutOfMemory(tmp_path, tmp_path)
    watch.look(PID, 0.0)
    assert not watch.explains(PID, 1.0)


def test_the_counts_are_looked_at_every_second():
    """A process may be put into another group at any time, and others of its group may be killed."""
    looks_s = []

    async def main():
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        host = SimpleNamespace(
            pid=lambda _: PID,
            beats=lambda _: 1,
            look_at_memory=lambda: looks_s.append(loop.time() - begin_s),
        )
        health = asyncio.ensure_future(HealthWatch(host, 5.0, lambda *_: None).run(lambda: (0,)))
        await asyncio.sleep(3.5)
        health.cancel()

    run_jumping(main)
    assert looks_s == pytest.approx([1.0, 2.0, 3.0])


@pytest.fixture
def group():
    """A control group for memory, without a limit, or a skip."""
    group = MEMORY / f"phalanx-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group of version 1 here: {error}")
    yield group

    def is_removed():
        with contextlib.suppress(OSError):  # the last process is on its way out
            group.rmdir()
        return not group.exists()

    wait_until(is_removed, "the end of all processes of the control group")


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_memory_is_named_so(group, tmp_path):
    """The launcher and all ranks are in the group, so that a rank is there from its start."""
    script = tmp_path / "eats.py"
    script.write_text(
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others are ended at once\n"
        "import phalanx as px\n"
        "world = px.init()\n"
        "if world.rank() == 1:\n"
        "    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')  # it, and no other\n"
        f"    group = pathlib.Path({str(group)!r})\n"
        "    used = int((group / 'memory.usage_in_bytes').read_text())\n"
        "    (group / 'memory.limit_in_bytes').write_text(str(used + (64 << 20)))\n"
        "    hoard = [b'x' * (1 << 20) for _ in range(1024)]\n"
        "try:\n"
        "    px.all_sum(1)\n"
        "except px.RankFailure as error:\n"
        "    print(error)\n"
        "    sys.exit(3)\n"
    )
    move = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    words = ["sh", "-c", move, "sh", *launching.LAUNCH, "-n", "2", str(script)]
    ended = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert f"rank 1 {OUT_OF_MEMORY}" in ended.stderr.decode()
    assert f": {OUT_OF_MEMORY}" in ended.stdout.decode()
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
