"""Worlds of two hosts: what a cell, a question and an end are like there."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading

import numpy as np
import psutil
import pytest
from support.hosts.cutting import cut
from support.hosts.hosts_of_one_machine import (
    HOSTS,
    family_of,
    host_of,
    python_of_other_numpy,
    start,
)
from support.inside import root_pid
from support.programs.launching import Running
from support.programs.processes import wait_gone
from support.promise import BOUND_S, PATIENCE_S, SILENCE_S, after_silence_s, within
from support.ranks.cells import BackgroundCell, wait_idle, wait_in
from support.ranks.sampling import Reader
from support.runs.tiers import deep_but
from support.waiting import wait_until

from phalanx.errors import CellError, CollectiveMismatch, DistributedError
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.widgets import monitor, topology
from phalanx.widgets.frames.rates import Rates
from phalanx.workspace import Workspace
from phalanx.workspace.cells import stopping


@pytest.fixture(scope="module")
def ws():
    with start(silence=SILENCE_S) as workspace:
        yield workspace


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


def test_the_status_has_each_ranks_memory_its_cell_and_for_how_long(ws, gate):
    with BackgroundCell(ws, f"\nif rank != 0: {gate.wait}\npx.np", ranks=(0, 1, 3)):
        wait_until(lambda: ws.topology().ranks[0].state == "idle", "rank 0 has ended its part")
        wait_until(lambda: ws.topology().ranks[3].cell_s >= 1, "the cell has run for a second")
        t = ws.topology()
        words = [line for line in topology(t).text.splitlines() if line.startswith("    rank")]
        gate.open()
    assert [info.cell for info in t.ranks] == ["", f"if rank != 0: {gate.wait}"[:59] + "…"] * 2
    assert all(re.search(r" pid \d+ +\d{2,} MiB  (idle$|busy )", line) for line in words)
    assert "busy" not in words[0] + words[2]
    for line in (words[1], words[3]):  # the last one is on the other host
        assert re.search(r"busy for \d+ s: `if rank != 0: open\(.*…`", line)
    assert {(info.cell, info.cell_s) for info in ws.topology().ranks} == {("", 0.0)}


def test_traces_of_all_hosts_come_with_their_clocks(ws):
    ws.run("px.all_sum(np.ones(1000))")
    trace = ws.trace()
    here, there = trace.hosts
    assert here.name != there.name == "b"
    assert (here.offset_ns, here.uncertainty_ns) == (0, 0)
    # It is the same machine, in truth.
    assert abs(there.offset_ns) <= there.uncertainty_ns < 500_000_000
    assert {int(rank) for rank in trace.records.rank} == {0, 1, 2, 3}


@pytest.mark.parametrize("gone", [0, 3])
def test_a_rank_whose_cell_is_over_is_named_across_hosts(ws, gone):
    with pytest.raises(CellError, match=f"rank {gone} on .*ended its cell; all_sum #"):
        ws.run(f"px.all_sum(1) if rank != {gone} else None")
    assert ws.run("px.all_sum(1)")[0].value == "4"


@pytest.mark.parametrize(
    ("waiting", "call", "what"),
    [
        (1, "px.recv((1,), np.float32, 3)", "recv #1 from rank 3"),
        (1, "px.send(np.zeros(40_000_000, np.uint8), 3)", "send #1 to rank 3"),
        (2, "px.recv((1,), np.float32, part.size() - 1, group=part)", "recv #1 from rank 3 in the split"),
    ],
)  # fmt: skip
def test_a_message_that_nobody_will_send_or_take_is_found_across_hosts(ws, waiting, call, what):
    ws.run("part = world.split(0 if rank else None)")
    with pytest.raises(CellError, match=f"rank 3 on b: ended its cell; {what}"):
        ws.run(f"if rank == {waiting}: {call}")


@pytest.mark.parametrize("gone", [1, 3])
def test_what_a_rank_that_has_ended_had_queued_is_waited_for_across_hosts(ws, gate, gone):
    code = (
        f"x = np.arange(100_000.)\nif rank == {gone}: work = px.all_sum(x, async_op=True)\n"
        f"else:\n    if rank == 2: {gate.wait}\n    got = px.all_sum(x)"
    )
    with BackgroundCell(ws, code) as cell:
        wait_idle(ws, gone)
        wait_in(ws, "all_sum", 0)
        gate.open()
    assert cell.error is None
    ws.run(f"if rank == {gone}: got = work.wait()")
    assert [result.value for result in ws.run("(got == 4 * x).all().item()")] == ["True"] * 4


@pytest.mark.promise
@pytest.mark.parametrize(
    "call",
    ["px.recv((1,), np.float32, 3 - rank)", "px.send(np.zeros(40_000_000, np.uint8), 3 - rank)"],
)
def test_ranks_of_two_hosts_that_wait_for_each_other_are_told(ws, call):
    with (
        within(after_silence_s(max(SILENCE_S, BOUND_S))),
        pytest.raises(CollectiveMismatch, match="ranks 0,3 wait for each other: rank 0 in "),
    ):
        ws.run(call)
    assert ws.run("px.all_sum(1)")[3].value == "4"


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


WITHOUT_RANK_3 = "world.barrier()\nif rank != 3: px.all_sum(1)\nelse:\n    while True: pass"


def test_where_ranks_of_another_host_are_while_they_run(ws):
    with BackgroundCell(ws, "if rank == 3:\n    while True: pass\npx.all_sum(1)") as cell:
        wait_in(ws, "all_sum", 0, 1, 2)
        wait_until(lambda: "cell line 2" in ws.stacks()[3], "rank 3 is in its loop")
        assert "in all_sum" in ws.stacks()[2]
        ws.interrupt()
    assert cell.error is not None


LOOP = """
import pathlib, time
n = 0
while True:
    px.all_sum(np.ones(10))
    if rank == n == 0: pathlib.Path({path!r}).touch()
    n += 1
    if rank == 1: time.sleep(0.001)
    if rank == 2: px.send(np.full(1, n), 0)
    if rank == 0: px.recv((1,), "int64", 2)
