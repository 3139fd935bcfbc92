"""Worlds of two hosts: what a cell, a question and an end are like there."""

from __future__ import annotations

import signal
import socket
import time

import psutil
import pytest
from hosts_of_one_machine import HOSTS, Cell, family_of, host_of, start
from processes import wait_gone

from phalanx.errors import CellError, CollectiveMismatch, DistributedError
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.workspace import Workspace, _bench

BOUND_S = 2.0  # design.md section 5: on one machine


@pytest.fixture(scope="module")
def ws():
    with start(silence=1.0) as workspace:
        yield workspace


def wait_for(condition, timeout_s=10.0):
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


def test_ranks_are_numbered_by_host_and_meet(ws):
    values = [result.value for result in ws.run("(rank, size, px.all_sum(rank + 1))")]
    assert values == [f"({rank}, 4, 10)" for rank in range(4)]
    topology = ws.topology()
    assert [info.host for info in topology.ranks] == [0, 0, 1, 1]
    assert topology.hosts[1].name == "b"
    assert topology.hosts[1].address == "127.0.0.1"
    assert topology.hosts[1].cores > 0
    assert all(info.pid > 0 and info.rss_nbytes > 1 << 20 for info in topology.ranks)
    assert [link.transport for link in topology.links] == ["arena", *["tcp"] * 4, "arena"]


def test_ranks_of_the_other_host_have_a_supervisor_there(ws):
    here, there = host_of(ws, 1), host_of(ws, 2)
    assert host_of(ws, 0) == here != there == host_of(ws, 3)
    assert here.pid == ws._root.pid
    assert "phalanx.supervisor host" in " ".join(there.cmdline())


def test_output_is_kept_where_the_rank_is(ws):
    ws.run("for i in range(50): print(rank, 'line', i)")
    assert ws.output(3).splitlines()[-2:] == ["3 line 48", "3 line 49"]
    with pytest.raises(ValueError, match="rank"):
        ws.output(4)


def test_traces_of_all_hosts_come_with_their_clocks(ws):
    ws.run("px.all_sum(np.ones(1000))")
    trace = ws.trace()
    here, there = trace.hosts
    assert here.name != there.name == "b"
    assert (here.offset_ns, here.uncertainty_ns) == (0, 0)
    # It is the same machine, in truth.
    assert abs(there.offset_ns) <= there.uncertainty_ns < 50_000_000
    assert {int(rank) for rank in trace.records.rank} == {0, 1, 2, 3}


@pytest.mark.parametrize("gone", [0, 3])
def test_a_rank_whose_cell_is_over_is_named_across_hosts(ws, gone):
    with pytest.raises(CellError, match=f"rank {gone} on .*ended its cell; all_sum #"):
        ws.run(f"px.all_sum(1) if rank != {gone} else None")
    assert ws.run("px.all_sum(1)")[0].value == "4"


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_message_that_nobody_will_send_is_found_across_hosts(ws, waiting):
    with pytest.raises(CellError, match="rank 3 on b: ended its cell; recv #1 from rank 3"):
        ws.run(f"px.recv((1,), np.float32, 3) if rank == {waiting} else None")


def test_ranks_of_two_hosts_that_disagree_are_told(ws):
    with pytest.raises(CollectiveMismatch, match="all_sum #1"):
        ws.run("px.all_sum(np.ones(3 if rank < 2 else 4))")
    assert ws.run("px.all_sum(1)")[3].value == "4"


def test_this_machine_is_to_hold_the_arrays_of_its_own_ranks(ws, monkeypatch):
    monkeypatch.setattr(_bench, "available_memory", lambda: 2 * 3 * 64)
    assert [m.nbytes for m in ws.bench(begin=64, end=64, iterations=1)] == [64]
    with pytest.raises(ValueError, match="^128 B on 2 ranks needs 384 B of memory per rank"):
        ws.bench(begin=128, end=128)


def test_the_limit_of_two_hosts_is_that_of_the_wire_and_measured_once(ws):
    sweep = ws.bench(begin=8, end=64, factor=8, iterations=1)
    assert [m.n_wrong for m in sweep] == [0, 0]
    (limit,) = sweep.limits
    assert limit.name == "wire between hosts"
    assert limit.gbs > 0.01
    assert limit.how.startswith(f"one plain tcp stream from {socket.gethostname()} to b; ")
    again = ws.bench(end=8, iterations=1)
    assert [m.n_wrong for m in again] == [0]
    assert again.limits == sweep.limits == ws.sweeps[-1].limits


