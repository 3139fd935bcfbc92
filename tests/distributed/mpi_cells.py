"""What ranks under mpirun do in the tests of the mpi backend: `python mpi_cells.py CELL[:ARG] ...`.

One that raises ends its rank, and so mpirun, with an error. Within 10 s: other tests run beside.
Those that fail are in mpi_failing.py.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import numpy as np

import phalanx as px
from phalanx.distributed._mpi import _moves

sys.path.insert(0, str(Path(__file__).parent))
import engine_contract
import mpi_failing
from mpi_saying import engine_of_world, raised, say


def contract(*dtypes):
    engine = engine_of_world()
    size = engine.size
    counts = tuple(sorted({0, 1, max(1, size - 1), size, 211, 1009}))
    n = engine_contract.check_collectives(engine, counts, dtypes or engine_contract.DTYPES)
    say(f"rank {engine.rank}: {n} cases")


def brief(*dtypes):
    engine = engine_of_world()
    n = engine_contract.check_collectives(engine, (engine.size, 211), dtypes)
    say(f"rank {engine.rank}: {n} cases")


def truths():
    engine_contract.check_truths(engine_of_world())
    say("truths")


def cut():
    """The ways of large arrays, with limits so low that small ones take them."""
    usual = _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES
    _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES = 500, 600, 64
    engine = engine_of_world()
    n = engine_contract.check_collectives(engine, (401, 1009))
    n += engine_contract.check_pairs(engine, (3000,))
    engine.barrier()
    _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES = usual
    say(f"rank {engine.rank}: {n} cases")


def large():
    """More bytes than an int can count."""
    engine = engine_of_world()
    n = (1 << 31) + 4097
    x = np.full(n, engine.rank + 1, np.uint8)
    engine.all_sum(x, x)
    assert x[0] == x[-1] == x[1 << 31] == engine.size * (engine.size + 1) // 2
    x[-1] = engine.rank
    engine.broadcast(x, x, 1)
    assert x[-1] == 1
    if engine.rank == 0:
        engine.send(x, 1)
    elif engine.rank == 1:
        x.fill(0)
        engine.recv(x, 0)
        assert x[-1] == 1
        assert x[n // 2] == engine.size * (engine.size + 1) // 2
    say("large")


def pairs():
    engine = engine_of_world()
    say(f"rank {engine.rank}: {engine_contract.check_pairs(engine, (0, 1, 1000, 9001))} cases")


def dimensions():
    """A message with more dimensions than a header shows."""
    engine = engine_of_world()
    x = np.arange(6.0).reshape((1,) * 8 + (2, 3))
    engine.send(x + engine.rank, (engine.rank + 1) % engine.size)
    engine.recv(out := np.empty_like(x), src := (engine.rank - 1) % engine.size)
    assert (out == x + src).all()


def dropped():
    """Splits that only a garbage collection closes, in the midst of whatever runs."""
    group = px.init()
    gc.set_threshold(50)
    for _ in range(150):
        cycle = [part := group.split(0)]
        cycle.append(cycle)
        part.barrier()
        del part, cycle
    group.barrier()
    say("dropped")


def forked():
    """A child of fork that ends leaves the rank's world as it was."""
    group = px.init()
    if (pid := os.fork()) == 0:
        said = ""
        try:
            group.barrier()
        except px.DistributedError as error:
            said = str(error)
        sys.exit(0 if "fork" in said else 1)
    assert os.waitpid(pid, 0)[1] == 0
    group.barrier(timeout=20)
    say("forked")


def forked_waiting():
    """A work that was submitted before a fork is refused in the child, which has no such thread."""
    group = px.init()
    part = group.split(0)
    if group.rank() == 0:
        work = px.all_sum(np.ones(3), group=part, async_op=True)
        if (pid := os.fork()) == 0:
            said = ""
            try:
                work.wait(timeout=5)
            except px.DistributedError as error:
                said = str(error)
            os._exit(0 if "fork" in said else 1)
        assert os.waitpid(pid, 0)[1] == 0
        for rank in range(1, group.size()):
            px.send(np.ones(1), rank)
        assert work.wait(timeout=20).tolist() == [group.size()] * 3
    else:
        px.recv((1,), np.float64, 0)
        px.all_sum(np.ones(3), group=part)
    say("forked_waiting")


