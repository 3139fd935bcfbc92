"""Define the colours of operations in still pictures.

The live view's colours are in operations.css.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from phalanx.distributed.recorder import ENTERED, Records
from phalanx.distributed.summaries import StragglerReport, find_stragglers
from phalanx.protocol import HostClock, LateRank, RankInfo, WorldTopology
from phalanx.workspace import Trace

from ..text.world import clean, count, headline, say_ms
from .svg import StillPicture, fit, group, line, path, picture, rect, render, text

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), with a yellow for all_to_all in place
# of their second orange, and further colours that differ from these with every kind of colour
# vision.
OPERATION_COLOURS = {
    "all_sum": "#0072b2",
    "all_max": "#9c1f1f",
    "all_min": "#a5c95a",
    "all_gather": "#d55e00",
    "sum_scatter": "#009e73",
    "broadcast": "#b0619a",
    "all_to_all": "#d9a200",
    "send": "#3a9bd1",
    "recv": "#7a35d6",
    "barrier": "#5b6673",
    "split": "#33cccc",
}
OTHER = "#8a94a0"  # for operations of a newer engine


WINDOW_NS = 10_000_000_000  # longest window: as much as a person watches at once
_BINS = 300  # bins per window; a bin is 2 pixels wide
_LEFT, _RIGHT, _WIDTH, _TITLE, _MARGIN = 118.0, 96.0, 600.0, 46.0, 18.0
_LANE, _GAP = 20.0, 5.0
_SMALL_LANE, _SMALL_GAP = 9.0, 2.0
MANY = 16


@dataclass(frozen=True)
class _Lane:
    """One rank's operations and shares of the time in the window."""

    info: RankInfo
    operations: int
    share: float
    waiting: float


def monitor(trace: Trace, t: WorldTopology) -> StillPicture:
    """Return a still picture of the ranks' last operations.

    Parameters
    ----------
    trace : Trace
        From `Workspace.trace`.
    t : WorldTopology
        States and hosts of the same ranks.

    Returns
    -------
    StillPicture
        A lane for each rank with its operations of the 10 s before the end of the newest operation.
        The time waiting for the last rank is pale. The text has totals and the ranks that came
        last.
    """
    records = trace.records
    ends = np.where(records.done_ns > 0, records.done_ns, trace.now_ns)
    right = int(ends.max()) if len(records) else trace.now_ns
    left = max(right - WINDOW_NS, int(records.entered_ns.min()) if len(records) else right)
    inside = ends > left
    records, ends = records[inside].view(np.recarray), ends[inside]
    right = max(right, left + 1)
    waits = np.where(
        records.arrived_ns > 0,
        records.arrived_ns,
        np.where((records.state == "running") & (records.op != "send"), ends, records.entered_ns),
    )
    lanes = [_lane(info, records, ends, waits, left, right) for info in t.ranks]
    said = _words(trace, t, lanes, _late(records, trace.hosts), (right - left) / 1e9)
    svg = _draw(t, lanes, records, ends, waits, (left, right), said)
    return StillPicture(render(svg), "\n".join(said))


def _late(records: Records, hosts: Sequence[HostClock]) -> StragglerReport:
    its = records[~np.isin(records.op, ("send", "recv"))]
    seen = np.zeros(len(its), ENTERED)
    seen["rank"], seen["group"], seen["entered"], seen["ended"] = (
        its["rank"],
        its["group"],
        its["entered_ns"],
        its["done_ns"],
    )
    seen["place"] = its["epoch"].astype(np.uint64) << np.uint64(40) | its["seq"].astype(np.uint64)
    seen["host"] = its["host"]
    seen["unsure"] = np.array([host.uncertainty_ns for host in hosts])[its["host"]]
    found = find_stragglers(seen)
    return found._replace(late=tuple(sorted(found.late, key=lambda who: -who.late_ns)))


