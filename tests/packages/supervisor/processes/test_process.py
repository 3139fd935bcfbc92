"""A child process of a supervisor: when it counts as ended."""

from __future__ import annotations

import asyncio
import contextlib
import os

import psutil
import pytest
from support.programs.processes import wait_gone
from support.promise import PATIENCE_S
from support.ranks.loops import in_asyncio

from phalanx.supervisor.processes import child as child_module
from phalanx.supervisor.processes import pipes as pipes_module
from phalanx.supervisor.processes.child import ChildProcess
from phalanx.supervisor.processes.pipes import ChildOutput


@in_asyncio
async def test_a_tied_child_whose_pipes_have_ended_is_not_waited_for(monkeypatch):
    """As ssh's, at the end of every host: last words of others come only while a pipe is held."""
    monkeypatch.setattr(child_module, "LAST_OUTPUT_S", 60.0)
    heard = []
    stdout, stderr = ChildOutput(heard.append), ChildOutput()
    child = ChildProcess(
        ["sh", "-c", "echo heard; echo last >&2"],
        env=os.environ, cwd="/", pass_fds=(), stdout=stdout, stderr=stderr,
        on_exit=lambda status: None, tied=True,
    )  # fmt: skip
    await asyncio.wait_for(child.exited.wait(), PATIENCE_S)
    assert (child.status, b"".join(heard), child.tail) == (0, b"heard\n", "last\n")


@pytest.mark.parametrize("status", [0, 3])
@in_asyncio
async def test_what_a_child_leaves_behind_ends_with_it(status):
    heard = []
    child = ChildProcess(
        ["sh", "-c", f"sleep 600 >/dev/null 2>&1 & echo $!; exit {status}"],
        env=os.environ, cwd="/", pass_fds=(), stdout=ChildOutput(heard.append),
        stderr=ChildOutput(), on_exit=lambda status: None,
    )  # fmt: skip
    await asyncio.wait_for(child.exited.wait(), PATIENCE_S)
    assert child.status == status
    left = int(b"".join(heard))
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not wait_gone([psutil.Process(left)])


def test_the_group_of_a_child_is_signalled_before_its_number_is_free(monkeypatch):
    """A number that is free may be another group's by then."""
    found = []
    killpg = os.killpg

    def signal_group(group, number):
        found.append(psutil.Process(group).status())
        killpg(group, number)

    async def main():
        child = ChildProcess(
            ["sh", "-c", "exit 3"], env=os.environ, cwd="/", pass_fds=(), stdout=ChildOutput(),
            stderr=ChildOutput(), on_exit=found.append,
        )  # fmt: skip
        await asyncio.wait_for(child.exited.wait(), PATIENCE_S)
        assert not psutil.pid_exists(child.pid)

    monkeypatch.setattr(os, "killpg", signal_group)
    asyncio.run(main())
    assert found == [psutil.STATUS_ZOMBIE, 3]


@in_asyncio
async def test_what_a_child_left_writing_is_not_read_for_ever(monkeypatch):
    """A descendant in a session of its own may write faster than we read."""
    output = ChildOutput()
    output.child_started()
    monkeypatch.setattr(os, "read", lambda _fd, nbytes: b"y" * nbytes)
    output.finish()
    assert len(output.tail) == pipes_module.TAIL_CHARACTERS
