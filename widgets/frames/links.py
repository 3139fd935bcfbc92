"""Find slow and broken links among measured links, and describe them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import median
from typing import Literal

import msgspec

from phalanx.protocol import LinkInfo, LinkMeasurement, WorldTopology

from ..text.world import count, dead_ranks, say_ms

# A link is slow if its bandwidth is half the median of its kind, or if its latency is three times
# the median and 500 µs above it. Waking a process on a busy machine can take that long.
_NARROW, _LATE, _LATE_US = 2.0, 3.0, 500.0
_FEWEST = 3  # fewest links of a kind for a comparison


class LinkFrame(msgspec.Struct, frozen=True):
    """A measured link for drawing; ``words`` describe it in full."""

    a: int
    b: int
    state: Literal["ok", "slow", "broken"]
    words: str


def judge(links: Iterable[LinkMeasurement], t: WorldTopology) -> tuple[LinkFrame, ...]:
    """Judge each link against the others of its kind.

    The kinds are shared memory and tcp. Links of dead ranks are broken, measured or not. A widget
    asks several times a second, so the last results are kept.
    """
    return _judge(tuple(links), t.links, dead_ranks(t))


@lru_cache(maxsize=4)
def _judge(
    links: tuple[LinkMeasurement, ...], paths: tuple[LinkInfo, ...], dead: frozenset[int]
) -> tuple[LinkFrame, ...]:
    kinds = {(path.a, path.b): path.transport for path in paths}
    by_kind: dict[str, list[LinkMeasurement]] = defaultdict(list)
    for link in links:
        by_kind[kinds.get((link.a, link.b), "")].append(link)
    # Once per kind, as there are as many links as pairs of ranks.
    usual = {
        kind: (median(one.gbs for one in alike), median(one.latency_us for one in alike))
        for kind, alike in by_kind.items()
        if len(alike) >= _FEWEST
    }
    measured = {
        (link.a, link.b): _judged(link, usual.get(kinds.get((link.a, link.b), "")))
        for link in links
    }
    lost = {
        (a, b): LinkFrame(a, b, "broken", f"broken: rank {min({a, b} & dead)} is dead")
        for a, b in (*measured, *kinds)
        if {a, b} & dead
    }
    return tuple((measured | lost).values())


def _judged(link: LinkMeasurement, usual: tuple[float, float] | None) -> LinkFrame:
    said = f"{say_ms(link.latency_us / 1e3)}, {link.gbs:.3g} GB/s"
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
    """Describe a measurement; name the slow and broken links."""
    odd = [f"rank {one.a} - rank {one.b}: {one.words}" for one in frames if one.state != "ok"]
    if not odd:
        return f"{count(len(frames), 'link')} measured, none slow or broken"
    return "\n".join([f"{count(len(frames), 'link')} measured", *odd])
