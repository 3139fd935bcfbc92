"""Show hosts, ranks and links of a workspace in a live widget.

`frames.topology` has the records that are sent; ``js/src/topology.ts`` draws them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import traitlets

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import Samples, WorldTopology
from phalanx.workspace import Trace, Workspace, say_replaced

from ..frames.links import judge, say_links
from ..frames.rates import LinkRate, Rates
from ..frames.topology import Timeline, world_of
from ..stills.svg import StillPicture
from ..stills.topology import Observations, topology
from ..text.operations import UseFrame, say_operations, uses_of
from ..text.world import dead_ranks
from .widget import STATIC, WorldWidget

NOW_S = 2.0  # rates cover the last second; samples come three times a second


class Topology(WorldWidget):
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

    selected = traitlets.Int(-1).tag(sync=True)
    mode = traitlets.Enum(["", "tiles", "compact", "links"], "").tag(sync=True)

    def _prepare(self) -> None:
        super()._prepare()
        self._timeline = Timeline()
        self._uses: tuple[UseFrame, ...] = ()
        self._last = self._timeline.take(self._seen, time.time())

    def _poll(self, workspace: Workspace) -> tuple[WorldTopology, Sequence[Samples]]:
        return workspace.topology(), workspace.samples(self._rates.number).samples

    def _begin(self, found: WorldTopology | DistributedError) -> None:
        self._rates = Rates()
        self._sampled_s = 0.0
        self._show(found if isinstance(found, DistributedError) else (found, ()))
        # The age of the first samples is unknown, as other clients requested them.
        self._looked_s = 0.0

    def _show(self, polled: Any) -> None:
        now = time.time()
        if isinstance(polled, DistributedError):
            frame = self._absent(polled, links=(), arena=(), measuring="")
            if frame.status == "silent":
                frame = msgspec.structs.replace(frame, now=now)
        else:
            self._seen, samples = polled
            self._rates.take(samples)
            if samples:  # they came after the last poll, which may be minutes ago
                self._sampled_s = self._looked_s
            self._looked_s = time.monotonic()
            links, arena = self._moving()
            progress = self._workspace.links_progress
            frame = msgspec.structs.replace(
                self._timeline.take(self._seen, now),
                links=links,
                arena=arena,
                measuring=progress.text if progress is not None else "",
            )
        self._publish(frame)
        measured = judge(self._workspace.measured_links, self._seen)
        self.world = msgspec.json.encode(world_of(self._seen, measured))

    def _moving(self) -> tuple[tuple[LinkRate, ...], tuple[float, ...]]:
        """Return the current traffic of tcp links, and of each rank's arena."""
        links, ranks = self._rates.links(), self._rates.ranks()
        if time.monotonic() >= self._sampled_s + NOW_S:
            return (), (0.0,) * len(ranks)
        dead = dead_ranks(self._seen)
        return (
            tuple(its for its in links if not {its.source, its.target} & dead),
            tuple(0.0 if rank in dead else rate.arena for rank, rate in enumerate(ranks)),
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
            is_dead = rank in dead_ranks(workspace.topology())
            return say_operations(trace, rank, is_dead=is_dead)
        if action == "stacks":
            return workspace.stacks(rank)[rank]
        return say_replaced(
            workspace.restart(rank, force=args.get("force") is True), workspace.size
        )

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
            return say_links(judge(workspace.measured_links, self._seen))

    def _picture(self, trace: Trace | None) -> StillPicture:
        moving: Iterable[LinkRate] = ()
        uses = None if trace is None else uses_of(trace)
        with self._looking:
            t = self._seen
            if uses is not None:
                self._uses = uses
                # What idle ranks moved last is over.
                busy = {rank.rank for rank in t.ranks if rank.state == "busy"}
                moving = (its for its in self._moving()[0] if {its.source, its.target} & busy)
            seen = Observations(self._workspace.measured_links, tuple(moving), self._uses)
        return topology(t, seen)
