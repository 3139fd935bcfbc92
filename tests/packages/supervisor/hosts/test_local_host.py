"""A host's ranks and their channels: messages wait for a rank that does not read them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys

from support.promise import PATIENCE_S
from support.ranks.loops import in_asyncio
from support.runs.gates import Gate
from support.waiting import wait_until

from phalanx.protocol import Complete, Gathered, TypedLine, TypeLine, pack_frame
from phalanx.protocol.host import RankGone, SignalRank, ToRankEnvelope
from phalanx.supervisor.hosts.local_host import LocalHost
from phalanx.supervisor.hosts.local_rank import MOST_UNSENT_NBYTES
from phalanx.supervisor.processes.pipes import ChildOutput
from phalanx.supervisor.processes.system import is_stopped

# Read so many bytes from the channel and say which.
READ = """
import hashlib, os, sys
left, seen = int(sys.argv[1]), hashlib.sha256()
while left:
    data = os.read(int(os.environ["PHALANX_CHANNEL"]), left)
    left -= len(data)
    seen.update(data)
print(seen.hexdigest())
"""


@in_asyncio
async def test_a_stopped_rank_is_not_killed_and_gets_all_messages_later():
    """Also more of them than a rank that runs may leave unread."""
    messages = [Gathered(number, (bytes([number]) * (1 << 16),)) for number in range(64)]
    data = b"".join(map(pack_frame, messages))
    assert len(data) > 2 * MOST_UNSENT_NBYTES

    said = []
    host = LocalHost((0,), said.append)
    try:
        host.spawn_command(
            0, [sys.executable, "-c", READ, str(len(data))], env=os.environ,
            stdin=None, stdout=ChildOutput(), stderr=ChildOutput(),
        )  # fmt: skip
        os.kill(host.report(0).pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(host.report(0).pid), "the rank is stopped")
        for message in messages:
            host.take(ToRankEnvelope(0, message))
        host.take(SignalRank(0, signal.SIGCONT))
        await asyncio.wait_for(host.report(0).child.process.exited.wait(), PATIENCE_S)
    finally:
        await host.stop()
    (gone,) = said
    digest = hashlib.sha256(data).hexdigest() + "\n"
    assert gone == RankGone(0, 0, "exited with status 0", digest)


# Read from the channel once the gate is open, until the last line has come.
READ_LATE = """
import os, sys
open(sys.argv[1], "rb", 0).read(1)
seen = b""
while b"the last" not in seen:
    seen = seen[-99:] + os.read(int(os.environ["PHALANX_CHANNEL"]), 1 << 16)
"""


@in_asyncio
async def test_a_rank_that_takes_no_orders_for_a_while_lives_and_gets_them_later(tmp_path):
    """Such as one in C code that keeps Python's lock: the questions while typing are too many."""
    said = []
    host = LocalHost((0,), said.append)
    try:
        with Gate(tmp_path) as gate:
            host.spawn_command(
                0, [sys.executable, "-c", READ_LATE, str(gate.path)], env=os.environ,
                stdin=None, stdout=ChildOutput(), stderr=ChildOutput(),
            )  # fmt: skip
            for number in range(64):
                host.take(ToRankEnvelope(0, Complete(number, "x" * (1 << 16), 0)))
            for line in ("first", "the last"):
                host.take(ToRankEnvelope(0, TypeLine("cell", TypedLine(line))))
            gate.open()
            await asyncio.wait_for(host.report(0).child.process.exited.wait(), PATIENCE_S)
    finally:
        await host.stop()
    assert 2 * MOST_UNSENT_NBYTES < 64 << 16
    assert said == [RankGone(0, 0, "exited with status 0", "")]
