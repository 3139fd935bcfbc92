"""Who watches does not push in, and what a courteous process starts is not courteous for ever."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import psutil
import pytest
from support.loops import run_jumping
from support.waiting import wait_until

from phalanx.protocol import WatchSamples
from phalanx.supervisor._courtesy import Courtesy, pushing_in
from phalanx.workspace import Workspace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's own call")
MARK = getattr(os, "SCHED_RESET_ON_FORK", 0)
SAY = "import os; print(os.sched_getscheduler(0))"


def policies(pid: int) -> set[int]:
    """Of all its threads, without the mark."""
    return {os.sched_getscheduler(its.id) & ~MARK for its in psutil.Process(pid).threads()}


def policy_of_child() -> int:
    return int(subprocess.run([sys.executable, "-c", SAY], capture_output=True, check=True).stdout)


@pytest.fixture
def thread():
    """Some other thread of this process."""
    over = threading.Event()
    its = threading.Thread(target=over.wait)
    its.start()
    yield its
    over.set()
    its.join()


def test_all_threads_are_courteous_until_a_while_after_the_last_word(thread):
    async def main():
        courtesy = Courtesy(asyncio.get_running_loop())
        courtesy.show(0.05)
        during = policies(os.getpid())
        is_over = threading.Event()
        late = threading.Thread(target=is_over.wait)  # one that is started meanwhile
        late.start()
        await asyncio.sleep(0.03)
        courtesy.show(0.05)
        await asyncio.sleep(0.04)
        still = policies(os.getpid()) - {os.SCHED_BATCH}
        await asyncio.sleep(0.02)
        after = policies(os.getpid())
        is_over.set()
        late.join()
        assert still == set()
        return during, after

    assert run_jumping(main) == ({os.SCHED_BATCH}, {os.SCHED_OTHER})


def test_what_is_started_meanwhile_is_as_it_would_have_been():
    async def main():
        courtesy = Courtesy(asyncio.get_running_loop())
        courtesy.show(5)
        inherited = policy_of_child()
        with pushing_in():
            own = policy_of_child()
        during = policies(os.getpid())
        courtesy.end()
        return inherited, own, during

    assert asyncio.run(main()) == (os.SCHED_BATCH, os.SCHED_OTHER, {os.SCHED_BATCH})


def test_what_a_user_has_chosen_stays():
    code = """
import asyncio, os
from phalanx.supervisor._courtesy import Courtesy, pushing_in
async def main():
    courtesy = Courtesy(asyncio.get_running_loop())
    courtesy.show(5)
    with pushing_in():
        print(os.sched_getscheduler(0))
    courtesy.end()
    print(os.sched_getscheduler(0))
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert said.stdout.split() == [str(os.SCHED_BATCH)] * 2


def wait_for(supervisor: int, policy: int) -> None:
    wait_until(lambda: policies(supervisor) == {policy}, f"all threads of policy {policy}")


def test_a_supervisor_is_courteous_while_somebody_watches_and_its_ranks_never_are():
    def pids(workspace):
        return {int(its.value) for its in workspace.run("import os; os.getpid()")}

    with Workspace.start(n=2, linger=0) as workspace:
        before = pids(workspace)
        (supervisor,) = {psutil.Process(pid).ppid() for pid in before}
        assert policies(supervisor) == {os.SCHED_OTHER}
        workspace.samples()
        wait_for(supervisor, os.SCHED_BATCH)
        workspace.restart(ranks=[1], force=True)
        after = pids(workspace)
        assert len(after - before) == 1
        assert all(policies(pid) == {os.SCHED_OTHER} for pid in after)
        workspace._root._samples._send(WatchSamples(0))
        wait_for(supervisor, os.SCHED_OTHER)
