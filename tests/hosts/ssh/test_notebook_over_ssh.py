"""A notebook on many hosts, executed from top to bottom on one of them, over real sshd."""

from __future__ import annotations

import sys

import nbformat
import pytest
from support.hosts.hosts_bed import check_nothing_left

pytestmark = pytest.mark.slow

CELLS = [
    "%load_ext phalanx",
    "%distributed start -n 2 --hosts a,b,c --linger 0",
    "%%distributed\nimport socket\nprint(socket.gethostname(), 'says', int(px.all_sum(rank)))",
    "%distributed topology",
    # Of host b, which shares our processes.
    (
        "import os, signal, time\nos.kill(ws.topology().ranks[3].pid, signal.SIGKILL)\n"
        "deadline = time.monotonic() + 20\n"
        "while ws.topology().ranks[3].state != 'dead':\n"
        "    assert time.monotonic() < deadline\n    time.sleep(0.01)"
    ),
    "%distributed restart",
    "%%distributed\nsocket.gethostname() if rank != 3 else 'anew', int(px.all_sum(rank))",
    "%distributed status",
    "%distributed stop",
]
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def _text(cell):
    """All that a reader sees of a cell's outputs."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts.extend(str(words) for words in output.get("data", {}).values())
    return "\n".join(parts)


@pytest.mark.promise
def test_a_notebook_on_three_hosts(bed, tmp_path):
    path = tmp_path / "hosts.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    bed.run(0, [sys.executable, "-c", EXECUTE, path], timeout=100)
    done = nbformat.read(path, 4).cells
    started, sums, topology, after, status = (_text(done[i]) for i in (1, 2, 3, 6, 7))
    assert "6 ranks on 3 hosts" in started
    for host in "abc":
        assert f"{host} says 15" in sums
        assert f"{host} (10.77.0." in started + topology
    assert "('anew', 15)" in after
    assert "('c', 15)" in after
    assert "rank" in status
    check_nothing_left(bed)