"""


def test_a_stop_keeps_ranks_of_two_hosts_in_step(ws, monkeypatch, tmp_path):
    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)
    epoch = ws.run("px.init().describe()['epoch']")
    path = tmp_path / "stepped"
    with BackgroundCell(ws, LOOP.format(path=str(path))) as cell:
        # Until then a rank may not have called an operation, and a stop interrupts it at once.
        wait_until(path.exists, "all ranks are in the loop")
        ws.interrupt()
    assert cell.error is not None
    assert len({result.value for result in ws.run("n")}) == 1
    ws.run("if rank == 2: px.send(np.full(1, -1), 0)")  # where one was left, that one would come
    assert ws.run("px.recv((1,), 'int64', 2).tolist()", ranks=[0])[0].value == "[-1]"
    assert ws.run("px.init().describe()['epoch']") == epoch


@pytest.mark.promise
def test_a_frozen_rank_of_another_host_is_named_and_the_others_go_on(ws):
    frozen = psutil.Process(ws.topology().ranks[3].pid)
    with BackgroundCell(ws, WITHOUT_RANK_3) as cell:
        wait_in(ws, "all_sum", 2)
        try:
            with within(after_silence_s(SILENCE_S) + 1.0):
                frozen.send_signal(signal.SIGSTOP)
                wait_idle(ws, 0, 1, 2)
            assert "stopped (frozen)" in ws.stacks()[3]
        finally:
            frozen.send_signal(signal.SIGCONT)
            ws.interrupt()
    assert f"rank 3 on b: has been stopped (frozen) for {SILENCE_S:g} s" in str(cell.error)


@pytest.mark.promise
def test_a_rank_that_is_killed_on_another_host_is_named_and_replaced(ws):
    killed = psutil.Process(ws.topology().ranks[3].pid)
    with BackgroundCell(ws, WITHOUT_RANK_3) as cell:
        wait_in(ws, "all_sum", 2)
        with within():
            killed.kill()
            cell.wait()
    assert "rank 3 on b: killed by signal 9 (SIGKILL)" in str(cell.error)
    assert ws.restart() == (3,)
    assert ws.run("px.all_sum(1)")[0].value == "4"
    assert ws.topology().ranks[3].pid != killed.pid


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    ("number", "why"),
    [
        pytest.param(
            signal.SIGKILL, "its supervisor was killed by signal 9 (SIGKILL)", id="killed"
        ),
        pytest.param(signal.SIGSTOP, f"it has not answered for {SILENCE_S:g} s", id="frozen"),
    ],
)
def test_a_host_that_is_lost_is_named_sampled_as_dead_and_started_anew(ws, number, why):
    reader = Reader(ws)
    before = reader.until(lambda its: its.ranks[2].pid)
    host = host_of(ws, 2)
    lost = [host, *host.children(recursive=True)]
    with BackgroundCell(ws, WITHOUT_RANK_3) as cell:
        wait_in(ws, "all_sum", 2)
        with within(1.5 + BOUND_S):
            host.send_signal(number)
            cell.wait()
    assert f"rank 2 on b: lost its host: {why}" in str(cell.error)
    if number == signal.SIGSTOP:  # it comes back, and is told
        host.send_signal(signal.SIGCONT)
    assert wait_gone(lost, BOUND_S) == []
    assert [info.state for info in ws.topology().ranks] == ["idle", "idle", "dead", "dead"]
    dead = reader.until(lambda its: its.ranks[2].state == its.ranks[3].state == "dead")
    assert dead.ranks[2].detail.startswith("lost its host: ")
    assert dead.ranks[2].pid == before.ranks[2].pid
    assert dead.ranks[0].state == "idle"
    ws.run("kept = rank")
    assert ws.restart() == (2, 3)
    assert ws.run("px.all_sum(1)")[3].value == "4"
    assert ws.run("kept", ranks=[1])[0].value == "1"


class Lines(logging.Handler):
    """The lines that were logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def logged():
    lines, log = Lines(), logging.getLogger("phalanx.workspace")
    log.addHandler(lines)
    yield lines.texts
    log.removeHandler(lines)


