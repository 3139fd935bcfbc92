"""What is known of a world beside how it stands, in lines: links that were measured, what moves, ways in use.

Pure; where the lines stand on a picture it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.protocol import LinkMeasurement, Topology

from ._in_use import UseFrame, say_use
from ._link_words import LinkFrame, judge
from ._rates import LinkRate
from ._world import count, say_rate

__all__ = ["Seen", "odd_lines"]

_MOST = 6  # lines of a kind: a still picture is looked at, not searched


@dataclass(frozen=True)
class Seen:
    """What somebody has asked for, or has watched; nothing of it else."""

    measured: tuple[LinkMeasurement, ...] = ()
    moving: tuple[LinkRate, ...] = ()
    uses: tuple[UseFrame, ...] = ()

    def links(self, t: Topology) -> dict[tuple[int, int], LinkFrame]:
        """Return what is slow or broken of the links between ranks that live."""
        dead = {rank.rank for rank in t.ranks if rank.state == "dead"}
        judged = judge(self.measured, t)[: len(self.measured)]
        return {(its.a, its.b): its for its in judged if not {its.a, its.b} & dead}

    def lines(self, links: Mapping[tuple[int, int], LinkFrame]) -> tuple[str, ...]:
        """Say what there is beside the odd ones; ``links`` is what `links` returned."""
        found = []
        if links:
            n_odd = sum(its.state != "ok" for its in links.values())
            found.append(f"{count(len(links), 'link')} measured, {n_odd or 'none'} slow or broken")
            if len(links) <= _MOST:  # each of them then, too
                found += [
                    f"rank {a} - rank {b}: {its.words}"
                    for (a, b), its in links.items()
                    if its.state == "ok"
                ]
        busiest = sorted(self.moving, key=lambda its: -its.rate)
        moving = [f"rank {its.source} to rank {its.target} {say_rate(its.rate)}" for its in busiest]
        if moving:
            found.append(f"moves over tcp: {', '.join(_first(moving))}")
        now_first = sorted(self.uses, key=lambda its: not its.is_now)
        found += [f"in use: {words}" for words in _first([say_use(use) for use in now_first])]
        return tuple(found)


def odd_lines(links: Mapping[tuple[int, int], LinkFrame]) -> tuple[str, ...]:
    """Say which links are slow or broken."""
    odd = [
        f"rank {its.a} - rank {its.b}: {its.words}" for its in links.values() if its.state != "ok"
    ]
    return tuple(_first(odd))


def _first(words: list[str]) -> Iterator[str]:
    yield from words[:_MOST]
    if len(words) > _MOST:
        yield f"and {len(words) - _MOST} more"