def closed_as_submitted():
    """A group that another thread closes just as something is submitted takes it no more."""
    part = px.init().split(0)
    engine = part._engine
    count = engine._deadline

    def count_and_close(timeout):
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join()
        return count(timeout)

    engine._deadline = count_and_close
    before = threading.active_count()
    raised(px.DistributedError, px.all_sum, np.ones(3), group=part, async_op=True)
    assert threading.active_count() == before
    say("closed_as_submitted")


def submitted():
    engine = engine_of_world()
    say(f"rank {engine.rank}: {engine_contract.check_submitted(engine)} cases")


def public():
    """The functions that users call."""
    group = px.init()
    rank, size = group.rank(), group.size()
    assert px.init(backend="mpi") is group
    assert px.all_sum(rank) == size * (size - 1) // 2
    assert px.all_gather(np.full((2, 3), rank, np.float32)).shape == (2 * size, 3)
    assert px.broadcast(np.arange(3) + rank, root=size - 1)[0] == size - 1
    x = np.ones(100_000)
    assert px.all_sum(x, out=x) is x
    assert (x == size).all()
    group.barrier(timeout=60.0)
    described = group.describe()
    assert described["transports"][(rank + 1) % size] == ("mpi" if size > 1 else "self")
    assert f"rank {rank} of {size}" in repr(group)
    say("public", described["engine"]["library"].split()[0])


def splits():
    group = px.init()
    rank, size = group.rank(), group.size()
    half = group.split(rank % 2, key=size - rank)
    mine = [r for r in range(size) if r % 2 == rank % 2]
    assert half._engine.members == tuple(reversed(mine))
    assert half.rank() == mine[::-1].index(rank)
    assert len(half.describe()["hosts"]) == half.size() == len(mine)
    engine_contract.check_collectives(half._engine, (1, 300), ("int32", "float16"))
    engine_contract.check_pairs(half._engine, (1, 20_000))
    assert group.split(None if rank else 2**63 - 1) is None or rank == 0
    assert group.split(-7) is None
    for _ in range(200):
        with group.split(0) as part:
            assert px.all_sum(1, group=part) == size
    group.barrier()
    assert len(group._engine._world.heard) == 2, "news of groups that are closed are kept"
    half.close()
    assert px.all_sum(1) == size
    error = raised(px.DistributedError, half.barrier)
    assert "the group is closed" in str(error)
    say("splits")


def buffered():
    """What a rank has sent arrives, though its script ends at once."""
    engine = engine_of_world()
    if engine.rank == 0:
        engine.send(np.arange(8000.0), 1)
        return
    out = np.empty(8000)
    engine.recv(out, 0)
    assert (out == np.arange(8000.0)).all()
    say("arrived")


def bad_input():
    """Mistakes are told before a byte moves, and the group stays good."""
    engine = engine_of_world()
    rank, size = engine.rank, engine.size
    x, out = np.ones(4 * size, np.float32), np.ones(4 * size, np.float32)
    said = [
        raised(ValueError, engine.all_sum, x, out[1:]),
        raised(TypeError, engine.all_sum, x, out.astype(np.float64)),
        raised(TypeError, engine.all_sum, x.astype("g"), out.astype("g")),
        raised(TypeError, engine.all_sum, x, out, dtype="bfloat16"),
        raised(ValueError, engine.all_sum, x[:-1], x[1:]),
        raised(ValueError, engine.all_sum, x[::2], out[::2]),
        raised(ValueError, engine.sum_scatter, x[: size + 1], out[:1]),
        raised(ValueError, engine.broadcast, x, out, size),
        raised(ValueError, engine.send, x, size),
        raised(ValueError, engine.recv, x, -1),
        raised(ValueError, engine.send, x, rank),
        raised(ValueError, engine.submit, "all_prod", x, out),
    ]
    engine.all_sum(x, out)
    assert (out == size).all()
    if rank == 0:
        for error in said:
            say(error)


if __name__ == "__main__":
    cells = {**vars(mpi_failing), **globals()}
    for word in sys.argv[1:]:
        cell, *given = word.split(":")
        cells[cell](*given)
