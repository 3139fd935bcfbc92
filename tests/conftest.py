"""What all tests stand on."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile

import hypothesis
import pytest
from support.ranks.mpis import Mpi
from support.runs.tiers import IS_DEEP, deep

# A shell that runs us in the background, or nohup, has signals ignored, which every process we start
# would inherit: kernels and ranks that cannot be interrupted. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# As a user who has chosen: starts say nothing of threads, but to the tests that look for it.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests that run at the same time: a workspace of one is not for another to find, or to stop.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix=f"px-{worker}-")
    atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

pytest_plugins = [
    "support.runs.history",
    "support.hosts.hosts_bed",
    "support.programs.memory",
    "support.runs.schedule",
    "support.runs.skips",
]

# The first tier draws the same examples in every run, so that a change is not refused for what
# somebody else wrote. The deep tier draws new ones, and says how to repeat a failure.
# A loaded machine makes single examples slow: that is no defect.
_patient = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("first", derandomize=True, print_blob=True, **_patient)
hypothesis.settings.register_profile("deep", print_blob=True, **_patient)
hypothesis.settings.load_profile("deep" if IS_DEEP else "first")


@pytest.fixture(scope="module", params=["openmpi", pytest.param("mpich", marks=deep)])
def mpi(request, tmp_path_factory) -> Mpi:
    found = Mpi(request.param, tmp_path_factory.mktemp("mpi"))
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    if not (found.bin / "mpirun").exists():
        pytest.skip(f"{request.param} is not installed in {found.bin.parent} (tests/run does it)")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Stop the cells of a test that has failed: its kernel may be that of all tests of the file."""
    report = yield
    if report.failed and "support.notebooks.kernel_driver" in sys.modules:
        for driver in list(sys.modules["support.notebooks.kernel_driver"].KernelDriver.open):
            driver.stop_cells()
    return report