def test_where_ranks_of_another_host_are_while_they_run(ws):
    cell = Cell(ws, "if rank == 3:\n    while not go: pass\npx.all_sum(1)".replace("go", "False"))
    try:
        wait_for(lambda: "in all_sum" in str(ws.stacks()[2]))
        assert "cell line 2" in str(ws.stacks()[3])
        details = [info.detail for info in ws.topology().ranks]
        assert all("in all_sum" in detail for detail in details[:3])
    finally:
        ws.interrupt()
    assert isinstance(cell.end(), BaseException)


def test_a_frozen_rank_of_another_host_is_named_and_the_others_go_on(ws):
    frozen = psutil.Process(ws.topology().ranks[3].pid)
    cell = Cell(ws, "world.barrier()\nif rank != 3: px.all_sum(1)\nelse:\n    while True: pass")
    try:
        wait_for(lambda: "in all_sum" in ws.topology().ranks[2].detail)
        frozen.send_signal(signal.SIGSTOP)
        wait_for(lambda: all(info.state == "idle" for info in ws.topology().ranks[:3]), 3.0)
        assert "stopped (frozen)" in str(ws.stacks()[3])
    finally:
        frozen.send_signal(signal.SIGCONT)
        ws.interrupt()
    assert "rank 3 on b: has been stopped (frozen) for 1 s" in str(cell.end())


def test_a_rank_that_is_killed_on_another_host_is_named_and_replaced(ws):
    cell = Cell(ws, "world.barrier()\nif rank != 3: px.all_sum(1)\nelse:\n    while True: pass")
    wait_for(lambda: "in all_sum" in ws.topology().ranks[2].detail)
    killed = psutil.Process(ws.topology().ranks[3].pid)
    began_s = time.monotonic()
    killed.kill()
    assert "rank 3 on b: killed by signal 9 (SIGKILL)" in str(cell.end())
    assert time.monotonic() - began_s < BOUND_S
    assert ws.restart() == (3,)
    assert ws.run("px.all_sum(1)")[0].value == "4"
    assert ws.topology().ranks[3].pid != killed.pid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "why"),
    [
        pytest.param(
            signal.SIGKILL, "its supervisor was killed by signal 9 (SIGKILL)", id="killed"
        ),
        pytest.param(signal.SIGSTOP, "it has not answered for 1 s", id="frozen"),
    ],
)
def test_a_host_that_is_lost_is_named_and_started_anew(ws, number, why):
    cell = Cell(ws, "world.barrier()\nif rank != 3: px.all_sum(1)\nelse:\n    while True: pass")
    wait_for(lambda: "in all_sum" in ws.topology().ranks[2].detail)
    host = host_of(ws, 2)
    lost = [host, *host.children(recursive=True)]
    began_s = time.monotonic()
    host.send_signal(number)
    assert f"rank 2 on b: lost its host: {why}" in str(cell.end())
    assert time.monotonic() - began_s < 1.5 + BOUND_S
    if number == signal.SIGSTOP:  # it comes back, and is told
        host.send_signal(signal.SIGCONT)
    assert wait_gone(lost, BOUND_S) == []
    assert [info.state for info in ws.topology().ranks] == ["idle", "idle", "dead", "dead"]
    ws.run("kept = rank")
    assert ws.restart() == (2, 3)
    assert ws.run("px.all_sum(1)")[3].value == "4"
    assert ws.run("kept", ranks=[1])[0].value == "1"


def test_all_hosts_recover_together(ws):
    code = (
        "try:\n    px.all_sum(1) if rank != 3 else 1 / 0\nexcept Exception: pass\n"
        "px.recover()\npx.all_sum(1)"
    )
    assert [result.value for result in ws.run(code)] == ["4"] * 4


@pytest.mark.slow
def test_stop_leaves_nothing():
    progress = []
    ws = start(progress=progress.append)
    family = family_of(ws)
    ws.stop()
    assert wait_gone(family, BOUND_S) == []
    assert len(family) > 8
    assert [(its.host, its.name, its.state) for its in progress] == [
        (1, "b", "starting"),
        (1, "b", "up"),
    ]


