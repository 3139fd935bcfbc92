"""The mpi backend under the mpirun of Open MPI and of MPICH: failures, the end, what is missing.

What leaves the group good is in test_mpi_contract.py, in worlds that stay.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import weakref
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
from distributed.mpi import mpi_cells
from distributed.mpi.mpi_world import MpiWorld
from support.own_frames import own_frames
from support.promise import within
from support.runs.tiers import deep

import phalanx as px
from phalanx.distributed.arrays.arguments import invalidate_output
from phalanx.distributed.control import Deadline
from phalanx.distributed.mpi.waiting import MpiWork
from phalanx.distributed.mpi.wire import DTYPES, Header, describe_mismatch, fold

pytestmark = pytest.mark.slow


@pytest.fixture
def new_world(mpi):
    """Give worlds of any size, each of an mpirun of its own that the test may make fail."""
    with ExitStack() as stack:
        yield lambda n: stack.enter_context(MpiWorld(mpi, n))


@pytest.mark.parametrize(
    ("n", "cell", "text"),
    [
        (2, "mismatch:world", "rank 1: all_sum #2 (float32, shape (2, 300)) met rank 0: all_sum #2 (float32, shape (600,))"),
        (3, "mismatch:split", "rank 2: all_sum #1 (float32, shape (600,)) met rank 1: all_sum #1 (float32, shape (2, 300))"),
        (2, "pair_mismatch", "rank 1: recv #1 (float64, shape (20009,)) met rank 0: send #1 (float64, shape (9,))"),
        (3, "mismatch_and_missing", "rank 1: all_sum #2 (float32, shape (2,)) met rank 0: all_sum #2 (float32, shape (1,))"),
        (2, "pair_timeout", "rank 1: recv #1 (float64, shape (3,)) timed out after 0.3 s; missing: rank 0"),
        (2, "invalidated", "rank 1 has had enough; its output was invalidated"),
    ],
)  # fmt: skip
def test_a_failure_is_everybody_s(new_world, n, cell, text):
    world = new_world(n)
    name, *given = cell.split(":")
    assert world.run(getattr(mpi_cells, name), *given) == [text] * n
    world.is_good = False


@pytest.mark.promise
def test_an_interrupt_of_one_rank_is_everybody_s(new_world):
    world = new_world(3)
    world.start(mpi_cells.barrier, ranks=[0])
    world.start(mpi_cells.receive, 2, ranks=[1])
    world.start(mpi_cells.hear_of_failure, ranks=[2])
    world.wait_in("barrier", [0])
    world.wait_in("recv", [1])
    world.kill(0, signal.SIGINT)
    with within():
        interrupted, *others = world.outcomes()
    assert isinstance(interrupted, KeyboardInterrupt)
    assert others == ["rank 0 was interrupted in barrier #2"] * 2


def test_who_does_not_come_is_named(new_world):
    world = new_world(3)
    world.start(mpi_cells.sum_three, ranks=[0])
    world.wait_in("all_sum", [0])
    world.start(mpi_cells.sum_three, 1.5, ranks=[2])
    world.start(mpi_cells.hear_of_failure, ranks=[1])
    text = "rank 2: all_sum #2 (float64, shape (3,)) timed out after 1.5 s; missing: rank 1"
    assert world.outcomes() == [text] * 3
    world.is_good = False


def test_what_was_sent_arrives_though_the_sender_has_ended_and_who_has_ended_is_named(mpi):
    arrived, *told = sorted(mpi.cells(3, "leave"))
    assert arrived == "arrived"
    assert len(told) == 2
    assert all(line.startswith("rank 0 closed the group; rank ") for line in told)


def test_an_error_that_nobody_catches_ends_all(mpi):
    said = mpi.run(3, "-c", "import phalanx as px\npx.all_sum(1, timeout=px.init().rank() - 1)")
    assert said.returncode != 0
    assert "ValueError: timeout must be" in said.stderr
    assert not own_frames(said.stderr)  # no frame of ours


@deep  # the first tier installs one MPI
def test_the_library_of_another_mpi_is_told(mpi):
    other = {"openmpi": "mpich", "mpich": "openmpi"}[mpi.name]
    libraries = list((mpi.bin.parents[1] / other / "lib").glob("libmpi.so.*"))
    if not libraries:
        pytest.skip(f"{other} is not installed")
    said = mpi.run(2, "-c", "import phalanx as px; px.init()", MPI4PY_LIBMPI=str(libraries[0]))
    assert said.returncode != 0
    assert "NotConfigured: [mpi] mpirun is of another MPI than the library here" in said.stderr
    assert not re.search('File ".*/phalanx/', said.stderr)  # no frame of ours


def _alone(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "MPI4PY"))}
    return subprocess.run(
        [sys.executable, "-c", f"import sys, phalanx as px\n{code}"],
        capture_output=True, text=True, check=False, timeout=60, env={**clean, **env},
    )  # fmt: skip


def test_outside_of_mpirun(mpi):
    library = {"MPI4PY_LIBMPI": mpi.environment()["MPI4PY_LIBMPI"]}
    said = _alone(
        "assert px.is_available('mpi') and px.init(backend='mpi').size() == px.init().size() == 1\n"
        "assert 'mpi4py' not in sys.modules\n"
        "px.init(strict=True, backend='mpi')",
        **library,
    )
    assert said.stderr.splitlines()[-1] == (
        "phalanx.errors.NotConfigured: [mpi] The world has a single process. "
        "Launch with mpirun to initialize the mpi backend."
    )


@pytest.mark.parametrize("how", ["no mpi4py", "no library"])
def test_not_installed(how):
    hide = "sys.modules['mpi4py'] = None\n" if how == "no mpi4py" else ""
    code = hide + "assert not px.is_available('mpi')\npx.init(backend='mpi')"
    said = _alone(code, MPI4PY_LIBMPI="/nowhere/libmpi.so", LD_LIBRARY_PATH="")
    assert (
        "NotSupported: the mpi backend needs mpi4py and an MPI library: pip install"
        in (said.stderr.splitlines()[-1])
    )
    # Under mpirun nobody falls back to a group of one.
    said = _alone(hide + "px.init()", MPI4PY_LIBMPI="/nowhere/libmpi.so", OMPI_COMM_WORLD_SIZE="2")
    assert "NotSupported: the mpi backend needs mpi4py" in said.stderr.splitlines()[-1]


def test_headers_come_back_as_they_were():
    header = Header("send", 3, 2**63 + 5, 1, "bfloat16", (1,) * 9 + (2,), 2)
    again = Header.unpack(header.pack())
    assert again.shape[:8] == header.shape[:8]
    assert str(again) == str(header) == "send #3 (bfloat16, shape (1, 1, 1, 1, 1, 1, 1, 1, ...))"
    longer = Header("send", 3, 2**63 + 5, 1, "bfloat16", (1,) * 8 + (2, 1), 2)
    assert describe_mismatch([0, 1], [header.pack(), longer.pack()])
    with pytest.raises(ValueError, match="no header"):
        Header.unpack(bytes(len(header.pack())))


def test_what_a_failed_operation_leaves_is_no_likely_value():
    for name in DTYPES:
        out = np.zeros(3, np.uint16 if name == "bfloat16" else name)
        invalidate_output(out, name if name == "bfloat16" else "")
        if out.dtype.kind in "fc":
            assert np.isnan(out.real).all()
            assert np.isnan(out.imag).all() == (out.dtype.kind == "c")
            continue
        worst = {"b": 1, "i": 1 << (8 * out.itemsize - 1), "u": (1 << (8 * out.itemsize)) - 1}
        bits = 0x7FC0 if name == "bfloat16" else worst[out.dtype.kind]
        assert out.view(f"u{out.itemsize}").tolist() == [bits] * 3, name


def test_bfloat16_is_rounded_once_to_the_nearest_even():
    one, tiny = 0x3F80, 0x3B80  # 1 and 2**-8: half of the last place of 1
    rows = np.array([[one, one, 0x7F7F, 0x7FC1], [tiny, tiny | 1, 0x7F7F, one]], np.uint16)
    assert [hex(bits) for bits in fold("sum", "bfloat16", rows)] == [
        "0x3f80", "0x3f81", "0x7f80", "0x7fc0",
    ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_over_holds_no_array(fails):
    x = np.ones(3)
    held = weakref.ref(x)

    def run(x):
        if fails:
            raise px.DistributedError(str(x.sum()))

    work = MpiWork("all_sum", partial(run, x), Deadline(None), None, 0)
    del x
    assert held() is not None
    work.perform()
    assert held() is None
    if fails:
        with pytest.raises(px.DistributedError, match=r"3\.0"):
            work.wait()


RECOVER = """
import phalanx as px
world = px.init()
assert px.recover(20) is world
try:
    px.all_sum([1, 2][world.rank()] if world.rank() else 1.5)
except px.CollectiveMismatch:
    pass
try:
    px.recover(20)
except px.NotSupported as error:
    print(error)
"""


def test_recovery_is_a_barrier_where_all_is_well_and_refused_where_it_is_not(mpi):
    said = mpi.run(2, "-c", RECOVER)
    text = (
        "a world of MPI cannot be formed anew, as MPI itself cannot: end the job and start it again"
    )
    assert said.stdout.count(text) == 2, said.stderr  # mpirun may join lines
    assert said.stdout.count("(rank 1: all_sum #") == 2
