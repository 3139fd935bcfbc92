"""A pytest plugin: the bed of three hosts that all tests of a worker share.

A test that changes the bed mends it. After each test the bed is compared with what was made; after
each file nothing may run on its hosts. If there is a difference, the bed is made anew, so that the
next test does not fail for it, and the test that left it fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from support.hosts.bed import Bed, why_not
from support.promise import BOUND_S, PATIENCE_S, check
from support.waiting import wait_until

_BED = pytest.StashKey[Bed]()
_FAILED = pytest.StashKey[bool]()
_UP_AGAIN_S = 2.0  # the kernel says within a second that a card is up again (linkwatch)


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    """Three hosts, each with its sshd; a test that changes one mends it."""
    with own_bed() as made:
        request.config.stash[_BED] = made
        yield made
        del request.config.stash[_BED]
        _check(made, ends_file=True)


@contextlib.contextmanager
def own_bed(hosts: int = 3) -> Iterator[Bed]:
    """Make hosts for one file only, as for daemons that stay; skip where there are none."""
    if reason := why_not():
        pytest.skip(reason)
    with Bed(hosts) as made:
        yield made


def check_nothing_left(
    bed: Bed, *hosts: int, bound_s: float = BOUND_S, but: str | tuple[str, ...] = ()
) -> None:
    """Assert that nothing runs on these hosts any more, and record how long that took."""
    begin_s = time.monotonic()
    left = bed.left(bound_s, *hosts, but=but)
    took_s = time.monotonic() - begin_s
    assert left == []
    check(took_s, bound_s)


def has_failed(item: pytest.Item) -> bool:
    """Whether the setup or the call of a test has failed so far."""
    return item.stash.get(_FAILED, False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call):
    report = yield
    item.stash[_FAILED] = has_failed(item) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    is_quiet = has_failed(item)
    try:
        return (yield)
    except BaseException:
        is_quiet = True
        raise
    finally:
        shared = item.config.stash.get(_BED, None)
        if shared is not None and "bed" in getattr(item, "fixturenames", ()):
            ends_file = nextitem is None or nextitem.path != item.path
            _check(shared, ends_file=ends_file, is_quiet=is_quiet)


def _check(bed: Bed, *, ends_file: bool, is_quiet: bool = False) -> None:
    """Make the bed anew if it is not whole; fail, too, unless the test has failed already."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not bed.flaws(), "the bed is whole", _UP_AGAIN_S)
    found = bed.flaws()
    if ends_file:
        found += bed.left(PATIENCE_S)
    if found:
        bed.renew()
        assert is_quiet, f"a test has left the bed of hosts changed: {'; '.join(found)}"