@pytest.fixture(scope="module")
def lone(tmp_path_factory, logged):
    """One rank, on the other host, with a folder and an environment that it is given."""
    folder = str(tmp_path_factory.mktemp("there"))
    python = python_of_other_numpy(tmp_path_factory.mktemp("python"))
    remote = RemoteOptions(launcher="local", cwd=folder, env={"GIVEN": folder}, python=python)
    with start(remote=remote, hosts=(HostPlan("b", 1),), silence=SILENCE_S) as workspace:
        yield workspace


def test_a_start_warns_in_one_line_of_versions_that_differ(lone, logged):
    (line,) = logged
    assert line.startswith(f"numpy is 1.2.3 on b and {np.__version__} here: ")
    assert line.endswith(f" -m pip install numpy=={np.__version__}")


@pytest.mark.slow
def test_a_host_that_leaves_by_itself_says_why(lone):
    root, host = psutil.Process(root_pid(lone)), host_of(lone, 0)
    root.send_signal(signal.SIGSTOP)
    try:
        assert wait_gone([host]) == []
    finally:
        root.send_signal(signal.SIGCONT)
    wait_until(lambda: lone.topology().ranks[0].state == "dead", "the root has seen it")
    why = lone.topology().ranks[0].detail
    assert "lost its host: the supervisor at tcp://" in why
    assert f"has sent nothing for {SILENCE_S:g} s" in why


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("linger_s", deep_but([60.0], [0.0, 60.0]))
def test_a_host_whose_root_is_killed_ends_at_once(linger_s):
    """Also where it may linger: a refused host knows that there is no root any more."""
    ws = start(linger=linger_s)
    try:
        with BackgroundCell(ws, "world.barrier()\npx.recv((1,), np.float32, 0)"):
            wait_in(ws, "recv", 3)
            host = host_of(ws, 2)
            there = [host, *host.children(recursive=True)]
            family = family_of(ws)
            psutil.Process(root_pid(ws)).kill()
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
    with pytest.raises(DistributedError, match=r"^b: .* Python has not answered yet, after 0\.5 s"):
        start(remote=remote)


def test_a_network_card_that_is_not_there_is_named():
    remote = RemoteOptions(launcher="local", interface="nocard0")
    with pytest.raises(DistributedError, match=r"no interface 'nocard0'") as caught:
        start(remote=remote, hosts=(HostPlan("b", 1),))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.promise
