"""From a stop, or the end of a time limit, to the end of the waiting.

It knows a way to ask where ranks are and a way to interrupt them; it never waits for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from phalanx.protocol import RankStack, name_ranks, way_out

__all__ = ["PATIENCE_S", "REACT_S", "Stopping"]

REACT_S = 2.0  # design.md section 5: who has not ended by then is named
PATIENCE_S = 10.0  # for ranks whose own code goes on after a stop (a ``finally`` that saves)
LOOK_S = 0.6  # what a look at a rank that does not answer may take
TWO_LOOKS_S = 0.3  # what two looks at ranks that answer take

# (ranks, is_twice): ask where they are; the answer comes to `Stopping.take`
See = Callable[[tuple[int, ...], bool], None]


class Stopping:
    """The stop of one cell; its loop calls `step` until that says that the waiting is over.

    Ranks that stay where they are, in code that is not Python, are named and left to it; ranks
    whose code goes on get some more time. `before` is where ranks were when time was up.
    """

    def __init__(
        self,
        see: See | None,
        interrupt: Callable[[tuple[int, ...]], None],
        notice: Callable[[str], None],
    ) -> None:
        self._see = see
        self._interrupt = interrupt
        self._notice = notice
        self._look_until_s: float | None = None
        self._stopped_s: float | None = None
        self._has_asked = False
        self._seen: dict[int, RankStack] | None = None
        self._is_said = False
        self.before: dict[int, RankStack] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the ranks were interrupted, or are about to be."""
        return self._look_until_s is not None or self._stopped_s is not None

    def time_is_up(self, running: Collection[int], now_s: float) -> None:
        """Stop the ranks after a look at where they are."""
        if self._see is None:
            self.stop(running, now_s)
        elif not self.has_begun:
            self._see(tuple(sorted(running)), False)
            self._look_until_s = now_s + LOOK_S

    def stop(self, running: Collection[int], now_s: float, *, is_sent: bool = False) -> None:
        """Stop the ranks now; ``is_sent``: somebody has interrupted them already."""
        if self._stopped_s is None:
            self._stopped_s = now_s
            if not is_sent:
                self._interrupt(tuple(sorted(running)))

    def take(self, stacks: Mapping[int, RankStack]) -> None:
        """Take the answer to a question."""
        if self._has_asked:
            self._seen = dict(stacks)
        else:
            self.before = dict(stacks)

    def step(self, running: Collection[int], now_s: float) -> bool:
        """Do what is due; True when whoever still runs is to be left alone."""
        if self._stopped_s is None:
            if self._look_until_s is not None and (self.before or now_s >= self._look_until_s):
                self.stop(running, now_s)
            return False
        if not running:
            return False
        since_s = now_s - self._stopped_s
        if not self._has_asked and since_s >= REACT_S - TWO_LOOKS_S:
            self._has_asked = True
            if self._see is None:
                self._seen = {}
            else:
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
        lines: dict[tuple[bool, str], list[int]] = {}
        for rank in sorted(running):
            stack = (self._seen or {}).get(rank)
            where = f": {stack.summary}" if stack is not None else ""
            lines.setdefault((self._is_stuck(rank), where), []).append(rank)
        for (is_stuck, where), ranks in lines.items():
            one = len(ranks) == 1
            if is_stuck:
                what = f"{'does' if one else 'do'} not react to the stop{where}; {way_out(ranks)}"
            else:
                limit = f"waiting {PATIENCE_S:g} s at most"
                what = f"{'goes' if one else 'go'} on after the stop{where}; {limit}"
            self._notice(f"{name_ranks(ranks)} {what}")
