"""What all tests stand on."""

from __future__ import annotations

import signal

import pytest
from bed import Bed, why_not
from mpis import Mpi

# A shell that runs us in the background has SIGINT ignored, which every process we start would
# inherit: kernels and ranks that cannot be interrupted. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request) -> Mpi:
    found = Mpi(request.param)
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    if not (found.bin / "mpirun").exists():
        pytest.skip(f"{request.param} is not installed in {found.bin.parent} (tests/run does it)")
    return found


@pytest.fixture(scope="module")
def bed():
    """Three hosts, each with its sshd; who changes one mends it."""
    if reason := why_not():
        pytest.skip(reason)
    with Bed(3) as hosts:
        yield hosts