def test_an_owner_that_comes_back_sees_the_missed_output_of_all_hosts_and_stops_them(tmp_path):
    go, progress = tmp_path / "go", []
    with start(linger=PATIENCE_S, detach=True, progress=progress.append) as ws:
        ws.run("import os, threading, time\nprint('before', rank)")
        ws.run(
            f"def late():\n    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            f"    print('late', rank, flush=True)\n    open(f'{tmp_path}/{{rank}}', 'w').close()\n"
            "threading.Thread(target=late).start()"
        )
        name = ws.name
    assert [(its.host, its.name, its.state) for its in progress] == [
        (1, "b", "starting"),
        (1, "b", "up"),
    ]
    go.touch()
    have_said = {go, *(tmp_path / str(rank) for rank in range(4))}
    wait_until(lambda: set(tmp_path.iterdir()) == have_said, "all have printed")
    with Workspace.attach(name) as ws:
        wait_until(lambda: all("late" in ws.output(rank) for rank in range(4)), "all is there")
        assert ws.run("px.all_sum(1)")[3].value == "4"
        assert ws.output(3).splitlines()[:2] == ["before 3", "late 3"]
        family = family_of(ws)
        assert len(family) > 8
        ws.stop()
        assert wait_gone(family, BOUND_S) == []


# -- connections between supervisors that break: nobody notices --------------------------------


def test_a_cell_goes_on_over_connections_that_break(ws, tmp_path):
    host = host_of(ws, 2)
    pids = [info.pid for info in ws.topology().ranks]
    turns = tmp_path / "turns"
    code = (
        "import os, time\nturn = 0\n"
        f"while px.all_max(not os.path.exists({str(tmp_path / 'over')!r})):\n"
        "    turn += int(px.all_sum(1)) // size\n"
        f"    if rank == 3: open({str(turns)!r}, 'a').write('x')\n"
        "    time.sleep(0.01)\n"
        "turn"
    )

    def n_turns():
        return turns.stat().st_size if turns.exists() else 0

    with BackgroundCell(ws, code) as cell:
        for _ in range(5):
            seen = n_turns()
            wait_until(lambda seen=seen: n_turns() >= seen + 5, "the cell goes on")
            assert cut(root_pid(ws), host.pid) == 1
            # It is made anew; what nobody misses has no other sign.
            wait_until(lambda: connections(ws, host), "the supervisors are connected again")
        seen = n_turns()
        wait_until(lambda: n_turns() >= seen + 5, "the cell goes on")
        (tmp_path / "over").touch()
    assert cell.values() == [str(n_turns())] * 4
    assert [info.pid for info in ws.topology().ranks] == pids
    assert host.is_running()


def connections(ws, host):
    """Return the connections that the root has with the supervisor of a host."""
    root = psutil.Process(root_pid(ws))
    theirs = {c.laddr for c in host.net_connections("tcp") if c.status == "ESTABLISHED"}
    return [c for c in root.net_connections("tcp") if c.raddr in theirs]


def test_what_the_root_asks_is_answered_after_a_cut(ws):
    host = host_of(ws, 2)
    assert cut(root_pid(ws), host.pid) == 1
    ws.run("print(rank)")
    assert ws.output(3).splitlines()[-1] == "3"
    wait_until(lambda: connections(ws, host), "the supervisors are connected again")
    assert cut(root_pid(ws), host.pid) == 1
    assert ws.restart([3], force=True) == (3,)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["4"] * 4


N_LINES = 40_000


