"""Which measured links are slow or broken, and how each is said in words.

Pure: `LinkMeasurement` and a topology in, records out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from phalanx.protocol import LinkMeasurement, Topology

from ._world import count, say_ms

__all__ = ["Judge", "LinkFrame", "judge", "say_links"]

# A link is slow where half of the links of its kind are twice as wide, or answer in a third of the
# time and 500 µs sooner: a process that must be woken on a busy machine costs as much as that.
_NARROW, _LATE, _LATE_US = 2.0, 3.0, 500.0
_FEWEST = 3  # links of a kind, to tell one of them from the others


class LinkFrame(msgspec.Struct, frozen=True):
    """A measured link, as it is drawn; ``words`` have all that there is to say."""

    a: int
    b: int
    state: Literal["ok", "slow", "broken"]
    words: str


def judge(links: Sequence[LinkMeasurement], t: Topology) -> tuple[LinkFrame, ...]:
    """Tell slow and broken links from the others of their kind (shared memory, tcp).

    Links of dead ranks are broken, measured or not. What is usual is found once for each kind: there
    are as many links as pairs of ranks.
    """
    kinds = {(link.a, link.b): link.transport for link in t.links}
    dead = _dead(t)
    by_kind: dict[str, list[LinkMeasurement]] = defaultdict(list)
    for link in links:
        by_kind[kinds.get((link.a, link.b), "")].append(link)
    usual = {
        kind: (median(one.gbs for one in alike), median(one.latency_us for one in alike))
        for kind, alike in by_kind.items()
        if len(alike) >= _FEWEST
    }
    measured = tuple(
        _judged(link, usual.get(kinds.get((link.a, link.b), "")), {link.a, link.b} & dead)
        for link in links
    )
    known = {(link.a, link.b) for link in links}
    lost = tuple(
        LinkFrame(a, b, "broken", _say_dead({a, b} & dead))
        for a, b in kinds
        if (a, b) not in known and {a, b} & dead
    )
    return measured + lost


class Judge:
    """Judges links anew where they, the world's links or who is dead have changed: looks are many."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._frames: tuple[LinkFrame, ...] = ()

    def take(self, links: Sequence[LinkMeasurement], t: Topology) -> tuple[LinkFrame, ...]:
        """Return what `judge` does."""
        of = (tuple(links), t.links, _dead(t))
        if of != self._of:
            self._of, self._frames = of, judge(links, t)
        return self._frames


def _dead(t: Topology) -> set[int]:
    return {rank.rank for rank in t.ranks if rank.state == "dead"}


def _say_dead(dead: set[int]) -> str:
    return f"broken: rank {min(dead)} is dead"


def _judged(link: LinkMeasurement, usual: tuple[float, float] | None, dead: set[int]) -> LinkFrame:
    said = f"{say_ms(link.latency_us / 1e3)}, {link.gbs:.3g} GB/s"
    if dead:
        return LinkFrame(link.a, link.b, "broken", _say_dead(dead))
    if link.n_wrong:
        words = f"broken: {count(link.n_wrong, 'byte')} came back wrong; {said}"
        return LinkFrame(link.a, link.b, "broken", words)
    if usual is not None:
        gbs, latency_us = usual
        if link.gbs * _NARROW < gbs:
            return LinkFrame(link.a, link.b, "slow", f"slow: {said}; others {gbs:.3g} GB/s")
        if link.latency_us > max(_LATE * latency_us, latency_us + _LATE_US):
            words = f"slow: {said}; others {say_ms(latency_us / 1e3)}"
            return LinkFrame(link.a, link.b, "slow", words)
    return LinkFrame(link.a, link.b, "ok", said)


def say_links(frames: Sequence[LinkFrame]) -> str:
    """Say what a measurement has found, the slow and the broken ones by name."""
    odd = [f"rank {one.a} - rank {one.b}: {one.words}" for one in frames if one.state != "ok"]
    if not odd:
        return f"{count(len(frames), 'link')} measured, none slow or broken"
    return "\n".join([f"{count(len(frames), 'link')} measured", *odd])
