"""The live topology: hosts, ranks by what they do, the paths between; and what to do about a rank.

It knows the workspace and the records that are sent (`_topology_frames`); how they look is
``js/src/topology.ts``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import traitlets

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import Samples
from phalanx.protocol import Topology as World
from phalanx.workspace import say_replaced

from ._in_use import InUse
from ._link_words import Judge, say_links
from ._live import STATIC
from ._live_workspace import WorkspaceWidget
from ._operation_words import say_operations
from ._rates import LinkRate, Rates
from ._seen import Seen
from ._still import StillPicture, with_alarm
from ._topology import topology
from ._topology_frames import Frame, Timeline, world_of

__all__ = ["Topology"]

REPEAT_S = 2.0  # a view that hears nothing for 8 s says so
NOW_S = 2.0  # what moves is told of the last second, by samples that come three times in one


class Topology(WorkspaceWidget):
    """The hosts, ranks and paths of a workspace, live.

    Parameters
    ----------
    workspace : Workspace
        One that runs, or is watched. Set `workspace` to show another, as after an attach.

    Raises
    ------
    DistributedError
        The workspace is over; says why.

    Notes
    -----
    It asks the workspace's supervisor at most five times a second, only while it is in somebody's
    sight, and nothing of the ranks. A saved notebook keeps a still picture (SVG, text).

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
        self._judge = Judge()
        self._seen = self._workspace.topology()
        self._last = self._timeline.take(self._seen, time.time())

    def _begin(self) -> None:
        self._rates = Rates()
        self._in_use = InUse()
        self._looked_s = self._sampled_s = 0.0
        self._look()

    def tick(self) -> None:
        """Look, and send what has changed."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        now = time.time()
        try:
            self._seen = self._workspace.topology()
            self._take_samples(self._workspace.samples(self._rates.number).samples)
            frame = msgspec.structs.replace(
                self._timeline.take(self._seen, now),
                links=self._moving(),
                arena=self._moving_shared(),
                uses=self._in_use.frames(),
                measuring=self._measuring(),
            )
        except DistributedError as error:
            # Where its supervisor lives and does not answer, it may yet.
            status = "silent" if self._workspace.is_running else "gone"
            frame = msgspec.structs.replace(
                self._last,
                status=status,
                why=self._reason(error),
                links=(),
                arena=(),
                measuring="",
            )
            if status == "silent":
                frame = msgspec.structs.replace(frame, now=now)
        self._publish(frame)

    def _take_samples(self, samples: Sequence[Samples]) -> None:
        looked_s, self._looked_s = self._looked_s, time.monotonic()
        self._rates.take(samples)
        self._in_use.take(samples)
        if samples:  # they have come since the last look, be it minutes ago
            self._sampled_s = looked_s

    def _is_of_now(self) -> bool:
        return time.monotonic() < self._sampled_s + NOW_S

    def _dead(self) -> set[int]:
        return {rank.rank for rank in self._seen.ranks if rank.state == "dead"}

    def _moving(self) -> tuple[LinkRate, ...]:
        """The wires that something moves on now; what a dead rank did last is over."""
        if not self._is_of_now():
            return ()
        dead = self._dead()
        return tuple(its for its in self._rates.links() if not {its.source, its.target} & dead)

    def _moving_shared(self) -> tuple[float, ...]:
        """The same through the memory that ranks share, of each rank."""
        is_of_now, dead = self._is_of_now(), self._dead()
        return tuple(
            rate.arena if is_of_now and rank not in dead else 0.0
            for rank, rate in enumerate(self._rates.ranks())
        )

    def _publish(self, frame: Frame) -> None:
        measured = self._judge.take(self._workspace.measured_links, self._seen)
        world = msgspec.json.encode(world_of(self._seen, measured))
        is_news = msgspec.structs.replace(frame, now=self._last.now) != self._last
        if (
            world != self.world
            or not self.frame
            or is_news
            or frame.now > self._last.now + REPEAT_S
        ):
            self._last = frame
            self.frame = msgspec.json.encode(frame)
            self.world = world
        self._keep_who_lives(frame)

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Do what a button asks; see `LiveWidget.answer`."""
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
            # Our own code is interrupted by a person only: with Stop, or as any cell.
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
        """Return the picture of what is there, or was seen last, with all that the live one shows."""
        with self._looking:
            moving: tuple[LinkRate, ...] = ()
            why = ""
            try:
                self._seen = self._workspace.topology()
                moving = _of_busy(self._moving(), self._seen)
            except DistributedError as error:
                why = self._why_absent(error)
            # Where samples came with the first look nobody knows when: some other widget watched.
            later_s = time.monotonic() - self._sampled_s if self._sampled_s else 0.0
            uses = self._in_use.frames(int(1e9 * later_s))
            t, seen = self._seen, Seen(self._workspace.measured_links, moving, uses)
        picture = topology(t, seen)
        return with_alarm(picture, why) if why else picture


def _of_busy(links: Sequence[LinkRate], t: World) -> tuple[LinkRate, ...]:
    """Those that can be of now: nothing moves between ranks that run no cell."""
    busy = {rank.rank for rank in t.ranks if rank.state == "busy"}
    return tuple(its for its in links if {its.source, its.target} & busy)
