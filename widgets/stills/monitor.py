"""Draw a still picture of the ranks' last operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from phalanx.distributed.recorder import Records
from phalanx.distributed.summaries import Entry, find_stragglers
from phalanx.protocol import HostClock, LateRank, RankInfo, WorldTopology
from phalanx.workspace import Trace

from ..frames.monitor import named_late, say_unsure
from ..text.world import clean, count, headline, say_ms
from .svg import StillPicture, group, line, path, picture, rect, render, text

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), with a yellow for all_to_all in place
# of their second orange, and further colours that differ from these with every kind of colour
# vision. The live view's are in operations.css.
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
_ENTRY = ["epoch", "group", "seq", "entered_ns", "rank", "done_ns", "host"]


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
    lanes = []
    for info in t.ranks:
        own = records["rank"] == info.rank
        lanes.append(_Lane(info, records[own], ends[own], waits[own], left, right))
    said = [f"{clean(t.name)}: {headline(t)}"]
    if len(trace.records):
        said[0] += f"; the last {(right - left) / 1e9:.3g} s of what they did together"
        said += [f"  {its.words}" for its in lanes]
        said += [f"  {words}" for words in _late_words(records, trace.hosts)]
        if dropped := sum(trace.dropped.values()):
            said.append(f"  {dropped} older operations are not in the recorders any more")
    else:
        said.append("  the ranks have communicated nothing yet")
    names = [str(name) for name in np.unique(records.op)]
    return StillPicture(render(_draw(t, lanes, names, said)), "\n".join(said))


@dataclass(frozen=True)
class _Lane:
    """One rank's operations in the window (ns), up to ``ends``.

    Each waits for the last rank until its time in ``waits``.
    """

    info: RankInfo
    records: Records
    ends: NDArray[np.int64]
    waits: NDArray[np.int64]
    left: int
    right: int

    def _until(self, ends: NDArray[np.int64]) -> float:
        """Return the operations' share of the time, from their beginning to ``ends``."""
        begun = np.maximum(self.records["entered_ns"], self.left)
        return min(1.0, float((ends - begun).clip(0).sum()) / (self.right - self.left))

    @property
    def share(self) -> float:
        return self._until(self.ends)

    @property
    def words(self) -> str:
        """Describe the rank in a line."""
        detail = f" {clean(self.info.detail)}" if self.info.detail else ""
        waiting = min(self.share, self._until(self.waits))
        return (
            f"rank {self.info.rank:<3} {self.info.state}{detail}: "
            f"{count(len(self.records), 'operation')}, {self.share:.0%} of the time in communication, "
            f"{waiting:.0%} waiting"
        )

    def bars(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Return each operation's share of each bin: ``(2 * names, bins)``.

        Rows come in pairs: waiting, moving.
        """
        scale = _BINS / (self.right - self.left)
        taken = np.zeros((2 * len(names), _BINS))
        begun, waits = self.records["entered_ns"], self.waits
        parts = (begun, waits), (np.maximum(begun, waits), self.ends)
        for index, name in enumerate(names):
            own = self.records["op"] == name
            for row, part in enumerate(parts):
                a, b = (((its[own] - self.left) * scale).clip(0, _BINS) for its in part)
                _spread(taken[2 * index + row], a, b)
        return taken


def _late_words(records: Records, hosts: Sequence[HostClock]) -> list[str]:
    """Name the ranks that delayed the others."""
    its = records[~np.isin(records.op, ("send", "recv"))]
    collectives: dict[tuple[int, ...], list[Entry]] = {}
    for *key, entered_ns, rank, done_ns, host in its[_ENTRY].tolist():
        entry = (entered_ns, rank, done_ns, host, hosts[host].uncertainty_ns)
        collectives.setdefault(tuple(key), []).append(entry)
    found = find_stragglers(collectives.values())
    return [_say_late(who, found.n_compared) for who in named_late(found.late)] + say_unsure(
        found.n_unsure, found.n_compared, found.unsure_ns
    )


def _say_late(who: LateRank, compared: int) -> str:
    worst = f", {say_ms(who.worst_ns / 1e6)} at worst" if who.count > 1 else ""
    return (
        f"rank {who.rank} held the others up for {say_ms(who.late_ns / 1e6)}: last to {who.count} "
        f"of {count(compared, 'collective')}{worst}"
    )


def _draw(
    t: WorldTopology, lanes: Sequence[_Lane], names: Sequence[str], said: Sequence[str]
) -> ET.Element:
    height, gap = (_LANE, _GAP) if len(lanes) <= MANY else (_SMALL_LANE, _SMALL_GAP)
    notes = [words.strip() for words in said[1 + len(lanes) :]] if names else list(said[1:])
    top = _TITLE + 14
    foot = top + len(lanes) * (height + gap)
    width = _LEFT + _WIDTH + _RIGHT
    total = foot + 44 + 18 * len(notes)
    root = picture(width, total, title=f"{t.name}: what the ranks do", description="\n".join(said))
    text(root, _MARGIN, 34, t.name, size=16, room=width * 0.4, font_weight=650)
    text(root, width - _MARGIN, 34, headline(t), "px-soft", anchor="end")
    size = 12.0 if height > 10 else 8.0
    for row, lane in enumerate(lanes):
        y = top + row * (height + gap)
        rank = f"rank {lane.info.rank}"
        g = group(root, label=said[1 + row].strip() if names else rank)
        rect(g, _LEFT, y, _WIDTH, height, class_="px-host", rx=2)
        base = y + height / 2 + size * 0.36
        mark = " ✕" if lane.info.state == "dead" else ""
        text(g, _LEFT - 8, base, f"{rank}{mark}", size=size, anchor="end")
        text(g, _LEFT + _WIDTH + 8, base, f"{lane.share:.0%} comm.", "px-soft", size)
        for (name, is_wait), d in _paths(lane.bars(names), names, y, height).items():
            colour = OPERATION_COLOURS.get(name, OTHER)
            path(g, d, fill=colour, opacity=0.38 if is_wait else 1.0)
    line(root, _LEFT, foot + 2, _LEFT + _WIDTH, foot + 2, class_="px-axis")
    if names:
        seconds = (lanes[0].right - lanes[0].left) / 1e9
        ago = f"{seconds:.3g} s before the end of the last one"
        text(root, _LEFT, foot + 16, ago, "px-soft", 10)
    _legend(root, foot + 34, names)
    for row, note in enumerate(notes):
        text(root, _MARGIN, foot + 54 + 18 * row, note, room=width - 2 * _MARGIN)
    return root


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
    # Rounded to quarters, so that neighbouring bins merge.
    filled = np.ceil(4 * bars.sum(axis=0).clip(0, 1)) / 4
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
        text(root, x + 15, y, name, "px-soft", 11)
        x += 30 + 6.6 * len(name)
    if x > _LEFT:
        text(root, x, y, "pale: waits for the last rank", "px-soft", 11)
