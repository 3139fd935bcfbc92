"""Connections between supervisors that break under a world of two hosts: nobody notices."""

from __future__ import annotations

import contextlib
import threading

import psutil
import pytest
from cutting import cut
from hosts_of_one_machine import Cell, host_of, start
from launching import Running

N_LINES = 40_000


@pytest.fixture(scope="module")
def ws():
    with start(silence=2.0) as workspace:
        yield workspace


def test_a_cell_goes_on_over_connections_that_break(ws):
    host = host_of(ws, 2)
    pids = [info.pid for info in ws.topology().ranks]
    code = (
        "import time\ntotal = 0\n"
        "for turn in range(100):\n"
        "    total += px.all_sum(1)\n    time.sleep(0.01)\n"
        "total"
    )
    cell = Cell(ws, code)
    for _ in range(5):
        threading.Event().wait(0.15)
        cut(ws._root.pid, host.pid)
    results = cell.end()
    assert not isinstance(results, BaseException), results
    assert [result.value for result in results] == ["400"] * 4
    assert [info.pid for info in ws.topology().ranks] == pids
    assert host.is_running()


def test_what_the_root_asks_is_answered_after_a_cut(ws):
    host = host_of(ws, 2)
    assert cut(ws._root.pid, host.pid) == 1
    ws.run("print(rank)")
    assert ws.output(3).splitlines()[-1] == "3"
    assert cut(ws._root.pid, host.pid) == 1
    assert ws.restart([3], force=True) == (3,)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["4"] * 4


@pytest.mark.slow
def test_a_script_loses_no_line_and_says_none_twice(tmp_path):
    script = tmp_path / "many.py"
    script.write_text(f"for i in range({N_LINES}): print(i, 'x' * (i % 200))\n")
    launcher = Running(
        "--hosts", "b.invalid,c.invalid", "--launcher", "local", "--label", "rank", script
    )
    shown: dict[bytes, list[bytes]] = {}

    def read():
        for line in launcher.popen.stdout:
            # A line whose rest is late is shown in parts, as a prompt is: what is in them counts.
            shown.setdefault(line[:4], []).append(line[4:].rstrip(b"\n"))

    reader = threading.Thread(target=read)
    reader.start()
    while len(shown) < 2:
        assert reader.is_alive(), launcher.end()
        reader.join(0.01)
    root, hosts, n_cuts = launcher.root, launcher.ranks, 0
    while reader.is_alive():
        with contextlib.suppress(psutil.Error, OSError):  # they end meanwhile
            n_cuts += sum(cut(root.pid, host.pid) for host in hosts)
        reader.join(0.05)
    code, said = launcher.end()
    assert code == 0, said
    said = b"".join(b"%d %s" % (i, b"x" * (i % 200)) for i in range(N_LINES))
    assert {label: b"".join(parts) == said for label, parts in shown.items()} == {
        b"[0] ": True,
        b"[1] ": True,
    }
    assert n_cuts > 2
