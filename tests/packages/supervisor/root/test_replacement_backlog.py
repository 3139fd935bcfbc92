"""Check which replaced ranks a client still has to prepare."""

from __future__ import annotations

from phalanx.protocol import Replaced, ReplacementsReady
from phalanx.supervisor.root.replacement import ReplacementBacklog


def backlog(*engines: str) -> ReplacementBacklog:
    """Return a backlog in which rank 1 was replaced by each of ``engines``, one after the other."""
    made = ReplacementBacklog()
    for engine in engines:
        made.add(Replaced(1, engine, "was killed", 10.0, 11.0))
    return made


def test_a_handled_replacement_drops_older_ones_of_its_rank():
    made = backlog("first", "second")
    made.settle(ReplacementsReady(("second",)))
    assert not made.returns


def test_a_handled_replacement_keeps_a_newer_one_of_its_rank():
    made = backlog("first", "second")
    made.settle(ReplacementsReady(("first",)))
    assert [its.engine for its in made.returns] == ["second"]
