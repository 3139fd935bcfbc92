"""Draw the cables, networks and chosen ring of hosts before start.

The data are the discovery and the plan of `phalanx.hosts`. `_topology` draws running ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree as ET

from phalanx.hosts import Discovery, Network, Plan
from phalanx.protocol import HostInfo, HostPlan, LinkInfo, LinkMeasurement, RankInfo, WorldTopology

from ..text.world import clean, count
from .svg import StillPicture, fit, group, line, picture, rect, render, text

__all__ = ["cabling", "planned"]


_BOX_W, _BOX_H = 150.0, 46.0  # pixels of a host's box
_MARGIN, _TITLE = 24.0, 44.0
_MOST_LABELS = 12  # hosts up to which each end of a cable shows its interface
_MOST_CROSSING = 4  # more hosts: measurements only at the ring's paths
_LABEL_ROOM = 110.0  # pixels between two boxes, for the labels of their cables' interfaces
_GAP = 7.0  # pixels between parallel cables
_CHOSEN, _MISSING = "#0072b2", "#d55e00"  # Okabe and Ito's blue and vermillion


@dataclass(frozen=True)
class _Edge:
    """A line between two hosts; ``kind`` is chosen, spare or missing."""

    a: int
    b: int
    a_label: str = ""
    b_label: str = ""
    kind: str = "spare"
    label: str = ""  # in the middle


@dataclass(frozen=True)
class _Drawing:
    """The hosts (name and subtitle), their order, edges and common networks."""

    title: str
    hosts: tuple[tuple[str, str], ...]
    order: tuple[int, ...]
    edges: tuple[_Edge, ...]
    networks: tuple[Network, ...] = ()
    note: str = ""


def cabling(
    discovery: Discovery, plan: Plan | None = None, times: Sequence[LinkMeasurement] = ()
) -> StillPicture:
    """Return a still picture of the connections between hosts.

    Parameters
    ----------
    discovery : Discovery
        The hosts, cables and networks found.
    plan : Plan, optional
        The chosen plan; its ring is emphasised. Without a plan, missing cables are shown.
    times : sequence of LinkMeasurement, optional
        Measured paths, shown in place of networks: the best of each pair.

    Returns
    -------
    StillPicture
        Hosts on an ellipse, with cables and their interfaces between, or networks in the middle.
    """
    order = plan.order if plan is not None else tuple(range(len(discovery.hosts)))
    has_cables = bool(discovery.cables) and (plan is None or plan.over == "thunderbolt")
    ips = (
        {place: host.ips for place, host in zip(order, plan.hostfile.hosts, strict=True)}
        if plan
        else {}
    )
    hosts = tuple(
        (name, ", ".join(ips.get(i, ())) or discovery.surveys[i].system)
        for i, name in enumerate(discovery.names)
    )
    networks = (
        () if has_cables or times else plan.networks if plan is not None else discovery.networks
    )
    joined = count(len(discovery.cables), "cable")
    if times:
        joined = count(len(times), "path") + " measured"
    elif networks:
        joined = count(len(networks), "network")
    title = f"{count(len(hosts), 'host')}, {_what(plan)}, {joined}"
    edges = _timed(plan, times) if times else _cables(discovery, plan) if has_cables else ()
    note = "" if discovery.ring.ring or not has_cables else discovery.ring.reason
    return _still(_Drawing(title, hosts, order, tuple(edges), tuple(networks), note))


def _cables(discovery: Discovery, plan: Plan | None) -> Iterator[_Edge]:
    """Yield the cables; without a plan, also the missing cables."""
    for c in discovery.cables:
        kind = "spare" if plan is None else _kind(plan, c.a, c.b)
        yield _Edge(c.a, c.b, c.a_interface, c.b_interface, kind)
    if plan is None:
        for a, b in discovery.missing:
            yield _Edge(a, b, kind="missing")


def _timed(plan: Plan | None, times: Sequence[LinkMeasurement]) -> Iterator[_Edge]:
    """Yield an edge for each pair, with its best measured path."""
    best: dict[tuple[int, int], LinkMeasurement] = {}
    for path in times:
        before = best.get((path.a, path.b))
        if not path.failure and (before is None or path.gbs > before.gbs):
            best[path.a, path.b] = path
    for (a, b), path in sorted(best.items()):
        label = f"{path.gbs:.2f} GB/s, {path.latency_us:.0f} us"
        yield _Edge(a, b, kind="spare" if plan is None else _kind(plan, a, b), label=label)


def _what(plan: Plan | None) -> str:
    return "no plan" if plan is None else f"{plan.hostfile.backend or 'any'} over {plan.over}"


def _kind(plan: Plan, a: int, b: int) -> str:
    """Return "chosen" if a plan connects two hosts directly, else "spare"."""
    if plan.hostfile.backend == "jaccl":
        return "chosen"
    n = len(plan.order)
    apart = abs(plan.order.index(a) - plan.order.index(b))
    return "chosen" if apart in {1, n - 1} else "spare"


def _still(d: _Drawing) -> StillPicture:
    words = "\n".join(_lines(d))
    return StillPicture(render(_draw(d, words)), words)


def _lines(d: _Drawing) -> Iterator[str]:
    yield d.title
    for place in d.order:
        name, below = d.hosts[place]
        yield f"  {clean(name)} ({clean(below)})" if below else f"  {clean(name)}"
    for edge in d.edges:
        labels = f" ({edge.a_label} - {edge.b_label})" if edge.a_label or edge.b_label else ""
        labels += f": {edge.label}" if edge.label else ""
        yield f"  {edge.kind}: {clean(d.hosts[edge.a][0])} - {clean(d.hosts[edge.b][0])}{clean(labels)}"
    for network in d.networks:
        members = ", ".join(
            f"{clean(d.hosts[i][0])} {interface} {address}"
            for i, (interface, address) in sorted(network.members.items())
        )
        yield f"  network {network.prefix}: {members}"
    if d.note:
        yield f"  {clean(d.note)}"


def _draw(d: _Drawing, words: str) -> ET.Element:
    n = len(d.hosts)
    across, down = _size(n)
    if d.networks:
        down = max(down, 150.0)
    width = max(across + _BOX_W + 2 * _MARGIN, 460.0)
    height = _TITLE + down + _BOX_H + 2 * _MARGIN + (22 if d.note else 0)
    middle = (width / 2, _TITLE + _MARGIN + (down + _BOX_H) / 2)
    around = _around(n, across, down)
    at = {
        place: (middle[0] + x, middle[1] + y) for place, (x, y) in zip(d.order, around, strict=True)
    }
    root = picture(width, height, title=d.title, description=words)
    text(root, _MARGIN, 31, fit(d.title, width - 2 * _MARGIN, 15), size=15, font_weight=650)
    for number, network in enumerate(d.networks):
        _draw_network(root, network, at, (middle[0], middle[1] + 24.0 * number))
    spread = list(_spread(d.edges))
    for edge, shift in spread:
        _draw_edge(root, edge, d, _ends(edge, at, shift))
    for place in d.order:
        _draw_host(root, *d.hosts[place], *at[place])
    for edge, shift in spread if n <= _MOST_LABELS else ():
        if not edge.label:
            _draw_labels(root, edge, _ends(edge, at, shift), shift)
        elif edge.kind == "chosen" or n <= _MOST_CROSSING:
            _draw_figure(root, edge, _ends(edge, at, shift))
    if d.note:
        text(root, _MARGIN, height - 16, fit(d.note, width - 2 * _MARGIN, 12), class_="px-alarm")
    return root


def _size(n: int) -> tuple[float, float]:
    """Return the ellipse's size so that neighbouring hosts do not overlap."""
    room = _LABEL_ROOM if n <= _MOST_LABELS else 16.0
    if n < 3:
        return (_BOX_W + room) * (n - 1), 0.0
    across = (_BOX_W + room) / math.sin(math.pi / n)
    while True:
        down = max(0.5 * across, 2.2 * (_BOX_H + room / 2))
        places = _around(n, across, down)
        # At the ends of a flat ellipse, neighbours are neither side by side nor one above the
        # other.
        if all(
            abs(ax - bx) >= _BOX_W + 6 or abs(ay - by) >= _BOX_H + 6
            for (ax, ay), (bx, by) in zip(places, [*places[1:], places[0]], strict=True)
        ):
            return across, down
        across *= 1.04


