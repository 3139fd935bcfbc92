"""What ranks under mpirun do in the tests of the mpi backend: `python mpi_cells.py CELL[:ARG] ...`.

One that raises ends its rank, and so mpirun, with an error. Within 10 s: other tests run beside.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import phalanx as px
from phalanx.distributed._mpi import _moves

sys.path.insert(0, str(Path(__file__).parent))
import engine_contract


def _engine():
    return px.init(strict=True, backend="mpi")._engine


def say(*words) -> None:
    """Write one line at once: the lines of ranks shall not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _raised(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    msg = f"nothing was raised by rank {px.init().rank()}"
    raise AssertionError(msg)


def contract(*dtypes):
    engine = _engine()
    size = engine.size
    counts = tuple(sorted({0, 1, max(1, size - 1), size, 211, 1009}))
    n = engine_contract.check_collectives(engine, counts, dtypes or engine_contract.DTYPES)
    say(f"rank {engine.rank}: {n} cases")


def brief(*dtypes):
    engine = _engine()
    n = engine_contract.check_collectives(engine, (engine.size, 211), dtypes)
    say(f"rank {engine.rank}: {n} cases")


def cut():
    """The ways of large arrays, with limits so low that small ones take them."""
    usual = _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES
    _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES = 500, 600, 64
    engine = _engine()
    n = engine_contract.check_collectives(engine, (401, 1009))
    n += engine_contract.check_pairs(engine, (3000,))
    engine.barrier()
    _moves.MAX_COUNT, _moves.PIECE_NBYTES, _moves._UNIT_NBYTES = usual
    say(f"rank {engine.rank}: {n} cases")


def large():
    """More bytes than an int can count."""
    engine = _engine()
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
    engine = _engine()
    say(f"rank {engine.rank}: {engine_contract.check_pairs(engine, (0, 1, 1000, 9001))} cases")


def dimensions():
    """A message with more dimensions than a header shows."""
    engine = _engine()
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


def submitted():
    engine = _engine()
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
    half.close()
    assert px.all_sum(1) == size
    error = _raised(px.DistributedError, half.barrier)
    assert "the group is closed" in str(error)
    say("splits")


def mismatch(where):
    engine = _engine()
    rank = engine.rank
    if where == "split":
        engine = engine.part(0 if rank else 1)
        if rank == 0:
            # Not in it, and told all the same: an epoch ends for the world and all its parts.
            error = _raised(px.DistributedError, _wait_for_failure)
            say(error)
            return
    x = np.ones((2, 300) if rank == 1 else 600, np.float32)
    out = np.zeros_like(x)
    error = _raised(px.CollectiveMismatch, engine.all_sum, x, out)
    assert not out.any()
    again = _raised(px.CollectiveMismatch, engine.barrier)
    assert str(again) == str(error)
    say(error)


def mismatch_and_missing():
    """Two that differ are told so, though the third never comes."""
    engine = _engine()
    if engine.rank == 2:
        say(_raised(px.CollectiveMismatch, _wait_for_failure))
        return
    x = np.ones(1 + engine.rank, np.float32)
    say(_raised(px.CollectiveMismatch, engine.all_sum, x, x.copy()))


def _wait_for_failure():
    engine = px.init()._engine
    deadline = time.monotonic() + 10
    while engine.failure is None and time.monotonic() < deadline:
        engine._world.listen()
        time.sleep(0.001)
    engine.barrier()


def pair_mismatch():
    engine = _engine()
    x = np.ones(9 + engine.rank * 20_000)
    call = engine.recv if engine.rank else engine.send
    if engine.rank == 0:
        engine.send(x, 1)
        say(_raised(px.CollectiveMismatch, engine.barrier))
    else:
        say(_raised(px.CollectiveMismatch, call, x, 0))


def timeout():
    """Rank 1 does not come; of three, two can tell."""
    engine = _engine()
    if engine.rank == 1:
        # It learns of it in what it does next, whenever that is.
        say(_raised(px.CollectiveTimeout, _wait_for_failure))
        return
    start = time.monotonic()
    x, out = np.ones(3), np.zeros(3)
    error = _raised(px.CollectiveTimeout, engine.all_sum, x, out, timeout=0.5)
    took = time.monotonic() - start
    assert 0.5 <= took < 10, took
    say(error)


def pair_timeout():
    engine = _engine()
    if engine.rank == 1:
        say(_raised(px.CollectiveTimeout, engine.recv, np.empty(3), 0, timeout=0.3))
    else:
        say(_raised(px.CollectiveTimeout, _wait_for_failure))


def interrupt():
    """Ctrl-C in one rank frees all."""
    engine = _engine()
    if engine.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        _raised(KeyboardInterrupt, engine.barrier)
        assert time.monotonic() - start < 10
        error = _raised(px.DistributedError, engine.barrier)
    elif engine.rank == 1:
        error = _raised(px.DistributedError, engine.recv, np.empty(1), 2)
    else:
        error = _raised(px.DistributedError, _wait_for_failure)
    say(error)


def leave():
    """A rank whose script has ended is named by those that wait for it."""
    engine = _engine()
    engine.barrier()
    if engine.rank == 0:
        return
    start = time.monotonic()
    error = _raised(px.DistributedError, engine.barrier)
    assert time.monotonic() - start < 10
    say(error)


def buffered():
    """What a rank has sent arrives, though its script ends at once."""
    engine = _engine()
    if engine.rank == 0:
        engine.send(np.arange(8000.0), 1)
        return
    out = np.empty(8000)
    engine.recv(out, 0)
    assert (out == np.arange(8000.0)).all()
    say("arrived")


def bad_input():
    """Mistakes are told before a byte moves, and the group stays good."""
    engine = _engine()
    rank, size = engine.rank, engine.size
    x, out = np.ones(4 * size, np.float32), np.ones(4 * size, np.float32)
    said = [
        _raised(ValueError, engine.all_sum, x, out[1:]),
        _raised(TypeError, engine.all_sum, x, out.astype(np.float64)),
        _raised(TypeError, engine.all_sum, x.astype("g"), out.astype("g")),
        _raised(TypeError, engine.all_sum, x, out, dtype="bfloat16"),
        _raised(ValueError, engine.all_sum, x[:-1], x[1:]),
        _raised(ValueError, engine.all_sum, x[::2], out[::2]),
        _raised(ValueError, engine.sum_scatter, x[: size + 1], out[:1]),
        _raised(ValueError, engine.broadcast, x, out, size),
        _raised(ValueError, engine.send, x, size),
        _raised(ValueError, engine.recv, x, -1),
        _raised(ValueError, engine.send, x, rank),
        _raised(ValueError, engine.submit, "all_prod", x, out),
    ]
    engine.all_sum(x, out)
    assert (out == size).all()
    if rank == 0:
        for error in said:
            say(error)


def raises():
    """An error that nobody catches, in one rank of a few that wait for it."""
    engine = _engine()
    if engine.rank == 1:
        raise ZeroDivisionError
    engine.barrier()


def exit_status(status):
    px.init(backend="mpi").barrier()
    sys.exit(int(status))


def killed():
    engine = _engine()
    engine.barrier()
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.barrier()


def hold(path):
    """Say who we are and wait for ever."""
    engine = _engine()
    Path(path, str(engine.rank)).write_text(str(os.getpid()))
    engine.barrier()
    if engine.rank == 0:
        say("holding")
        engine.recv(np.empty(1), 1)
    else:
        engine.recv(np.empty(1), 0)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        cell, *given = word.split(":")
        globals()[cell](*given)