@pytest.mark.slow
def test_a_script_loses_no_line_and_says_none_twice_over_connections_that_break(tmp_path):
    script, go = tmp_path / "many.py", tmp_path / "go"
    script.write_text(
        f"import os, time\nfor i in range({N_LINES}):\n    print(i, 'x' * (i % 200))\n"
        f"    while i == {N_LINES // 2} and not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    launcher = Running(
        "--hosts", "b.invalid,c.invalid", "--launcher", "local", "--label", "rank", script
    )
    shown: dict[bytes, list[bytes]] = {}

    def read():
        for line in launcher.popen.stdout:
            # A line whose rest is late is shown in parts, as a prompt is: what is in them counts.
            shown.setdefault(line[:4], []).append(line[4:].rstrip(b"\n"))

    reader = threading.Thread(target=read)
    n_cuts = 0

    def has_ended_though_cut():
        nonlocal n_cuts
        with contextlib.suppress(psutil.Error, OSError):  # they end meanwhile
            n_cuts += sum(cut(launcher.popen.pid, host.pid) for host in hosts)
        if n_cuts > 2:
            go.touch()
        return not reader.is_alive()

    with contextlib.closing(launcher):  # a wait that fails ends it, and so the reader
        reader.start()
        wait_until(lambda: len(shown) == 2 or not reader.is_alive(), "both ranks print")
        assert reader.is_alive(), launcher.end()
        hosts = launcher.ranks
        wait_until(has_ended_though_cut, "all is printed", 3 * PATIENCE_S, poll_s=0.05)
        code, said = launcher.end()
    assert code == 0, said
    said = b"".join(b"%d %s" % (i, b"x" * (i % 200)) for i in range(N_LINES))
    assert {label: b"".join(parts) == said for label, parts in shown.items()} == {
        b"[0] ": True,
        b"[1] ": True,
    }
    assert n_cuts > 2


# -- samples: all ranks are in them, on one clock, with the wires between ----------------------


def test_ranks_of_the_other_host_are_sampled(ws):
    sample = Reader(ws).until(lambda its: its.ranks[3].pid)
    assert [its.detail for its in sample.ranks] == [""] * 4
    assert [its.state for its in sample.ranks] == ["idle"] * 4
    assert [its.pid for its in sample.ranks] == [its.pid for its in ws.topology().ranks]


def test_a_sleeper_on_the_other_host_is_named_meanwhile_and_afterwards(ws, gate):
    reader = Reader(ws)
    begin_ns = reader.until(lambda its: its.ranks[3].pid).now_ns
    missed = [((0, 1, 2), (3,))]
    with BackgroundCell(ws, f"if rank == 3: {gate.wait}\npx.all_sum(np.ones(1000))"):
        first = reader.until(lambda its: [(w.ranks, w.missing) for w in its.waits] == missed)
        # So long at least is rank 3 late.
        waited_ns = reader.until(lambda its: its.now_ns > first.now_ns + 5e8).now_ns - first.now_ns
        gate.open()
        sample = reader.until(lambda its: its.late)
    assert first.waits[0].what.startswith("all_sum #")
    (late,) = sample.late
    assert (sample.compared, late.rank, late.count) == (1, 3, 1)
    # The clocks of hosts are known up to some milliseconds, on a busy machine to more.
    assert waited_ns / 2 < late.late_ns < sample.now_ns - begin_ns + 1e9
    assert "rank 3 held the others up for" in monitor(ws.trace(), ws.topology()).text
    # What rank 2 did there is told of in this machine's time, and by itself.
    spans = {
        span.number: span for its in reader.seen for span in its.ranks[2].spans if span.done_ns
    }
    its = max(spans.values(), key=lambda span: span.begun_ns)
    assert its.op == "all_sum"
    assert its.wait_ns > waited_ns / 2
    assert reader.seen[0].now_ns < its.begun_ns < its.done_ns < reader.seen[-1].now_ns + 10**9


def test_bytes_between_hosts_are_counted_at_both_ends(ws):
    reader = Reader(ws)
    before = reader.until(lambda its: its.ranks[3].pid).ranks
    ws.run("px.send(np.ones(1 << 17), 3) if rank == 0 else None\n"
           "got = px.recv((1 << 17,), np.float64, 0) if rank == 3 else None")  # fmt: skip

    def passed(ranks, rank, peer, way):
        return ranks[rank].wires.get(peer, (0, 0))[way] - before[rank].wires.get(peer, (0, 0))[way]

    after = reader.until(lambda its: passed(its.ranks, 3, 0, 1) >= 1 << 20).ranks
    assert passed(after, 0, 3, 0) == passed(after, 3, 0, 1)
    # What the pictures make of it: a link's traffic.
    rates = Rates()
    rates.take(reader.seen)
    assert (0, 3) in {(link.source, link.target) for link in rates.links()}