@pytest.mark.slow
def test_a_host_that_leaves_by_itself_says_why():
    with start(silence=1.0, linger=0.0) as ws:
        root, host = psutil.Process(ws._root.pid), host_of(ws, 2)
        root.send_signal(signal.SIGSTOP)
        try:
            assert wait_gone([host], 10.0) == []
        finally:
            root.send_signal(signal.SIGCONT)
        wait_for(lambda: ws.topology().ranks[2].state == "dead")
        why = ws.topology().ranks[2].detail
        assert "lost its host: the supervisor at tcp://" in why
        assert "has not been heard for 1 s" in why


@pytest.mark.slow
@pytest.mark.parametrize("linger_s", [0.0, 60.0])
def test_a_host_whose_root_is_killed_ends_at_once(linger_s):
    """Also where it may linger: whoever is refused knows that there is no root any more."""
    ws = start(linger=linger_s)
    try:
        Cell(ws, "world.barrier()\npx.recv((1,), np.float32, 0)")
        wait_for(lambda: "in recv" in ws.topology().ranks[3].detail)
        host = host_of(ws, 2)
        there = [host, *host.children(recursive=True)]
        family = family_of(ws)
        psutil.Process(ws._root.pid).kill()
        assert wait_gone([*family, *there], BOUND_S) == []
    finally:
        ws.stop()


def test_all_hosts_that_cannot_be_started_are_named(tmp_path):
    no_phalanx = tmp_path / "python"
    no_phalanx.write_text("#!/bin/sh\necho noise >&2; echo no phalanx here >&2; exit 3\n")
    no_phalanx.chmod(0o755)
    remote = RemoteOptions(launcher="local", python=str(no_phalanx))
    hosts = (HOSTS[0], HOSTS[1], HostPlan("c", 1))
    progress = []
    with pytest.raises(DistributedError) as caught:
        start(hosts=hosts, remote=remote, progress=progress.append)
    assert str(caught.value) == "b: no phalanx here\nc: no phalanx here"
    assert {its.name for its in progress if its.state == "failed"} == {"b", "c"}


def test_a_host_that_does_not_come_up_in_time_is_named(tmp_path):
    asleep = tmp_path / "python"
    asleep.write_text("#!/bin/sh\nexec sleep 60\n")
    asleep.chmod(0o755)
    remote = RemoteOptions(launcher="local", python=str(asleep), timeout_s=0.5)
    with pytest.raises(DistributedError, match=r"^b: its supervisor was not up within 0\.5 s$"):
        start(remote=remote)


def test_a_folder_that_was_asked_for_and_is_not_there_is_named(tmp_path):
    remote = RemoteOptions(launcher="local", cwd=str(tmp_path / "none"))
    with pytest.raises(DistributedError, match="^b: it has no folder .*/none: make it there"):
        start(remote=remote, hosts=(HostPlan("b", 1),))


def test_a_network_card_that_is_not_there_is_named():
    remote = RemoteOptions(launcher="local", interface="nocard0")
    with pytest.raises(DistributedError, match=r"no interface 'nocard0'") as caught:
        start(remote=remote, hosts=(HostPlan("b", 1),))
    assert "\n" not in str(caught.value)


def test_what_the_ranks_of_another_host_are_given(tmp_path):
    remote = RemoteOptions(launcher="local", cwd=str(tmp_path), env={"GIVEN": "there"})
    with start(remote=remote, hosts=(HostPlan("b", 1),)) as ws:
        values = ws.run("import os; (os.getcwd(), os.environ['GIVEN'], px.all_sum(1))")
        # A long path is shown over several lines.
        assert " ".join(values[0].value.split()) == f"('{tmp_path}', 'there', 1)"


@pytest.mark.slow
def test_whoever_comes_back_is_shown_what_was_missed_on_all_hosts():
    with start(linger=20.0, detach=True) as ws:
        ws.run("import threading, time\nprint('before', rank)")
        ws.run(
            "def late():\n    time.sleep(1.0)\n    print('late', rank)\n"
            "threading.Thread(target=late).start()"
        )
        name = ws.name
    with Workspace.attach(name) as ws:
        try:
            wait_for(lambda: all("late" in ws.output(rank) for rank in range(4)))
            assert ws.run("px.all_sum(1)")[3].value == "4"
            assert ws.output(3).splitlines()[:2] == ["before 3", "late 3"]
        finally:
            ws.stop()