def _lane(
    info: RankInfo,
    records: Records,
    ends: NDArray[np.int64],
    waits: NDArray[np.int64],
    left: int,
    right: int,
) -> _Lane:
    own = records["rank"] == info.rank
    begun = np.maximum(records["entered_ns"][own], left)
    length = right - left
    inside = float((ends[own] - begun).clip(0).sum()) / length
    waiting = float((waits[own] - begun).clip(0).sum()) / length
    return _Lane(info, int(own.sum()), min(1.0, inside), min(1.0, inside, waiting))


def _words(
    trace: Trace,
    t: WorldTopology,
    lanes: Sequence[_Lane],
    compared: StragglerReport,
    seconds: float,
) -> list[str]:
    said = [f"{clean(t.name)}: {headline(t)}"]
    if not len(trace.records):
        return [*said, "  the ranks have communicated nothing yet"]
    said[0] += f"; the last {seconds:.3g} s of what they did together"
    for lane in lanes:
        detail = f" {clean(lane.info.detail)}" if lane.info.detail else ""
        said.append(
            f"  rank {lane.info.rank:<3} {lane.info.state}{detail}: {count(lane.operations, 'operation')}, "
            f"{lane.share:.0%} of the time in communication, {lane.waiting:.0%} waiting"
        )
    late = compared.late
    said += [
        f"  {_say_late(who, compared.n_compared)}"
        for who in late[:3]
        if 5 * who.late_ns > late[0].late_ns
    ]
    if 2 * compared.n_unsure > compared.n_compared:
        said.append(f"  {_say_unsure(compared)}")
    dropped = sum(trace.dropped.values())
    if dropped:
        said.append(f"  {dropped} older operations are not in the recorders any more")
    return said


def _say_late(who: LateRank, compared: int) -> str:
    worst = f", {say_ms(who.worst_ns / 1e6)} at worst" if who.count > 1 else ""
    return (
        f"rank {who.rank} held the others up for {say_ms(who.late_ns / 1e6)}: last to {who.count} "
        f"of {count(compared, 'collective')}{worst}"
    )


def _say_unsure(compared: StragglerReport) -> str:
    return (
        f"who came last to {compared.n_unsure} of {count(compared.n_compared, 'collective')} is within "
        f"the uncertainty of the hosts' clocks ({say_ms(compared.unsure_ns / 1e6)})"
    )


def _draw(
    t: WorldTopology,
    lanes: Sequence[_Lane],
    records: Records,
    ends: NDArray[np.int64],
    waits: NDArray[np.int64],
    window: tuple[int, int],
    said: Sequence[str],
) -> ET.Element:
    height, gap = (_LANE, _GAP) if len(lanes) <= MANY else (_SMALL_LANE, _SMALL_GAP)
    notes = [words.strip() for words in said[1 + len(lanes) :]] if len(records) else list(said[1:])
    top = _TITLE + 14
    foot = top + len(lanes) * (height + gap)
    width = _LEFT + _WIDTH + _RIGHT
    total = foot + 44 + 18 * len(notes)
    root = picture(width, total, title=f"{t.name}: what the ranks do", description="\n".join(said))
    text(root, _MARGIN, 34, fit(t.name, width * 0.4, 16), size=16, font_weight=650)
    text(root, width - _MARGIN, 34, headline(t), size=12, class_="px-soft", text_anchor="end")
    names = [str(name) for name in np.unique(records.op)]
    size = 12.0 if height > 10 else 8.0
    for row, lane in enumerate(lanes):
        y = top + row * (height + gap)
        g = group(root, label=said[1 + row].strip() if len(records) else f"rank {lane.info.rank}")
        rect(g, _LEFT, y, _WIDTH, height, class_="px-host", rx=2)
        base = y + height / 2 + size * 0.36
        mark = " ✕" if lane.info.state == "dead" else ""
        text(g, _LEFT - 8, base, f"rank {lane.info.rank}{mark}", size=size, text_anchor="end")
        words = f"{lane.share:.0%} comm."
        text(g, _LEFT + _WIDTH + 8, base, words, size=size, class_="px-soft")
        own = records["rank"] == lane.info.rank
        bars = _bars(records[own], ends[own], waits[own], window, names)
        for (name, is_wait), d in _paths(bars, names, y, height).items():
            colour = OPERATION_COLOURS.get(name, OTHER)
            path(g, d, fill=colour, opacity=0.38 if is_wait else 1.0)
    seconds = (window[1] - window[0]) / 1e9
    line(root, _LEFT, foot + 2, _LEFT + _WIDTH, foot + 2, class_="px-axis")
    if len(records):
        ago = f"{seconds:.3g} s before the end of the last one"
        text(root, _LEFT, foot + 16, ago, size=10, class_="px-soft")
    _legend(root, foot + 34, names)
    for row, note in enumerate(notes):
        text(root, _MARGIN, foot + 54 + 18 * row, fit(note, width - 2 * _MARGIN, 12))
    return root


