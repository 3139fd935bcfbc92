"""Where a user's traceback ends."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import phalanx as px
from phalanx.rank import clear_own_frames, without_own_frames


def names(tb):
    return [frame.name for frame in traceback.extract_tb(tb)]


def call(function, *arguments):
    return function(*arguments)


def test_our_frames_are_dropped_from_the_end():
    with pytest.raises(px.NotSupported) as caught:
        call(px.all_sum, np.ones(2, np.longdouble))
    assert len(names(caught.tb)) > 2
    assert names(without_own_frames(caught.tb)) == [
        "test_our_frames_are_dropped_from_the_end",
        "call",
    ]


def test_a_users_error_stays_as_it_is():
    with pytest.raises(ZeroDivisionError) as caught:
        call(lambda: 1 / 0)
    assert names(without_own_frames(caught.tb)) == names(caught.tb)
    assert without_own_frames(None) is None


def test_what_our_frames_hold_is_let_go_of_and_a_users_stays():
    def user():
        mine = np.ones(2, np.longdouble)
        px.all_sum(mine)

    with pytest.raises(px.NotSupported) as caught:
        user()
    error = caught.value
    error.__cause__ = error  # a chain may be a ring
    clear_own_frames(error)
    held = {frame.f_code.co_name: frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)}
    assert "mine" in held["user"]
    assert held["collective"] == {}
    error.__cause__ = None
    clear_own_frames(None)
