"""Who was killed because memory had run out: by the kernel's counts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.ranks.loops import in_asyncio
from support.waiting import wait_until_async

from phalanx.supervisor.hosts import local_host
from phalanx.supervisor.processes.child import OUT_OF_MEMORY, OutOfMemory
from phalanx.supervisor.processes.pipes import ChildOutput


class Kernel:
    """The files that the kernel would write."""

    def __init__(self, root: Path, lines: str, file: str) -> None:
        self._proc, self._groups = root / "proc", root / "groups"
        (self._proc / "self").mkdir(parents=True)
        (self._proc / "self" / "cgroup").write_text(lines)
        self.file = self._groups / file
        self.file.parent.mkdir(parents=True)

    def count(self, kills: int) -> None:
        self.file.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")

    def look(self) -> OutOfMemory:
        return OutOfMemory(self._proc, self._groups)


@pytest.fixture(
    params=[
        ("0::/user/job\n", "user/job/memory.events"),
        ("0::/user/job\n", "memory.events"),  # the path is the one outside of a container
        ("5:cpu:/\n0::/job\n", "job/memory.events"),
    ]
)
def kernel(request, tmp_path):
    return Kernel(tmp_path, *request.param)


def test_a_count_that_grew_explains_as_many_deaths(kernel):
    kernel.count(3)
    watch = kernel.look()
    assert not watch.explains()
    kernel.count(5)
    assert [watch.explains() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("lines", ["", "4:memory:/job\n"])
def test_where_the_kernel_says_nothing_nothing_is_said(tmp_path, lines):
    kernel = Kernel(tmp_path, lines, "memory.events")
    kernel.count(3)
    watch = kernel.look()
    kernel.count(4)
    assert not watch.explains()
    assert not OutOfMemory(tmp_path / "nowhere", tmp_path).explains()


@in_asyncio
async def test_a_rank_that_the_kernel_kills_for_memory_is_named_so(tmp_path, monkeypatch):
    kernel = Kernel(tmp_path, "0::/job\n", "job/memory.events")
    kernel.count(0)
    monkeypatch.setattr(local_host, "OutOfMemory", kernel.look)

    said = []
    host = local_host.LocalHost((0, 1), said.append)
    try:
        for rank in host.ranks:
            host.spawn_command(
                rank, ["sleep", "600"], env=os.environ,
                stdin=None, stdout=ChildOutput(), stderr=ChildOutput(),
            )  # fmt: skip
        kernel.count(1)
        for rank in host.ranks:
            os.kill(host.report(rank).pid, signal.SIGKILL)
        await wait_until_async(lambda: len(said) == 2, "they have ended")
    finally:
        await host.stop()
    # One count explains one of two deaths.
    assert sorted(gone.reason for gone in said) == ["killed by signal 9 (SIGKILL)", OUT_OF_MEMORY]