def _around(n: int, across: float, down: float) -> list[tuple[float, float]]:
    """Return n places on an ellipse, from the top left.

    Four hosts then form a square.
    """
    start = math.pi - (math.pi / n if n > 2 else 0.0)
    turns = (2 * math.pi * k / n - start for k in range(n))
    return [(across / 2 * math.cos(turn), down / 2 * math.sin(turn)) for turn in turns]


def _spread(edges: Sequence[_Edge]) -> Iterator[tuple[_Edge, float]]:
    """Yield edges with an offset that separates parallel cables."""
    for edge in edges:
        alike = [other for other in edges if {other.a, other.b} == {edge.a, edge.b}]
        place = next(k for k, other in enumerate(alike) if other is edge)
        yield edge, (place - (len(alike) - 1) / 2) * _GAP * (1 if edge.a < edge.b else -1)


def _ends(
    edge: _Edge, at: dict[int, tuple[float, float]], shift: float
) -> tuple[float, float, float, float]:
    """Return the ends of an edge, shifted sideways by ``shift`` pixels."""
    (x1, y1), (x2, y2) = at[edge.a], at[edge.b]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    x, y = -(y2 - y1) / length * shift, (x2 - x1) / length * shift
    return x1 + x, y1 + y, x2 + x, y2 + y


