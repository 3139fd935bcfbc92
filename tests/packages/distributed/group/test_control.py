"""What the supervisor makes for its ranks."""

from __future__ import annotations

import fcntl
import os
import threading

import numpy as np
import pytest
from support.waiting import wait_until

from phalanx import _native
from phalanx.distributed import control
from phalanx.distributed.control import ControlPage
from phalanx.protocol import MOST_RANKS


@pytest.mark.parametrize("make", [control.create_region, lambda: control.create_page(4)])
def test_shared_memory_has_no_name_is_closed_on_exec_and_cannot_shrink(make):
    fd = make()
    try:
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_nlink == 0
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def test_a_page_takes_as_many_ranks_as_a_hostfile():
    os.close(control.create_page(1, MOST_RANKS))
    with pytest.raises(ValueError, match=f"at most {MOST_RANKS} ranks"):
        control.create_page(1, MOST_RANKS + 1)


@pytest.fixture
def lone_rank():
    """Give rank 0 of two on a host of many ranks: its group and the page. Rank 1 never comes."""
    slots = 18
    fds = [control.create_region() for _ in range(slots)]
    page_fd = control.create_page(slots)
    page = ControlPage(page_fd, slots=slots, author=0)
    arena = _native.Arena(fds, own=0)
    group = _native.Group(
        rank=0, size=2, epoch=1, hosts=[0, 0], slots=[0, 1], arena=arena, page=page
    )
    yield group, page
    group.close()
    arena.close()
    page.close()
    for fd in (*fds, page_fd):
        os.close(fd)


def test_a_region_has_room_for_a_message_nobody_waits_for_on_a_host_of_many_ranks(lone_rank):
    """Up to 64 slots, as native/shm/arena.hpp says."""
    group, _ = lone_rank
    group.run("send", np.zeros(64 << 10, np.uint8), None, 1, 5.0)  # rank 1 never comes


def test_a_region_that_cannot_be_is_refused_and_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises((ValueError, OSError, RuntimeError)):
        control.create_region(1)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_held_rank_says_where_it_is_and_goes_on_when_it_is_let_in(lone_rank):
    group, page = lone_rank
    seen = []

    def let_in():
        wait_until(lambda: page.held(0) is not None, "rank 0 is held")
        seen.append((page.held(0), page.activity(0)))
        page.let_in(0, 2, 0, 1, 1)  # of another epoch
        page.let_in(0, 1, 0, 1, 1)

    helper = threading.Thread(target=let_in)
    page.hold(0, threading.get_native_id())
    helper.start()
    group.run("send", np.zeros(3), None, 1)
    helper.join()
    activity = (1, {0: ("", 0, 0, 0, "", 0)}, (-1, "", -1, 0), {})
    assert seen == [((0, "send", 1, 1), activity)]
    assert page.activity(0)[3] == {(0, 1): (1, 0, False, False)}
    assert page.held(0) is None
    assert not page.drop_hold(0)
    group.run("send", np.zeros(3), None, 1)
    with pytest.raises(ValueError, match="no such slot"):
        page.hold(18, 1)
    page.release(1)
