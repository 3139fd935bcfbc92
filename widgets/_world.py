"""What there is to say of a world, drawn or not: counts, arenas, links, and the text form.

Pure functions of `phalanx.protocol.Topology`; how it looks is `_topology`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from phalanx.protocol import HostInfo, LinkInfo, RankInfo, Topology

from ._svg import clean

__all__ = [
    "MOST_PAIRS",
    "State",
    "address_and_cores",
    "arenas",
    "count",
    "describe",
    "headline",
    "ranges",
    "say_ms",
    "say_rate",
    "state_of",
    "wires",
]

# An operation that lasts is also seen as one by a person; "busy" is Python of their own.
State = Literal["planned", "starting", "idle", "busy", "collective", "input", "dead"]

MOST_PAIRS = 128  # of hosts, named: all of 16 hosts; of 1000 they would be half a million lines


def state_of(rank: RankInfo) -> State:
    """Return what a person sees a rank in."""
    return "collective" if rank.state == "busy" and rank.detail else rank.state


def count(n: int, thing: str) -> str:
    """Say how many: 1 rank, 2 ranks."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def say_ms(ms: float) -> str:
    """Say how long, in three figures: 1.2 s, 3.45 ms, 67 µs."""
    # What rounds to 1000 of a unit is 1 of the next.
    if ms >= 999.5:
        return f"{ms / 1e3:.3g} s"
    return f"{ms:.3g} ms" if ms >= 0.9995 else f"{1e3 * ms:.3g} µs"


def say_rate(nbytes: float) -> str:
    """Say bytes per second in three figures, with 1 GB = 1e9 bytes: 5 MB/s.

    Examples
    --------
    >>> say_rate(2.5e9), say_rate(999.0)
    ('2.5 GB/s', '999 B/s')
    """
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.3g} B/s"


def headline(t: Topology) -> str:
    """Say how big the world is, and its epoch."""
    stands = f"epoch {t.epoch}" if t.epoch else "planned, not started"
    return f"{count(t.size, 'rank')} on {count(len(t.hosts), 'host')}, {stands}"


def address_and_cores(host: HostInfo) -> str:
    """Say where a host is, on which network card, and how many cores it has, as far as is known."""
    address = f"{host.address} on {host.device}" if host.device else host.address
    return " · ".join(filter(None, (address, count(host.cores, "core") if host.cores else "")))


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: 0-2,5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def arenas(t: Topology) -> dict[int, list[set[int]]]:
    """Return the ranks that share memory, as sets by host (a link is a pair, an arena their closure).

    One pass over the links: there are as many as pairs of ranks.
    """
    home = {r.rank: r.host for r in t.ranks}
    of: dict[int, set[int]] = {}
    for link in t.links:
        host = home.get(link.a)
        if link.transport != "arena" or host is None or host != home.get(link.b):
            continue
        a, b = (of.setdefault(rank, {rank}) for rank in (link.a, link.b))
        if a is not b:
            few, many = sorted((a, b), key=len)
            many |= few
            of.update(dict.fromkeys(few, many))
    found: dict[int, list[set[int]]] = defaultdict(list)
    for shared in sorted({id(its): its for its in of.values()}.values(), key=min):
        found[home[min(shared)]].append(shared)
    return found


def wires(t: Topology) -> tuple[dict[int, list[LinkInfo]], dict[tuple[int, int], int]]:
    """Return the tcp links inside each host, and how many there are between each two hosts."""
    home = {r.rank: r.host for r in t.ranks}
    inside: dict[int, list[LinkInfo]] = defaultdict(list)
    between: dict[tuple[int, int], int] = defaultdict(int)
    for link in t.links:
        a, b = home.get(link.a), home.get(link.b)
        if link.transport == "tcp" and a is not None and b is not None:
            if a == b:
                inside[a].append(link)
            else:
                between[min(a, b), max(a, b)] += 1
    return inside, between


def describe(t: Topology) -> str:
    """Say everything that the picture shows, a line for each rank."""
    inside, between = wires(t)
    names = {h.index: clean(h.name) for h in t.hosts}
    shared = arenas(t)
    lines = [f"{clean(t.name)}: {headline(t)}"]
    for host in t.hosts:
        where = clean(address_and_cores(host)).replace(" · ", ", ")
        lines.append(f"  {names[host.index]}" + (f" ({where})" if where else ""))
        ranks = [r for r in t.ranks if r.host == host.index]
        for r in ranks:
            said = f"  {clean(r.detail)}" if r.detail else ""
            pid = f"pid {r.pid:<8} " if r.pid else ""
            lines.append(f"    rank {r.rank:<3} {pid}{r.state}{said}")
        lines += [f"    arena: ranks {ranges(a)} share memory" for a in shared.get(host.index, ())]
        if inside[host.index]:
            lines.append(f"    tcp: {count(len(inside[host.index]), 'link')} between these ranks")
    lines += [
        f"  tcp: {names.get(a, a)} - {names.get(b, b)}, {count(n, 'link')}"
        for (a, b), n in sorted(between.items())[:MOST_PAIRS]
    ]
    if len(between) > MOST_PAIRS:
        all_ = count(sum(between.values()), "link")
        lines.append(f"  tcp: and {len(between) - MOST_PAIRS} more pairs of hosts, {all_} in all")
    return "\n".join(lines)
