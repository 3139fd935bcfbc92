"""The end of a process in which a daemon thread is inside an operation: quiet, and at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from support.programs import launching

# Two ranks in one process; a daemon thread of rank 0 is inside its first operation.
WORLD = """
import atexit, ctypes, select, socket, sys, threading, time
import numpy as np
from phalanx import _native

wires = [[sock.detach() for sock in socket.socketpair()] for _ in range(2)]
mine, theirs = (
    _native.Group(
        rank=rank,
        size=2,
        epoch=1,
        hosts=[0, 1],
        links={1 - rank: [wires[0][rank]]},
        pair_links={1 - rank: wires[1][rank]},
    )
    for rank in range(2)
)
x, sums = np.ones(3), np.zeros((2, 3))


def work():
    while True:
        mine.run("all_sum", x, sums[0])


threading.Thread(target=work, daemon=True).start()
assert select.select([wires[0][1]], [], [], 10)[0]  # its header has come
"""

# The interpreter is ending already when rank 1 comes: rank 0 asks for a lock that it cannot have.
IS_OVER = """
class Last:
    def __init__(self):
        self.kept = mine, theirs, x, sums, time, sys

    def __del__(self):
        mine, theirs, x, sums, time, sys = self.kept
        assert sys.is_finalizing()
        theirs.run("all_sum", x, sums[1])
        give_up_at = time.monotonic() + 10
        while sums[0].tolist() != sums[1].tolist():
            assert time.monotonic() < give_up_at
            time.sleep(0.001)
        print(sums[1].tolist(), flush=True)


sys.modules["last"] = Last()  # modules end with the interpreter, while the thread keeps our names
"""

# Rank 0 looks at signals every 50 ms: it asks for the lock just before the interpreter ends.
LOOKS_AT_SIGNALS = """
atexit.register(ctypes.PyDLL(None).usleep, 200_000)
print("[2.0, 2.0, 2.0]")
"""


@pytest.mark.parametrize("how", [IS_OVER, LOOKS_AT_SIGNALS], ids=["is over", "looks at signals"])
def test_a_daemon_thread_inside_an_operation_ends_with_its_process(how):
    ended = subprocess.run(
        [sys.executable, "-c", WORLD + how],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "[2.0, 2.0, 2.0]\n"


def test_ranks_that_end_in_the_midst_of_operations_end_well(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent(
            """
            import threading
            import phalanx as px

            has_summed = threading.Event()

            def work():
                try:
                    while True:
                        px.all_sum(1)
                        has_summed.set()
                except px.DistributedError:  # the other has ended before
                    has_summed.set()

            px.init()
            threading.Thread(target=work, daemon=True).start()
            has_summed.wait()
            """
        )
    )
    ended = launching.launch("-n", "2", str(script))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
