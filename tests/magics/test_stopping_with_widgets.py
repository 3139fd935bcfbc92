"""Ranks are let go of also where the last picture of them cannot be had."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx import widgets
from phalanx.magics._magics import DistributedMagics


class Ranks:
    """A workspace that notes its end."""

    why_lost = ""

    def __init__(self, *, is_watching: bool = False) -> None:
        self.is_watching = is_watching
        self.ended: list[str] = []

    def stop(self) -> None:
        """Note it."""
        self.ended.append("stopped")

    def detach(self) -> None:
        """Note it."""
        self.ended.append("detached")


class Picture:
    """A live widget, of which only that there is one matters."""


@pytest.mark.parametrize(
    ("line", "is_watching", "ended"),
    [
        ("close", False, "stopped"),
        ("close", True, "detached"),
        ("stop", False, "stopped"),
        ("detach", False, "detached"),
    ],
)
def test_a_ctrl_c_in_the_wait_for_pictures_is_no_way_to_keep_ranks(
    monkeypatch, line, is_watching, ended
):
    def keep(_, *, is_forced):
        assert is_forced
        raise KeyboardInterrupt

    monkeypatch.setattr(widgets, "keep_stills", keep)
    magics = DistributedMagics(SimpleNamespace(events=None, input_transformers_cleanup=[]))
    shown = Picture()
    magics._live.add(shown)
    ranks = magics._workspace = Ranks(is_watching=is_watching)
    with pytest.raises(KeyboardInterrupt):
        magics.close() if line == "close" else magics.distributed(line)
    assert ranks.ended == [ended]
    assert magics.workspace is None
