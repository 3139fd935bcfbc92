"""The public interface: the names that it offers, and sizes for `Group.describe`."""

from __future__ import annotations

import re

import numpy as np
import pytest

import phalanx


def test_the_names_of_this_room_are_public_and_loaded_when_used():
    ours = ["Group", "all_gather", "all_sum", "broadcast", "init", "is_available", "recover"]
    for name in ours:
        assert name in phalanx.__all__
        assert name in dir(phalanx)
        assert getattr(phalanx, name).__module__.startswith("phalanx.distributed.")
    with pytest.raises(AttributeError, match="no attribute 'all_summ'"):
        _ = phalanx.all_summ


def test_every_public_name_is_listed_once():
    assert len(set(phalanx.__all__)) == len(phalanx.__all__)  # their order is ruff's affair


@pytest.mark.parametrize("size", ["x", -1, 1.5, 1 << 63, None])
def test_a_size_that_is_none_is_refused_in_one_line(size):
    with pytest.raises(
        ValueError, match=r"^describe takes sizes in bytes, whole numbers from 0, not .*$"
    ):
        phalanx.init().describe([8, size])


@pytest.mark.parametrize("sizes", [5, None, np.array(5)])
def test_sizes_that_are_no_list_are_refused_in_one_line(sizes):
    said = f"describe takes a list of sizes in bytes, like [8, 4096], not {sizes!r}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        phalanx.init().describe(sizes)


def test_sizes_are_any_whole_numbers():
    assert (
        3 << 20 in phalanx.init().describe([np.int64(3 << 20)])["engine"]["algorithms"]["all_sum"]
    )
