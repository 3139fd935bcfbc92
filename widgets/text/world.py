"""Describe a topology in words: counts, arenas, links."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Literal, TypeVar

import msgspec

from phalanx.protocol import HostInfo, LinkInfo, RankInfo, WorldTopology, format_ranks
from phalanx.workspace import format_time

Record = TypeVar("Record", bound=msgspec.Struct)

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# "collective": the rank is inside an operation. "busy": the rank runs the user's Python code.
State = Literal["planned", "starting", "idle", "busy", "collective", "input", "dead"]

# Pairs of hosts listed: all for 16 hosts; 1000 hosts would give half a million lines.
MOST_PAIRS = 128


def clean(outside: str) -> str:
    r"""Return outside text as one line of characters valid in XML.

    Characters that XML 1.0 cannot hold are replaced.

    Examples
    --------
    >>> clean("a\x00b\nc")
    'a\ufffdb c'
    """
    line_ = _NOT_XML.sub("\ufffd", outside)
    return " ".join(line_.split())


def cleaned(record: Record) -> Record:
    """Return a record with each of its texts as `clean` returns it."""
    texts = {name: getattr(record, name) for name in record.__struct_fields__}
    lines = {name: clean(its) for name, its in texts.items() if isinstance(its, str)}
    return msgspec.structs.replace(record, **lines)


def state_of(rank: RankInfo) -> State:
    """Return the displayed state of a rank."""
    return "collective" if rank.state == "busy" and rank.detail else rank.state


def dead_ranks(t: WorldTopology) -> frozenset[int]:
    """Return the numbers of the dead ranks."""
    return frozenset(rank.rank for rank in t.ranks if rank.state == "dead")


def count(n: int, thing: str) -> str:
    """Return a number and noun: 1 rank, 2 ranks."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def say_ms(ms: float) -> str:
    """Format a duration in three digits: 1.2 s, 3.45 ms, 67 µs."""
    # A value that rounds to 1000 of a unit becomes 1 of the next unit.
    if ms >= 999.5:
        return f"{ms / 1e3:.3g} s"
    return f"{ms:.3g} ms" if ms >= 0.9995 else f"{1e3 * ms:.3g} µs"


def say_rate(nbytes: float) -> str:
    """Format bytes per second in three digits; 1 GB = 1e9 bytes.

    Examples
    --------
    >>> say_rate(2.5e9), say_rate(999.0)
    ('2.5 GB/s', '999 B/s')
    """
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.3g} B/s"


def headline(t: WorldTopology) -> str:
    """Return the numbers of ranks and hosts, and the epoch."""
    stands = f"epoch {t.epoch}" if t.epoch else "planned, not started"
    return f"{count(t.size, 'rank')} on {count(len(t.hosts), 'host')}, {stands}"


def address(host: HostInfo) -> str:
    """Return a host's address and network card, if known."""
    return f"{host.address} on {host.device}" if host.device else host.address


def address_and_cores(host: HostInfo) -> str:
    """Describe a host's address, network card and cores, if known."""
    cores = count(host.cores, "core") if host.cores else ""
    return " · ".join(filter(None, (address(host), cores)))


def arenas(t: WorldTopology) -> dict[int, list[set[int]]]:
    """Return by host the sets of ranks that share memory.

    A set is a connected component of arena links. One pass over the links, as there are as many
    links as pairs of ranks.
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


def wires(t: WorldTopology) -> tuple[dict[int, list[LinkInfo]], dict[tuple[int, int], int]]:
    """Return tcp links inside hosts, and link counts between hosts."""
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


def _memory(rank: RankInfo) -> str:
    """Return a rank's memory in MiB; "" if unknown."""
    return f"{rank.rss_nbytes / 2**20:.0f} MiB" if rank.rss_nbytes else ""


def _cell(rank: RankInfo) -> str:
    """Describe how long a rank's cell runs, and its first line."""
    lasts = f" for {format_time(rank.cell_s)}" if rank.cell_s >= 1 else ""
    return lasts + (f": `{clean(rank.cell)}`" if rank.cell else "")


def describe(t: WorldTopology) -> str:
    """Describe the whole picture in text, a line for each rank."""
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
            memory = f"{_memory(r):>8}  " if any(map(_memory, ranks)) else ""
            lines.append(f"    rank {r.rank:<3} {pid}{memory}{r.state}{_cell(r)}{said}")
        lines += [
            f"    arena: ranks {format_ranks(a)} share memory" for a in shared.get(host.index, ())
        ]
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
