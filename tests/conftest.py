"""What all tests stand on."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from bed import Bed, why_not
from beside import PARTS, place_of
from mpis import Mpi

# A shell that runs us in the background, or nohup, has signals ignored, which every process we start
# would inherit: kernels and ranks that cannot be interrupted. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# Tests that run at the same time: a workspace of one is not for another to find, or to stop.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix=f"px-{worker}-")
    atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

N_SLOWEST = 25


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def mpi(request) -> Mpi:
    found = Mpi(request.param)
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    if not (found.bin / "mpirun").exists():
        pytest.skip(f"{request.param} is not installed in {found.bin.parent} (tests/run does it)")
    return found


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--part",
        choices=PARTS,
        help="only the tests that may run beside others, or in pairs (-n of pytest-xdist), or alone",
    )
    parser.addoption(
        "--failed-to", metavar="FILE", help="write here which tests failed, one a line"
    )


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Whether a file need not be read: none of its tests belongs to the part that is to run."""
    part = config.getoption("part")
    is_other = collection_path.suffix == ".py" and place_of(collection_path)[0] != part
    return True if part is not None and is_other else None


def pytest_collection_modifyitems(config, items) -> None:
    part = config.getoption("part")
    if part is None:
        return
    places = {item: place_of(item.path) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if places[item][0] != part])
    items[:] = [item for item in items if places[item][0] == part]
    # Those in a browser first: they are the longest, and have a worker to themselves.
    items.sort(key=lambda item: (lane_of(item.nodeid) != "browser", places[item][1]))


def lane_of(test: str) -> str:
    """Which tests run on one worker, one after the other: those of a file, and all in a browser.

    Of these one keeps a core busy.
    """
    file = test.partition("::")[0]
    return "browser" if file.endswith(("_in_browser.py", "_in_lab.py")) else file


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane_of(nodeid)

    return Lanes(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Stop the cells of a test that has failed: its kernel may be that of all tests of the file."""
    report = yield
    if report.failed and "kernel_driver" in sys.modules:
        for driver in list(sys.modules["kernel_driver"].KernelDriver.open):
            driver.stop_cells()
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Say which files took longest: where to look when a run takes too long."""
    if path := terminalreporter.config.getoption("failed_to"):
        stats, session = terminalreporter.stats, terminalreporter._session
        # At a later try, who is asked for by name: one that skips itself has not passed.
        kinds = ("failed", "error", *(() if Path(path).name in PARTS else ("skipped",)))
        reports = [report for kind in kinds for report in stats.get(kind, ())]
        failed = dict.fromkeys(report.nodeid for report in reports)
        # -x or --maxfail: what comes after those was not run at all.
        if not (session.shouldfail or session.shouldstop):
            Path(path).write_text("".join(f"{test}\n" for test in failed))
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    slowest = [(name, taken) for name, taken in seconds.most_common(N_SLOWEST) if taken > 10]
    if slowest:
        terminalreporter.section("slowest files")
        for name, taken in slowest:
            terminalreporter.write_line(f"{taken:8.1f} s  {name}")


@pytest.fixture(scope="module")
def bed():
    """Three hosts, each with its sshd; who changes one mends it."""
    if reason := why_not():
        pytest.skip(reason)
    with Bed(3) as hosts:
        yield hosts
