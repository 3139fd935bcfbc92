"""Show hosts, ranks and links of a workspace in a live widget.

`frames.topology` has the records that are sent; ``js/src/topology.ts`` draws them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import traitlets

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import Samples, WorldTopology
from phalanx.workspace import Workspace, say_replaced

from ..frames.links import LinkClassifier, say_links
from ..frames.rates import AlgorithmUsage, LinkRate, Rates
from ..frames.topology import Timeline, world_of
from ..stills.svg import StillPicture, with_alarm
from ..stills.topology import Observations, topology
from ..text.operations import say_operations
from .widget import STATIC, LiveWidget

NOW_S = 2.0  # rates cover the last second; samples come three times a second


class Topology(LiveWidget):
    """Live view of a workspace's hosts, ranks and links.

    Parameters
    ----------
    workspace : Workspace
        A running workspace. Set `workspace` to show another, as after an attach.

    Raises
    ------
    DistributedError
        The workspace has ended; the text says why.

    Notes
    -----
    The widget asks the workspace's supervisor at most five times a second, only while a person can
    see the widget. It sends nothing to the ranks. A saved notebook keeps a still picture (SVG,
    text).

    Examples
    --------
    >>> px.widgets.Topology(ws)  # doctest: +SKIP
    """

    _esm = STATIC / "topology.js"
    _css = STATIC / "topology.css"

    world = traitlets.Bytes(b"").tag(sync=True)
    selected = traitlets.Int(-1).tag(sync=True)
    mode = traitlets.Enum(["", "tiles", "compact", "links"], "").tag(sync=True)

    def _prepare(self) -> None:
        self._timeline = Timeline()
        self._judge = LinkClassifier()
        self._seen = self._workspace.topology()
        self._last = self._timeline.take(self._seen, time.time())

    @property
    def number(self) -> int:
        return self._rates.number

    def _poll(self, workspace: Workspace, number: int) -> tuple[WorldTopology, Sequence[Samples]]:
        return workspace.topology(), workspace.samples(number).samples

    def _begin(self, polled: Any) -> None:
        self._rates = Rates()
        self._in_use = AlgorithmUsage()
        self._looked_s = self._sampled_s = 0.0
        self._show(polled)

    def _show(self, polled: Any) -> None:
        now = time.time()
        if isinstance(polled, DistributedError):
            frame = self._absent(polled, links=(), arena=(), measuring="")
            if frame.status == "silent":
                frame = msgspec.structs.replace(frame, now=now)
        else:
            self._seen, samples = polled
            self._take_samples(samples)
            frame = msgspec.structs.replace(
                self._timeline.take(self._seen, now),
                links=self._moving(),
                arena=self._moving_shared(),
                measuring=self._measuring(),
            )
        measured = self._judge.take(self._workspace.measured_links, self._seen)
        self._publish(frame)
        self.world = msgspec.json.encode(world_of(self._seen, measured))
        self._keep_who_lives(frame)

    def _take_samples(self, samples: Sequence[Samples]) -> None:
        looked_s, self._looked_s = self._looked_s, time.monotonic()
        self._rates.take(samples)
        self._in_use.take(samples)
        if samples:  # they came after the last poll, which may be minutes ago
            self._sampled_s = looked_s

    def _is_of_now(self) -> bool:
        return time.monotonic() < self._sampled_s + NOW_S

    def _dead(self) -> set[int]:
        return {rank.rank for rank in self._seen.ranks if rank.state == "dead"}

    def _moving(self) -> tuple[LinkRate, ...]:
        """Return the tcp links with traffic now, without links of dead ranks."""
        if not self._is_of_now():
            return ()
        dead = self._dead()
        return tuple(its for its in self._rates.links() if not {its.source, its.target} & dead)

    def _moving_shared(self) -> tuple[float, ...]:
        """Return each rank's current traffic through shared memory."""
        is_of_now, dead = self._is_of_now(), self._dead()
        return tuple(
            rate.arena if is_of_now and rank not in dead else 0.0
            for rank, rate in enumerate(self._rates.ranks())
        )

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Run the action of a button; see `LiveWidget.answer`."""
        workspace = self._workspace
        if action == "interrupt":
            if not any(rank.state in {"busy", "collective", "input"} for rank in self._last.ranks):
                return "no cell runs: there is nothing to interrupt"
            workspace.interrupt()
            return "the ranks were asked to stop"
        if action == "links":
            return self._measure_links()
        if action == "stop_links":
            if workspace.links_progress is None:
                return "no link is measured now"
            workspace.interrupt()
            return "the measurement was asked to stop"
        rank = args.get("rank")
        if action not in {"operations", "stacks", "restart"} or not isinstance(rank, int):
            msg = f"nothing is known of {action!r} for rank {rank!r}"
            raise ValueError(msg)
        if action == "operations":
            trace = workspace.trace()
            is_dead = any(
                its.rank == rank and its.state == "dead" for its in workspace.topology().ranks
            )
            return say_operations(trace, rank, is_dead=is_dead)
        if action == "stacks":
            return workspace.stacks(rank)[rank]
        return say_replaced(
            workspace.restart(rank, force=args.get("force") is True), workspace.size
        )

    def _measuring(self) -> str:
        progress = self._workspace.links_progress
        return progress.text if progress is not None else ""

    def _measure_links(self) -> str:
        workspace = self._workspace
        try:
            workspace.measure_links()
        except (KeyboardInterrupt, CellError) as error:
            # Only a person interrupts our own cell: with Stop, or like any cell.
            if isinstance(error, CellError) and not any(
                name == "KeyboardInterrupt" for name, _, _ in error.failures.values()
            ):
                raise
            return "stopped; what was measured until then is not kept"
        finally:
            self.tick()
        with self._looking:
            return say_links(self._judge.take(workspace.measured_links, self._seen))

    def still(self) -> StillPicture:
        """Return a picture of the current or last known state."""
        workspace = self._workspace
        found: WorldTopology | DistributedError
        try:
            found = workspace.topology()
        except DistributedError as error:
            found = error
        with self._looking:
            moving: tuple[LinkRate, ...] = ()
            why = ""
            if isinstance(found, DistributedError):
                why = self._why_absent(found)
            elif workspace is self._workspace:  # else another one is shown meanwhile
                self._seen = found
                moving = _of_busy(self._moving(), found)
            # The age of samples from the first poll is unknown: another widget requested them.
            later_s = time.monotonic() - self._sampled_s if self._sampled_s else 0.0
            uses = self._in_use.frames(int(1e9 * later_s))
            t, seen = self._seen, Observations(self._workspace.measured_links, moving, uses)
        picture = topology(t, seen)
        return with_alarm(picture, why) if why else picture


def _of_busy(links: Sequence[LinkRate], t: WorldTopology) -> tuple[LinkRate, ...]:
    """Return the links between ranks that run a cell; others are stale."""
    busy = {rank.rank for rank in t.ranks if rank.state == "busy"}
    return tuple(its for its in links if {its.source, its.target} & busy)
