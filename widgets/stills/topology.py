"""Draw a still picture of hosts, ranks and links, running or planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree as ET

from phalanx.protocol import (
    HostInfo,
    HostPlan,
    LinkInfo,
    LinkMeasurement,
    RankInfo,
    WorldTopology,
    format_ranks,
)

from ..frames.links import LinkFrame, judge
from ..frames.rates import LinkRate
from ..text.operations import UseFrame, say_use
from ..text.world import (
    MOST_PAIRS,
    address_and_cores,
    arenas,
    clean,
    count,
    dead_ranks,
    describe,
    headline,
    say_rate,
    state_of,
    wires,
)
from .svg import StillPicture, group, line, path, picture, rect, render, text

_MOST = 6  # lines per kind: a still picture cannot be searched

# State: colour (Okabe and Ito) and sign; either alone distinguishes the states.
_STATES = {
    "planned": ("#6b7683", "○"),
    "starting": ("#b0619a", "…"),
    "idle": ("#009e73", "●"),
    "busy": ("#0072b2", "▶"),
    "collective": ("#6a3fb5", "⇄"),
    "input": ("#c98500", "?"),
    "dead": ("#d55e00", "✕"),
}

_COLUMNS = 6  # tiles in a row: 6 tiles are as wide as a notebook's output
# The looks of links that are not sound.
_ODD = {
    "slow": {"stroke": "#c98500", "stroke_width": "2", "stroke_dasharray": "7 3"},
    "broken": {"stroke": "#d55e00", "stroke_width": "2", "stroke_dasharray": "2 4"},
}


@dataclass(frozen=True)
class Observations:
    """Measured links, traffic and algorithms, as far as known."""

    measured: tuple[LinkMeasurement, ...] = ()
    moving: tuple[LinkRate, ...] = ()
    uses: tuple[UseFrame, ...] = ()

    def links(self, t: WorldTopology) -> dict[tuple[int, int], LinkFrame]:
        """Return the judged links between live ranks, by pair."""
        dead = dead_ranks(t)
        return {(its.a, its.b): its for its in judge(self.measured, t) if not {its.a, its.b} & dead}

    def lines(self, links: Mapping[tuple[int, int], LinkFrame]) -> tuple[str, ...]:
        """Describe all except slow and broken links; ``links``: from `links`."""
        found = []
        if links:
            n_odd = sum(its.state != "ok" for its in links.values())
            found.append(f"{count(len(links), 'link')} measured, {n_odd or 'none'} slow or broken")
            if len(links) <= _MOST:  # then also list each link
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
    """Describe the slow and broken links."""
    odd = [
        f"rank {its.a} - rank {its.b}: {its.words}" for its in links.values() if its.state != "ok"
    ]
    return tuple(_first(odd))


def _first(words: list[str]) -> Iterator[str]:
    yield from words[:_MOST]
    if len(words) > _MOST:
        yield f"and {len(words) - _MOST} more"


# Pixels: a rank's tile, the space between tiles, and inside the boxes.
_TILE_W, _TILE_H, _GAP, _PAD = 104.0, 60.0, 10.0, 14.0
_HEAD, _LABEL = 44.0, 22.0  # a host's title lines; the arena's name
_MARGIN, _TITLE, _TRUNK = 18.0, 46.0, 76.0


def topology(t: WorldTopology, seen: Observations | None = None) -> StillPicture:
    """Return a still picture of a topology.

    Parameters
    ----------
    t : WorldTopology
        The topology; 1 to 64 ranks stay readable.
    seen : Observations, optional
        Further data: measured links, traffic, the algorithms in use.

    Returns
    -------
    StillPicture
        Hosts, ranks with pid and state, arenas and tcp links.

    Examples
    --------
    >>> from phalanx.protocol import HostInfo, RankInfo
    >>> world = WorldTopology("w", 1, (HostInfo(0, "here", "127.0.0.1", 2),), (RankInfo(0, 0, 7, "idle"),), ())
    >>> print(topology(world))
    w: 1 rank on 1 host, epoch 1
      here (127.0.0.1, 2 cores)
        rank 0   pid 7        idle
    """
    known = seen or Observations()
    judged = known.links(t)
    odd, rest = odd_lines(judged), known.lines(judged)
    words = "\n".join((describe(t), *(f"  {clean(note)}" for note in (*rest, *odd))))
    return StillPicture(render(_draw(t, judged, odd, rest, words)), words)


def _arc_depth(tiles: int) -> float:
    """Return the depth in pixels of a curve's control points.

    The curve spans ``tiles`` tiles and hangs down 3/4 of this depth.
    """
    return 16.0 + 15.0 * min(6, tiles)


class _HostBox:
    """The box of one host: its size and its drawing."""

    def __init__(
        self,
        host: HostInfo,
        ranks: Sequence[RankInfo],
        shared: Sequence[set[int]],
        tcp: Sequence[LinkInfo],
        judged: Mapping[tuple[int, int], LinkFrame],
    ) -> None:
        self.host, self.ranks, self.arenas, self.tcp = host, ranks, shared, tcp
        self.judged = judged
        self.columns = max(1, min(_COLUMNS, len(ranks)))
        rows = -(-len(ranks) // self.columns)
        self.arcs = bool(tcp) and rows == 1
        self.room = self.columns * _TILE_W + (self.columns - 1) * _GAP
        self.w = max(self.room + 4 * _PAD, 250.0)
        tiles = rows * (_TILE_H + _GAP) - _GAP if rows else 0.0
        below = _arc_depth(len(ranks) - 1) * 0.75 if self.arcs else 0.0
        below += _LABEL if tcp else 0.0
        self.inner_h = tiles + 2 * _PAD + (_LABEL if self.arenas else 0)
        self.h = _HEAD + self.inner_h + below + _PAD

    def draw(self, root: ET.Element, x: float, y: float) -> None:
        host = self.host
        where = address_and_cores(host)
        g = group(root, label=f"host {host.name}: {where}, {count(len(self.ranks), 'rank')}")
        rect(g, x, y, self.w, self.h, class_="px-host", rx=9)
        text(g, x + _PAD, y + 21, host.name, size=14, room=self.w - 2 * _PAD, font_weight=600)
        text(g, x + _PAD, y + 37, where, "px-soft", 11, room=self.w - 2 * _PAD)
        top = y + _HEAD
        if self.arenas:
            rect(g, x + _PAD, top, self.w - 2 * _PAD, self.inner_h, class_="px-arena", rx=7)
            shared = "; ".join(format_ranks(a) for a in self.arenas)
            said = f"arena: memory that ranks {shared} share"
            y_text, room = top + self.inner_h - 9, self.w - 4 * _PAD
            text(g, x + 2 * _PAD, y_text, said, "px-arenaink", 11, room=room)
        centres = {}
        for i, rank in enumerate(self.ranks):
            tile_x = x + 2 * _PAD + (i % self.columns) * (_TILE_W + _GAP)
            tile_y = top + _PAD + (i // self.columns) * (_TILE_H + _GAP)
            _tile(g, rank, tile_x, tile_y)
            centres[rank.rank] = tile_x + _TILE_W / 2
        if self.tcp:
            self._draw_tcp(g, x, top + self.inner_h, centres)

    def _draw_tcp(self, g: ET.Element, x: float, y: float, centres: dict[int, float]) -> None:
        foot = y if self.arenas else y - _PAD
        for link in self.tcp if self.arcs else ():
            a, b = sorted((centres[link.a], centres[link.b]))
            down = foot + _arc_depth(round((b - a) / (_TILE_W + _GAP)))
            d = f"M{a:.1f} {foot:.1f} C{a:.1f} {down:.1f} {b:.1f} {down:.1f} {b:.1f} {foot:.1f}"
            its = self.judged.get((link.a, link.b))
            if its is None or its.state == "ok":
                path(g, d, class_="px-link", stroke_width=1.3)
            else:
                odd = group(g, label=f"rank {link.a} - rank {link.b}: {its.words}")
                path(odd, d, fill="none", **_ODD[its.state])
        below = y + self.h - _HEAD - self.inner_h - 9
        said = f"tcp: {count(len(self.tcp), 'link')}"
        text(g, x + self.w - _PAD, below, said, "px-soft", 11, anchor="end")


def _tile(parent: ET.Element, rank: RankInfo, x: float, y: float) -> None:
    state = state_of(rank)
    colour, sign = _STATES[state]
    label = f"rank {rank.rank}, {f'pid {rank.pid}, ' if rank.pid else ''}{rank.state}"
    g = group(parent, label=f"{label}: {rank.detail}" if rank.detail else label)
    is_dead = rank.state == "dead"
    rect(g, x, y, _TILE_W, _TILE_H, class_="px-tile", rx=6)
    # A coloured band on the left shows the state from afar; the word beside the sign names it.
    band = f"M{x + 6:.1f} {y:.1f} h-0.01 a6 6 0 0 0 -6 6 v{_TILE_H - 12:.1f} a6 6 0 0 0 6 6 Z"
    path(g, band, fill=colour)
    text(g, x + 14, y + 25, str(rank.rank), "px-soft" if is_dead else "px-ink", 18, font_weight=650)
    pid = f"pid {rank.pid}" if rank.pid else ""
    text(g, x + _TILE_W - 8, y + 20, pid, "px-soft", 10, anchor="end")
    text(g, x + 14, y + 48, sign, "px-sign", fill=colour, font_weight=700)
    text(g, x + 30, y + 48, "needs input" if state == "input" else state, size=11)


def _draw(
    t: WorldTopology,
    judged: Mapping[tuple[int, int], LinkFrame],
    odd: Sequence[str],
    rest: Sequence[str],
    words: str,
) -> ET.Element:
    inside, between = wires(t)
    shared = arenas(t)
    boxes = []
    for host in t.hosts:
        ranks = [r for r in t.ranks if r.host == host.index]
        arenas_ = shared.get(host.index, ())
        boxes.append(_HostBox(host, ranks, arenas_, inside[host.index], judged))
    widest = max((b.w for b in boxes), default=250.0)
    # Two columns of hosts with the tcp trunk between them, or one column with the trunk beside it.
    has_two = len(boxes) > 1 and widest <= 306
    trunk = _TRUNK if between else 2 * _GAP if has_two else 0.0
    left = _MARGIN + (trunk if not has_two else 0.0)
    places: list[tuple[float, float]] = []
    y = _MARGIN + _TITLE
    step = 2 if has_two else 1
    for i in range(0, len(boxes), step):
        row = boxes[i : i + step]
        for j, box in enumerate(row):
            right = widest - box.w if has_two and j == 0 else j * (widest + trunk)
            places.append((left + right, y))
        y += max(b.h for b in row) + 2 * _GAP
    notes = [(f"rank {r.rank}: {r.detail}", "px-alarm") for r in t.ranks if r.detail][:12]
    notes += [(note, "px-alarm") for note in odd]
    notes += [(note, "px-soft") for note in rest]
    width = max(2 * _MARGIN + widest * step + trunk, 420.0)
    height = y - _GAP + 18 * len(notes) + 26
    root = picture(width, height, title=f"{t.name}: {headline(t)}", description=words)
    text(root, _MARGIN, 34, t.name, size=16, room=width * 0.45, font_weight=650)
    text(root, width - _MARGIN, 34, headline(t), "px-soft", anchor="end")
    if between:
        x = _MARGIN + (widest + trunk / 2 if has_two else trunk / 2)
        _draw_trunk(root, x, boxes, places, between)
    for box, (bx, by) in zip(boxes, places, strict=True):
        box.draw(root, bx, by)
    for i, (note, kind) in enumerate(notes):
        text(root, _MARGIN, y + 2 + 18 * i, note, kind, room=width - 2 * _MARGIN)
    _legend(root, _MARGIN, height - 14, t)
    return root


def _draw_trunk(
    root: ET.Element,
    x: float,
    boxes: Sequence[_HostBox],
    places: Sequence[tuple[float, float]],
    between: dict[tuple[int, int], int],
) -> None:
    wired = {host for pair in between for host in pair}
    pairs = sorted(between.items())[:MOST_PAIRS]
    said = ", ".join(f"{a}-{b}: {count(n, 'link')}" for (a, b), n in pairs)
    said += f" and {len(between) - MOST_PAIRS} more pairs" if len(between) > MOST_PAIRS else ""
    g = group(root, label=f"tcp between hosts {said}")
    ends = []
    for box, (bx, by) in zip(boxes, places, strict=True):
        if box.host.index in wired:
            middle, side = by + _HEAD / 2, bx + box.w if bx < x else bx
            line(g, x, middle, side, middle, class_="px-link", stroke_width=2)
            dot = f"M{x - 3.5:.1f} {middle:.1f} a3.5 3.5 0 1 0 7 0 a3.5 3.5 0 1 0 -7 0 Z"
            path(g, dot, class_="px-dot", fill="#0072b2")
            ends.append(middle)
    line(g, x, min(ends), x, max(ends), class_="px-link", stroke_width=2)
    words = count(sum(between.values()), "tcp link")
    text(g, x, min(ends) - 9, words, "px-soft", 10, anchor="middle")


def _legend(root: ET.Element, x: float, y: float, t: WorldTopology) -> None:
    for state, (colour, sign) in _STATES.items():
        n = sum(state_of(r) == state for r in t.ranks)
        if n:
            text(root, x, y, sign, "px-sign", 11, fill=colour, font_weight=700)
            text(root, x + 15, y, f"{n} {state}", "px-soft", 11)
            x += 34 + 6.4 * len(f"{n} {state}")


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