def _bars(
    own: Records,
    ends: NDArray[np.int64],
    waits: NDArray[np.int64],
    window: tuple[int, int],
    names: Sequence[str],
) -> NDArray[np.float64]:
    """Return each operation's share of each bin: ``(2 * names, bins)``.

    Rows come in pairs: waiting, moving.
    """
    left, right = window
    scale = _BINS / (right - left)
    taken = np.zeros((2 * len(names), _BINS))
    for index, name in enumerate(names):
        chosen = own.op == name
        parts = (
            (own.entered_ns[chosen], waits[chosen]),
            (np.maximum(own.entered_ns[chosen], waits[chosen]), ends[chosen]),
        )
        for row, (begin, end) in enumerate(parts):
            a = ((begin - left) * scale).clip(0, _BINS)
            b = ((end - left) * scale).clip(0, _BINS)
            _spread(taken[2 * index + row], a, b)
    return taken


def _spread(bins: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    """Add spans, in units of bins, to the bins they overlap."""
    first, last = a.astype(int).clip(0, _BINS - 1), b.astype(int).clip(0, _BINS - 1)
    is_short = first == last
    np.add.at(bins, first[is_short], (b - a).clip(0)[is_short])
    for begin, end in zip(a[~is_short], b[~is_short], strict=True):
        low, high = int(begin), min(_BINS - 1, int(end))
        bins[low] += low + 1 - begin
        bins[low + 1 : high] += 1.0
        bins[high] += end - high


def _paths(
    bars: NDArray[np.float64], names: Sequence[str], y: float, height: float
) -> dict[tuple[str, bool], str]:
    """Return an SVG path for each operation and part.

    A path has the runs of bins where this operation and part take the most time. The height shows
    how full the bins are.
    """
    found: dict[tuple[str, bool], str] = {}
    if not len(bars):
        return found
    most = bars.argmax(axis=0)
    filled = (
        np.ceil(4 * bars.sum(axis=0).clip(0, 1)) / 4
    )  # rounded to quarters, so that neighbouring bins merge
    edges = np.flatnonzero(np.r_[True, (np.diff(most) != 0) | (np.diff(filled) != 0), True])
    step = _WIDTH / _BINS
    for begin, end in pairwise(edges):
        part = filled[begin]
        if part == 0:
            continue
        key = names[most[begin] // 2], most[begin] % 2 == 0
        x, w, h = _LEFT + begin * step, (end - begin) * step, part * (height - 2)
        d = f"M{x:.1f} {y + height - 1 - h:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z"
        found[key] = found.get(key, "") + d
    return found


def _legend(root: ET.Element, y: float, names: Iterable[str]) -> None:
    x = _LEFT
    for name in names:
        rect(root, x, y - 9, 10, 10, fill=OPERATION_COLOURS.get(name, OTHER), rx=2)
        text(root, x + 15, y, name, size=11, class_="px-soft")
        x += 30 + 6.6 * len(name)
    if x > _LEFT:
        text(root, x, y, "pale: waits for the last rank", size=11, class_="px-soft")
