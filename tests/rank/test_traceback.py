"""Where a user's traceback ends."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import phalanx as px
from phalanx.rank import without_own_frames


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
