"""Stop the ranks of a cell, before the same operation if possible.

`StopInStep` decides from the ranks' reports which rank goes on to which operation. `Stopping`
limits how long a stop may take.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec

from phalanx.protocol import (
    LetIn,
    RankOrder,
    RankStack,
    Step,
    StopCell,
    StopReport,
    name_ranks,
    way_out,
)

REACT_S = 2.0  # a rank that has not ended by then is named
PATIENCE_S = 10.0  # for ranks that run their own code after a stop (a ``finally`` that saves)
LOOK_S = 0.6  # longest wait for the stack of a rank that does not answer
TWO_LOOKS_S = 0.3  # time for two stack samples of ranks that answer
# (ranks, is_twice): ask for stacks, sampled twice if is_twice; `Stopping.take` gets the answer
SeePlaces = Callable[[tuple[int, ...], bool], None]
STEP_S = 0.5  # a rank that reaches no operation by then is interrupted where it is

Order = tuple[int, int, int, int]  # `Step.order`


class StopInStep:
    """One stop: decides which held ranks continue and when all are interrupted.

    A held rank is let into an operation that another rank has begun, and into all operations that
    come before it on that rank. So an operation that one rank has begun is completed by all. All
    ranks are interrupted once all are held, have begun the same operations, and no operation is
    open. After `STEP_S` all are interrupted where they are.

    The reports need not be of one moment. A report stays true until the rank is let in or
    interrupted, and a rank that is let into an operation begins it sooner or later.
    """

    def __init__(
        self,
        let_in: Callable[[tuple[int, ...], tuple[Step, ...]], None],
        interrupt: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._let_in = let_in
        self._interrupt = interrupt
        self._reports: dict[int, StopReport] = {}
        self._begun: dict[Order, int] = {}  # the furthest number of all ranks
        self._sent: dict[int, tuple[Step, ...]] = {}
        self._is_hurried = False
        self.due_s: float | None = None  # latest time at which the ranks are interrupted
        self.is_over = False  # the ranks were interrupted
        self.is_in_step = False  # and all stood before the same operations

    def take(self, rank: int, report: StopReport) -> None:
        self._reports[rank] = report
        for step in report.begun:
            self._begun[step.order] = max(self._begun.get(step.order, 0), step.number)

    def hurry(self) -> None:
        """Interrupt all ranks at the next `step`: a second stop came."""
        self._is_hurried = True

    def step(self, running: Collection[int], now_s: float) -> None:
        """Let ranks in or interrupt them, as is due.

        ``running`` are the ranks that have not ended the cell.
        """
        if self.is_over or not running:
            return
        if self.due_s is None:
            self.due_s = now_s + STEP_S
        going = [rank for rank in sorted(running) if self._state(rank) != "stopped"]
        behind = [rank for rank in going if self._is_behind(rank)]
        is_at_rest = not behind and all(map(self._is_at_rest, going))
        self.is_over = (
            not going
            or is_at_rest
            or self._is_hurried
            or now_s >= self.due_s
            or self._waits_for_stopped()
        )
        if not self.is_over:
            self._let_all_in(behind)
            return
        stopped = [rank for rank in self._reports if self._state(rank) == "stopped"]
        self.is_in_step = is_at_rest and not stopped if going else not self._lag(stopped)
        if going:
            self._interrupt(tuple(going))

    def _state(self, rank: int) -> str:
        return self._reports[rank].state if rank in self._reports else "runs"

    def _is_behind(self, rank: int) -> bool:
        return self._state(rank) == "held" and self._lag([rank])

    def _is_at_rest(self, rank: int) -> bool:
        return self._state(rank) == "held" and not self._reports[rank].is_open

    def _lag(self, ranks: Collection[int]) -> bool:
        """Whether one of these ranks has yet to begin an operation.

        Only operations count that another rank has begun.
        """
        for rank in ranks:
            its = {step.order: step.number for step in self._reports[rank].begun}
            for order, furthest in self._begun.items():
                epoch, group, *ends = order
                # A report lists a lane once a message has passed in it. Every member's report lists
                # the group's collectives (-1, -1), so that entry shows membership.
                is_member = rank in ends and (epoch, group, -1, -1) in its
                if its.get(order, 0 if is_member else furthest) < furthest:
                    return True
        return False

    def _waits_for_stopped(self) -> bool:
        """Whether a begun collective lacks a rank that was stopped elsewhere."""
        return any(
            step.source < 0 and step.number < self._begun[step.order]
            for report in self._reports.values()
            if report.state == "stopped"
            for step in report.begun
        )

    def _let_all_in(self, behind: Collection[int]) -> None:
        alike: dict[tuple[Step, ...], list[int]] = {}
        for rank in behind:
            until = dict(self._begun)
            if (upcoming := self._reports[rank].next) is not None:
                until[upcoming.order] = max(until.get(upcoming.order, 0), upcoming.number)
            steps = tuple(Step(*order, number) for order, number in sorted(until.items()))
            if self._sent.get(rank) != steps:
                self._sent[rank] = steps
                alike.setdefault(steps, []).append(rank)
        for steps, ranks in alike.items():
            self._let_in(tuple(ranks), steps)

    def line(self, ranks: Collection[int], ends: Mapping[int, str]) -> str:
        """Describe where each rank stopped.

        Returns "" if the ranks are in step, or if no rank had called an operation. ``ends`` has the
        error in which each rank ended the cell, "" for none, without ranks that still run.
        """
        stopped = [rank for rank in self._reports if self._state(rank) == "stopped"]
        has_called = any(report.has_called for report in self._reports.values())
        # If `step` interrupted no rank, the stopped ranks were interrupted while they read a line.
        is_in_step = self.is_in_step if self.is_over else not self._lag(stopped)
        if is_in_step or not stopped or not has_called:
            return ""
        places: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            places.setdefault(self._place(rank, ends), []).append(rank)
        said = ", ".join(f"{name_ranks(its)} {place}" for place, its in places.items())
        first = name_ranks(next(iter(places.values())))
        said = f"{first} stopped{said.removeprefix(first)}"
        return f"{said}: variables may differ; px.broadcast them before you go on"

    def _place(self, rank: int, ends: Mapping[int, str]) -> str:
        report = self._reports.get(rank)
        place = "" if report is None else report.place
        if place and self._state(rank) == "stopped":
            return place
        end = ends.get(rank)
        if end == "":
            return "at the end of the cell"
        # A DistributedError: another rank was stopped in this rank's operation first.
        if place and end in (None, "KeyboardInterrupt", "DistributedError"):
            return place
        return "at an unknown place" if end in (None, "KeyboardInterrupt") else f"with {end}"


class Stopping:
    """The stop of one cell, with its time limits.

    The cell's loop calls `step` until `step` says that the waiting is over. A stop holds the ranks
    until `in_step` interrupts them; another stop does that at once. One more `press` ends the
    waiting. A rank that stays at one place, in code that is not Python, is named and abandoned. A rank
    that runs its own code gets up to `PATIENCE_S`. `before` holds the stacks at the cell's time limit.
    `swallowed` holds the ranks with code that caught the interrupt. ``order`` sends an order to ranks,
    and ``on_stop`` is called with the first one.
    """

    def __init__(
        self,
        cell: str,
        order: Callable[[tuple[int, ...], RankOrder], None],
        see: SeePlaces,
        notice: Callable[[str], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._cell = cell
        self._order = order
        self._see = see
        self._notice = notice
        self._on_stop = on_stop
        self._name = uuid.uuid4().hex  # ranks interrupt their cell once for each name
        self.in_step = StopInStep(lambda ranks, steps: order(ranks, LetIn(steps)), self._interrupt)
        self._n_presses = 0
        self._look_until_s: float | None = None
        self._stopped_s: float | None = None
        self._has_asked = False
        self._seen: dict[int, RankStack] | None = None
        self._is_said = False
        self.was_pressed = self.has_timed_out = False  # which of them came first
        self.before: dict[int, RankStack] = {}
        self.swallowed: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the ranks were interrupted, or are about to be."""
        times = self._look_until_s, self._stopped_s
        return self._n_presses > 0 or times != (None, None)

    @property
    def due_s(self) -> float | None:
        """Return when `step` is due, even if no event comes."""
        return self.in_step.due_s if self._is_held else None

    @property
    def _is_held(self) -> bool:
        return self._stopped_s is not None and not self.in_step.is_over

    def time_is_up(self, running: Collection[int], now_s: float) -> None:
        """Stop the ranks at the time limit, after sampling their stacks."""
        if running and not self.has_begun:
            self.has_timed_out = True
            self._see(tuple(sorted(running)), False)
            self._look_until_s = now_s + LOOK_S

    def press(self) -> None:
        """Take a Ctrl-C, which `step` handles."""
        if self._is_held:
            self.in_step.hurry()
        else:
            self._n_presses += 1

    def stop(self, running: Collection[int], now_s: float) -> None:
        """Stop the ranks, or interrupt those that were stopped before."""
        if self._stopped_s is None:
            self._hold(running, now_s)
        elif self._is_held:
            self.in_step.hurry()
        else:
            self._interrupt(tuple(sorted(running)))

    def release(self, running: Collection[int], now_s: float) -> None:
        """Interrupt the ranks that are still held: the waiting is over."""
        if running and self._is_held:
            self.in_step.hurry()
            self.in_step.step(running, now_s)

    def take(self, stacks: Mapping[int, RankStack]) -> None:
        if self._has_asked:
            self._seen = dict(stacks)
        else:
            self.before = dict(stacks)

    def step(self, running: Collection[int], now_s: float) -> bool:
        """Do what is due; return True when the waiting is over."""
        if running and self._n_presses:
            self.was_pressed = not self.has_timed_out
            self._hold(running, now_s)
        is_over = self._look(running, now_s) or self._n_presses > 1
        if self._is_held:
            self.in_step.step(running, now_s)
        return is_over

    def _hold(self, running: Collection[int], now_s: float) -> None:
        """Hold the ranks before their next operation.

        They report how far they are. One that gets no further order is interrupted.
        """
        if self._stopped_s is None:
            self._stopped_s = now_s
            self._order(tuple(sorted(running)), StopCell(self._cell, self._name, 2 * STEP_S))
            self._on_stop()

    def _interrupt(self, ranks: tuple[int, ...]) -> None:
        """Raise KeyboardInterrupt on these ranks, once for each stop."""
        self._order(ranks, StopCell(self._cell, self._name))
        self._name = uuid.uuid4().hex

    def _look(self, running: Collection[int], now_s: float) -> bool:
        """Find ranks that do not react; return whether only such are left."""
        if self._stopped_s is None:
            if self._look_until_s is not None and (self.before or now_s >= self._look_until_s):
                self._hold(running, now_s)
            return False
        if not running:
            return False
        since_s = now_s - self._stopped_s
        if not self._has_asked and since_s >= REACT_S - TWO_LOOKS_S:
            self._has_asked = True
            self._see(tuple(sorted(running)), True)
        is_known = self._seen is not None or since_s >= REACT_S + LOOK_S
        if since_s < REACT_S or not is_known:
            return False
        self.say(running)
        return all(self._is_stuck(rank) for rank in running) or since_s >= PATIENCE_S

    def _is_stuck(self, rank: int) -> bool:
        stack = (self._seen or {}).get(rank)
        return stack is None or stack.is_still

    def say(self, running: Collection[int]) -> None:
        """Name the ranks that still run, once."""
        if self._is_said or not running:
            return
        self._is_said = True
        lines: dict[tuple[bool, bool, str], list[int]] = {}
        for rank in sorted(running):
            stack = (self._seen or {}).get(rank)
            is_swallowed = rank in self.swallowed
            if stack is not None and is_swallowed:  # so it is not C code
                stack = msgspec.structs.replace(stack, is_still=False)
            where = f": {stack.summary}" if stack is not None else ""
            lines.setdefault((self._is_stuck(rank), is_swallowed, where), []).append(rank)
        for (is_stuck, is_swallowed, where), ranks in lines.items():
            one = len(ranks) == 1
            if is_swallowed:
                what = (
                    f"{'swallows' if one else 'swallow'} the stop, a KeyboardInterrupt, and "
                    f"{'goes' if one else 'go'} on{where}; {way_out(ranks)}"
                )
            elif is_stuck:
                what = f"{'does' if one else 'do'} not react to the stop{where}; {way_out(ranks)}"
            else:
                limit = f"waiting {PATIENCE_S:g} s at most"
                what = f"{'goes' if one else 'go'} on after the stop{where}; {limit}"
            self._notice(f"{name_ranks(ranks)} {what}")
