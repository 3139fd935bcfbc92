"""A rank ends when its supervisor asks, and not because the supervisor was killed."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from phalanx.protocol import END_ASKED
from phalanx.rank.stops import CellStops


@pytest.mark.parametrize(("sent", "ends"), [(END_ASKED, 1), (b"", 0)])
def test_a_closed_pipe_alone_does_not_end_a_rank(sent, ends):
    """The kernel of the operating system ends it then, and no interrupt of ours hides why."""
    asked, removed = [], []
    loop = SimpleNamespace(remove_handler=removed.append)
    stops = SimpleNamespace(_loop=loop, end=lambda: asked.append("end"))
    read_fd, write_fd = os.pipe()
    os.write(write_fd, sent)
    os.close(write_fd)
    try:
        CellStops.on_end_asked(stops, read_fd, 1)
    finally:
        os.close(read_fd)
    assert (len(asked), removed) == (ends, [read_fd])
