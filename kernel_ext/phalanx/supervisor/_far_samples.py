"""The samples of another host, at both of its ends: it is asked for each look, and looks then.

Who watches, and how ranks are compared, is `Samplers`' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from phalanx.distributed import ENTRY
from phalanx.protocol import RankSample
from phalanx.protocol.host_samples import HostSample, HostSamples, SampleRanks, said_of

from ._courtesy import Courtesy
from ._host import HostSupervisor
from ._rank_reader import RankReader
from ._steady import Steady

if TYPE_CHECKING:
    from ._host_line import HostLine

__all__ = ["FarSamples", "SampleAnswers"]

LAST_NS = (1 << 62) - 1  # the latest that a client takes


class SampleAnswers:
    """A host's end: looks when it is asked, and does not look anew before it may.

    ``report`` tells of what ranks are in: who waits for whom is to be as new as what they did.
    """

    def __init__(
        self,
        host: HostSupervisor,
        report: Callable[[], None],
        say: Callable[[HostSamples], None],
    ) -> None:
        self._reader = RankReader(host)
        self._report = report
        self._say = say
        self._steady = Steady("a sample of the ranks")
        self._loop = asyncio.get_running_loop()
        self._courtesy = Courtesy(self._loop)
        self._not_before_s = 0.0

    async def answer(self) -> None:
        """Look at all ranks, and tell of them."""
        await asyncio.sleep(max(0.0, self._not_before_s - self._loop.time()))
        self._courtesy.show()
        begun_s = self._loop.time()
        found: tuple[HostSample, ...] = ()
        with self._steady.look():
            found = tuple(said_of(its) for its in self._reader.read())
            self._report()
        self._say(HostSamples(found))
        # As at the root: a look that takes long must not become all there is to do.
        now_s = self._loop.time()
        self._not_before_s = now_s + 4 * (now_s - begun_s)


class FarSamples:
    """The root's end.

    Parameters
    ----------
    ranks : sequence of int
        Of this host, of ``size`` of the world.
    line : callable
        The newest line to the host; None before the first.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        size: int,
        line: Callable[[], HostLine | None],
    ) -> None:
        self.ranks = tuple(ranks)
        self._size = size
        self._line = line
        self._is_asked = False
        self._come: HostSamples | None = None
        self._last: dict[int, RankSample] = {}
        self._n_forgiven = 0  # answers that tell of a time when nobody watched
        self.answered = asyncio.Event()
        self.unsure_ns = 0

    def _clock(self) -> tuple[int, int] | None:
        line = self._line()
        return None if line is None else line.clock()

    @property
    def is_up(self) -> bool:
        """Whether the host can be asked."""
        return self._clock() is not None

    @property
    def is_asked(self) -> bool:
        """Whether an answer is on its way."""
        return self._is_asked

    def begin(self) -> None:
        """Expect no word of what came and went until now: nobody watched."""
        self._n_forgiven = 1 + (self._is_asked or self._come is not None)

    def ask(self) -> bool:
        """Have the host look, unless it is to already; whether it is worth waiting for that."""
        line = self._line()
        if self._is_asked or self._come is not None or line is None or line.clock() is None:
            return False
        self._is_asked = True
        self.answered.clear()
        line.say(SampleRanks())
        return True

    def come(self, message: HostSamples) -> str:
        """Take an answer; what is wrong with it, if anything is."""
        if not self._is_asked:
            return "answered what it was not asked"
        if len(message.ranks) > len(self.ranks) or not all(map(self._makes_sense, message.ranks)):
            return "it has said what its root cannot understand"
        self._is_asked, self._come = False, message
        self.answered.set()
        return ""

    def _makes_sense(self, its: HostSample) -> bool:
        return not len(its.entries) % ENTRY.itemsize and max(its.wires, default=0) < self._size

    def lose(self) -> None:
        """Expect no answer any more; what was seen last stays."""
        self._is_asked, self._come = False, None
        self._last = {
            rank: msgspec.structs.replace(its, spans=(), uses=())
            for rank, its in self._last.items()
        }
        self.answered.set()

    def take(self) -> dict[int, RankSample]:
        """Return all ranks in the root's time, with what is new of them; sums stay as they were."""
        come, clock = self._come, self._clock()
        self._come = None
        if come is None or clock is None:
            return {rank: _still(its) for rank, its in self._last.items()}
        offset_ns, self.unsure_ns = clock
        self._last = {its.rank: _in_our_time(its, offset_ns) for its in come.ranks}
        if self._n_forgiven:
            self._n_forgiven -= 1
            self._last = {
                rank: msgspec.structs.replace(its, missed=0) for rank, its in self._last.items()
            }
        return self._last


def _still(its: RankSample) -> RankSample:
    """Return a rank as it was: what is over is told once, what runs at each look."""
    spans = tuple(span for span in its.spans if not span.done_ns)
    return msgspec.structs.replace(its, spans=spans, missed=0, entries=b"", uses=())


def _in_our_time(its: HostSample, offset_ns: int) -> RankSample:
    return RankSample(
        its.rank,
        its.pid,
        "starting",
        "",
        its.operations,
        its.arena_nbytes,
        its.inside_ns,
        its.waiting_ns,
        its.wires,
        tuple(
            msgspec.structs.replace(
                span,
                begun_ns=_moved(span.begun_ns, offset_ns),
                done_ns=_moved(span.done_ns, offset_ns),
            )
            for span in its.spans
        ),
        its.missed,
        _entries(its.entries, offset_ns),
        its.uses,
    )


def _moved(ns: int, offset_ns: int) -> int:
    """0 stays 0: it has not come."""
    return min(max(1, ns + offset_ns), LAST_NS) if ns else 0


def _entries(packed: bytes, offset_ns: int) -> bytes:
    entries = np.frombuffer(packed, ENTRY).copy()
    for name in ("entered", "ended"):
        times = entries[name].astype(np.int64)
        entries[name] = np.where(times > 0, np.maximum(1, times + offset_ns), 0).astype(np.uint64)
    moved: bytes = entries.tobytes()
    return moved
