"""A workspace of real processes: boot, cells, deaths, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import msgspec
import numpy as np
import psutil
import pytest
import zmq
from processes import wait_gone
from support.cells import BackgroundCell, wait_busy, wait_in
from support.promise import BOUND_S, within
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.protocol import Hello
from phalanx.workspace import Workspace, _connect


def processes_of(root: int) -> list[psutil.Process]:
    """Return the root supervisor and all that it started."""
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def n_descriptors() -> int:
    return psutil.Process().num_fds()


def test_every_rank_knows_who_it_is(ws):
    values = [result.value for result in ws.run("(rank, size, world.rank(), px.__name__)")]
    assert values == [f"({rank}, 3, {rank}, 'phalanx')" for rank in range(3)]


def test_a_sum_over_all_ranks(ws):
    (first, *others) = ws.run("px.all_sum(np.arange(4) + rank).tolist()")
    assert first.value == str([3, 6, 9, 12])
    assert {other.value for other in others} == {first.value}


def test_variables_stay_between_cells(ws):
    ws.run("kept = rank * 10")
    assert [result.value for result in ws.run("kept", ranks=[2, 0])] == ["0", "20"]


def test_values_travel_both_ways(ws):
    array = np.arange(300_000.0).reshape(3, -1)
    ws.push({"given": array, "factor": 2}, ranks=[0, 2])
    assert [r.value for r in ws.run("(factor * given).sum().item()", ranks=[0, 2])] == [
        repr((2 * array).sum().item())
    ] * 2
    assert ws.pull("rank") == [0, 1, 2]
    back = ws.pull("given", ranks=2)
    assert (back == array).all()
    assert ws.pull("size", ranks=[1]) == [3]


def test_values_that_are_not_there(ws):
    with pytest.raises(NameError, match="nowhere"):
        ws.pull("nowhere")
    with pytest.raises(ValueError, match="'a b' is not the name"):
        ws.pull("a b")
    with pytest.raises(ValueError, match="'class' is not the name"):
        ws.push({"class": 1})
    with pytest.raises(ValueError, match="there is no rank 3"):
        ws.pull("rank", ranks=3)


def test_errors_of_ranks_come_together(ws):
    with pytest.raises(CellError) as caught:
        ws.run("if rank != 1: 1 / 0")
    assert str(caught.value) == "ranks 0,2: ZeroDivisionError: division by zero"


def test_a_mismatch_raises_on_all_ranks_and_the_next_cell_runs(ws):
    with pytest.raises(CellError) as caught:
        ws.run("px.all_sum(np.ones(3 if rank else 4))")
    assert {failure[0] for failure in caught.value.failures.values()} == {"CollectiveMismatch"}
    assert set(caught.value.failures) == {0, 1, 2}
    assert "rank 1: all_sum" in str(caught.value)
    assert "(float64, shape (3,)) at cell line 1 met rank 0: all_sum" in str(caught.value)
    before = ws.topology().epoch
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3
    assert ws.topology().epoch == before + 1


def test_a_time_limit_stops_the_ranks_in_a_collective(ws):
    with pytest.raises(TimeoutError, match="longer than 0.5 s"):
        ws.run("if rank != 1: px.all_sum(1)\nelse:\n  import time\n  time.sleep(60)", timeout=0.5)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


def test_await_at_top_level(ws):
    code = "import asyncio\nawait asyncio.sleep(0)\nrank"
    assert [result.value for result in ws.run(code)] == ["0", "1", "2"]


def test_an_interrupt_from_another_thread_stops_the_cell(ws):
    with BackgroundCell(ws, "import time\nwhile True: time.sleep(0.01)") as cell:
        wait_busy(ws)
        ws.interrupt()
    assert isinstance(cell.error, CellError)
    failures = cell.error.failures
    assert {rank: failure[0] for rank, failure in failures.items()} == dict.fromkeys(
        range(3), "KeyboardInterrupt"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ws: ws.run("1", ranks=[7]), "there is no rank 7: the ranks are 0 to 2"),
        (lambda ws: ws.run("1", ranks=[]), "no ranks to run on"),
        (lambda ws: Workspace.start(n=0), "must be a whole number, 1 or more"),
        (lambda ws: Workspace.start(n="two"), "must be a whole number, 1 or more"),
        (lambda ws: Workspace.start(linger=-1), "linger is -1"),
        (lambda ws: Workspace.start(silence=0), "silence is 0"),
        (lambda ws: Workspace.start(transport="rdma"), "transport is 'rdma'"),
    ],
)
def test_mistakes_are_one_line(ws, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(ws)
    assert "\n" not in str(caught.value)


@pytest.mark.promise
def test_a_killed_rank_is_named_and_frees_the_others(breakable):
    ws = breakable
    code = "import time\nif rank == 1: time.sleep(60)\npx.all_sum(1)"
    with BackgroundCell(ws, code) as cell:
        wait_in(ws, "all_sum", 0, 2)
        with within():
            os.kill(ws.topology().ranks[1].pid, signal.SIGKILL)
            cell.wait()
    assert isinstance(cell.error, RankFailure)
    assert cell.error.rank == 1
    assert "SIGKILL" in cell.error.reason
    # In every later operation, too, until the rank is replaced.
    with pytest.raises(CellError, match="RankFailure: rank 1 .*SIGKILL"):
        ws.run("px.all_sum(1)")
    assert [result.value for result in ws.run("rank")] == ["0", "2"]
    assert ws.pull("rank") == [0, 2]
    with pytest.raises(RankFailure, match="rank 1 .*SIGKILL"):
        ws.pull("rank", ranks=1)


def test_a_frozen_rank_does_not_hold_the_others_beyond_their_deadline(breakable, tmp_path):
    ws = breakable
    pid = ws.topology().ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    # Ranks 0 and 2 begin together: the time limit of one must not end before the other has come.
    code = (
        f"import pathlib, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
        "(here / f'in{rank}').touch()\n"
        "while not ((here / 'in0').exists() and (here / 'in2').exists()): time.sleep(0.001)\n"
        "try: px.all_sum(1, timeout=0.5)\nfinally: (here / f'out{rank}').touch()"
    )
    with BackgroundCell(ws, code) as cell:
        freed = {tmp_path / "out0", tmp_path / "out2"}
        wait_until(lambda: freed <= set(tmp_path.iterdir()), "ranks 0 and 2 are out of it")
        os.kill(pid, signal.SIGCONT)
    assert isinstance(cell.error, CellError)
    for rank in (0, 2):
        name, text, _ = cell.error.failures[rank]
        assert name == "CollectiveTimeout"
        assert "missing: rank 1" in text
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.mark.promise
def test_stop_leaves_nothing(own):
    processes = processes_of(own._root.pid)
    before = n_descriptors()
    assert len(processes) == 5  # root, controller, sweeper, two ranks
    own.stop()
    own.stop()
    assert wait_gone(processes, BOUND_S) == []
    assert n_descriptors() < before
    with pytest.raises(DistributedError, match="was stopped"):
        own.run("1")
    with pytest.raises(DistributedError, match="was stopped"):
        own.restart(0, force=True)


def test_a_rank_that_is_told_to_end_ends_by_itself_and_a_start_leaks_nothing(ws, tmp_path):
    """In time, and with what it has registered for its end: nobody has to kill it."""
    ws.run("pass")  # one workspace has been started before: what is made once is there

    def held():
        return n_descriptors(), threading.active_count()

    before = held()
    code = (
        "import atexit, os, sys\n"
        f"def note(what, folder={str(tmp_path)!r}): open(f'{{folder}}/{{what}}', 'w').close()\n"
        "atexit.register(note, 'atexit')\n"
        "sys.excepthook = lambda *error, note=note: note('error')\n"
        "os._exit = lambda code, leave=os._exit, note=note: (note('left'), leave(code))\n"
        f"kept = open({str(tmp_path / 'kept')!r}, 'w'); kept.write('text'); None"
    )
    with Workspace.start(n=1, linger=0) as alone:
        alone.run(code)
    assert {path.name for path in tmp_path.iterdir()} == {"atexit", "kept", "left"}
    assert (tmp_path / "kept").read_text() == "text"
    wait_until(lambda: held() == before, f"{before} descriptors and threads")


@pytest.mark.promise
@pytest.mark.parametrize("victim", ["root", "controller"])
def test_a_killed_part_takes_the_rest_with_it(own, victim):
    processes = processes_of(own._root.pid)
    by_name = {"root": processes[0]}
    by_name["controller"] = next(p for p in processes if "_controller" in " ".join(p.cmdline()))
    by_name[victim].kill()
    # The root is our own child: reap it, as a workspace that stops does.
    with contextlib.suppress(subprocess.TimeoutExpired):
        own._root._root._popen.wait(BOUND_S)
    assert wait_gone(processes, BOUND_S) == []
    with pytest.raises(DistributedError, match="is gone"):
        own.run("1")


CLIENT = """
import sys
from phalanx.workspace import Workspace
ws = Workspace.start(n=2, linger=float(sys.argv[1]))
print(ws._root.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.promise
@pytest.mark.parametrize("linger_s", [0.0, 0.3])  # test_attach.py holds that they do linger
def test_a_killed_client_leaves_nothing_after_its_linger(linger_s):
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(linger_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        processes = processes_of(int(client.stdout.readline()))
        client.kill()
    assert wait_gone(processes, linger_s + BOUND_S) == []


def test_a_stranger_who_knows_the_address_cannot_speak_to_the_supervisor(ws):
    endpoint = ws._root._root.address.endpoint
    server_key = ws._root._root.address.public_key
    context = zmq.Context()
    public_key, secret_key = zmq.curve_keypair()

    def with_own_key(sock):
        sock.curve_serverkey = server_key
        sock.curve_publickey, sock.curve_secretkey = public_key, secret_key

    try:
        for configure in (with_own_key, lambda sock: None):
            with context.socket(zmq.DEALER) as sock:
                sock.linger = 0
                configure(sock)
                sock.connect(endpoint)
                sock.send(msgspec.msgpack.encode(Hello("0")))
                assert sock.poll(300) == 0
    finally:
        context.destroy(linger=0)
    assert [result.value for result in ws.run("rank")] == ["0", "1", "2"]


def test_a_root_that_is_killed_before_it_has_a_sweeper_leaves_no_record(tmp_path, monkeypatch):
    launch = _connect.launch_root

    def launch_and_kill(*arguments, **options):
        root = launch(*arguments, **options)
        os.kill(root.pid, signal.SIGKILL)
        return root

    monkeypatch.setattr(_connect, "launch_root", launch_and_kill)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(DistributedError, match="the supervisor is gone"):
        Workspace.start(n=1)
    assert list(tmp_path.rglob("*.json")) == []