def _draw_edge(
    root: ET.Element, edge: _Edge, d: _Drawing, ends: tuple[float, float, float, float]
) -> None:
    names = f"{d.hosts[edge.a][0]} {edge.a_label} - {d.hosts[edge.b][0]} {edge.b_label}"
    g = group(root, label=f"{edge.kind} {names} {edge.label}")
    if edge.kind == "chosen":
        line(g, *ends, stroke=_CHOSEN, stroke_width=2.6)
    elif edge.kind == "missing":
        line(g, *ends, stroke=_MISSING, stroke_width=1.8, stroke_dasharray="6 5")
    else:
        line(g, *ends, class_="px-link", stroke_width=1.2)


def _draw_labels(
    root: ET.Element, edge: _Edge, ends: tuple[float, float, float, float], shift: float
) -> None:
    """Write the interface names where the cable leaves the boxes."""
    x1, y1, x2, y2 = ends
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    out = min(
        (_BOX_W / 2 + 16) / abs(dx) if dx else length,
        (_BOX_H / 2 + 9) / abs(dy) if dy else length,
    )
    side = 10.0 if shift <= 0 else -10.0
    for x, y, sx, sy, label in (
        (x1, y1, dx, dy, edge.a_label),
        (x2, y2, -dx, -dy, edge.b_label),
    ):
        lx, ly = x + sx * out + dy * side * 1.4, y + sy * out - dx * side
        text(root, lx, ly + 3, label, size=10, class_="px-soft", text_anchor="middle")


def _draw_figure(root: ET.Element, edge: _Edge, ends: tuple[float, float, float, float]) -> None:
    """Write the measurement above the line, or beside a steep line."""
    x1, y1, x2, y2 = ends
    # Off the middle for spare paths, which cross each other there.
    along = 0.5 if edge.kind == "chosen" else 0.3
    x, y = x1 + along * (x2 - x1), y1 + along * (y2 - y1)
    if abs(x2 - x1) < 0.3 * abs(y2 - y1):
        text(root, x + 6, y + 3, edge.label, size=10)
    else:
        text(root, x, y - 6, edge.label, size=10, text_anchor="middle")


def _draw_network(
    root: ET.Element,
    network: Network,
    at: dict[int, tuple[float, float]],
    middle: tuple[float, float],
) -> None:
    x, y = middle
    speed = f" · {network.speed_mbps / 1000:g} Gbit/s" if network.speed_mbps else ""
    g = group(root, label=f"network {network.prefix}{speed}")
    for host in sorted(network.members):
        line(g, x, y, *at[host], class_="px-link", stroke_width=1.4)
    said = f"{network.prefix}{speed}"
    w = 7.0 * len(said) + 20
    rect(g, x - w / 2, y - 11, w, 22, class_="px-arena", rx=11)
    text(g, x, y + 4, said, size=11, class_="px-arenaink", text_anchor="middle")


def _draw_host(root: ET.Element, name: str, below: str, x: float, y: float) -> None:
    g = group(root, label=f"host {name}: {below}")
    rect(g, x - _BOX_W / 2, y - _BOX_H / 2, _BOX_W, _BOX_H, class_="px-tile", rx=8)
    room = _BOX_W - 16
    text(g, x, y - 2, fit(name, room, 13), size=13, font_weight=600, text_anchor="middle")
    text(g, x, y + 14, fit(below, room, 10), size=10, class_="px-soft", text_anchor="middle")


def planned(hosts: Sequence[HostPlan], *, name: str = "plan") -> WorldTopology:
    """Return the topology that these hosts would form, for `topology`.

    Parameters
    ----------
    hosts : sequence of HostPlan
        In the order of the hostfile, which is the order of the ranks.
    name : str, optional
        Title of the picture.

    Returns
    -------
    WorldTopology
        Epoch 0, each rank ``"planned"``. Ranks of a host will share memory; other pairs will use
        tcp. Process ids and cores are not known yet.

    Examples
    --------
    >>> [rank.host for rank in planned([HostPlan("a", 2), HostPlan("b", 1)]).ranks]
    [0, 0, 1]
    """
    home = [index for index, host in enumerate(hosts) for _ in range(host.ranks)]
    return WorldTopology(
        name=name,
        epoch=0,
        hosts=tuple(
            HostInfo(index, host.name, host.addresses[0] if host.addresses else "", 0)
            for index, host in enumerate(hosts)
        ),
        ranks=tuple(RankInfo(rank, host, 0, "planned") for rank, host in enumerate(home)),
        links=tuple(
            LinkInfo(a, b, "arena" if home[a] == home[b] else "tcp")
            for a, b in combinations(range(len(home)), 2)
        ),
    )
