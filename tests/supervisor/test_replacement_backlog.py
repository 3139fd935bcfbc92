"""Check what a client that attaches later is told of deaths and replacements."""

from __future__ import annotations

import itertools

from phalanx.protocol import ReplacementsReady
from phalanx.supervisor.membership import RankDirectory
from phalanx.supervisor.root.replacement import ReplacementBacklog


def backlog(*engines: str) -> ReplacementBacklog:
    """Return a backlog in which rank 1 was replaced by each of ``engines``, one after the other."""
    ranks, newest = RankDirectory(2), ["", ""]
    made = ReplacementBacklog(ranks, newest, clock=itertools.count(10.0).__next__)
    for newest[1] in engines:
        ranks.mark_lost(1, "was killed")
        ranks.mark_alive(1)
    return made


def test_a_handled_replacement_drops_older_ones_of_its_rank():
    made = backlog("first", "second")
    made.settle(ReplacementsReady(("second",)))
    assert not made.returns


def test_a_handled_replacement_keeps_a_newer_one_of_its_rank():
    made = backlog("first", "second")
    made.settle(ReplacementsReady(("first",)))
    assert [its.engine for its in made.returns] == ["second"]
