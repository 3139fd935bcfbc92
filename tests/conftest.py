"""What all tests stand on."""

from __future__ import annotations

import signal

import pytest
from beside import is_beside
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


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--part",
        choices=["beside", "alone"],
        help="only the tests that may run beside others (with -n of pytest-xdist), or only the rest",
    )


def pytest_collection_modifyitems(config, items) -> None:
    part = config.getoption("part")
    if part is None:
        return
    parted: dict[bool, list] = {True: [], False: []}
    for item in items:
        parted[is_beside(item.path) == (part == "beside")].append(item)
    items[:] = parted[True]
    config.hook.pytest_deselected(items=parted[False])
