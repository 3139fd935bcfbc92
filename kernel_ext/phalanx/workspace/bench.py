"""Run bandwidth sweeps and link measurements on the ranks.

Each is a task that the ranks run as a cell. They send each measurement back as a display with a
MIME type of ours.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import msgspec

from phalanx.distributed.bench import (
    available_memory,
    check_memory,
    check_request,
    sizes_between,
    time_left,
)
from phalanx.errors import CellError, DistributedError
from phalanx.protocol import (
    LIMITS_MIME,
    LINKS_DONE_MIME,
    LINKS_MIME,
    MEASUREMENT_MIME,
    Limit,
    LinkMeasurement,
    LinksProgress,
    Measurement,
    SweepProgress,
    SweepRun,
    SweepState,
    WorldTopology,
)
from phalanx.rank import publish_links, publish_sweep

from .cells.cell import Event, Interrupted, make_task
from .cells.runner import CellRunner
from .connection.transport import ctrl_c
from .options import checked_whole
from .output.front_end import Display, View

_MOST_S = 12.0  # longest time for one size: twice the 5 s of `sweep`, plus the checks
_MOST_KEPT = 16  # sweeps kept per workspace


class BenchView(View):
    """Passes on what ranks display; ``takers`` are by MIME type.

    Calls ``begun`` when the cell starts.
    """

    def __init__(
        self, begun: Callable[[], None], takers: Mapping[str, Callable[[Any], None]]
    ) -> None:
        self._begun, self._takers = begun, takers

    def begin(self, ranks: tuple[int, ...]) -> None:
        self._begun()

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        for mime, take in self._takers.items():
            if mime in event.data:
                take(event.data[mime])


def refusal_of(error: BaseException) -> ValueError | None:
    """Return the `ValueError` that all ranks raised alike, else None.

    The ranks raise it when they refuse a sweep before they start.
    """
    failures = error.failures.values() if isinstance(error, CellError) else ()
    texts = {text if name == "ValueError" else None for name, text, _ in failures}
    text = texts.pop() if len(texts) == 1 else None
    return None if text is None else ValueError(text)


class Sweep:
    """A sweep that yields each size's measurement during iteration.

    Leaving the iteration early, Ctrl-C and `stop` stop the ranks. Any thread may call `stop` and
    read `progress`, `run`, `points` and `limits`; only the iterating thread changes them.
    """

    def __init__(
        self,
        bench: BandwidthBench,
        op: str,
        sizes: tuple[int, ...],
        dtype: str,
        iterations: int,
        *,
        wait: bool,
    ) -> None:
        self.sizes = (0,) if op == "barrier" else sizes  # in bytes; a barrier has no size
        self.run = SweepRun(op, dtype, bench.size, "waiting", "", (), ())  # so far
        self._bench, self._iterations, self._wait = bench, iterations, wait
        # A state: the ranks begin.  None: the cell has ended.  KeyboardInterrupt: Ctrl-C.
        self._news: queue.SimpleQueue[
            SweepState | tuple[Limit, ...] | Measurement | KeyboardInterrupt | None
        ] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # of the cell
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._begun_s = self._ended_s = self._last_s = 0.0
        self._took: list[tuple[int, float]] = []

    @property
    def points(self) -> tuple[Measurement, ...]:
        """Return the measurements so far."""
        return self.run.points

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Return the limits of the machine that are known so far."""
        return self.run.limits

    @property
    def progress(self) -> SweepProgress:
        """Return the current progress."""
        state, n_done = self.run.state, len(self.points)
        to_come = self.sizes[n_done:] if state in ("waiting", "measuring") else ()
        now_s = self._ended_s or time.monotonic()
        left_s = time_left(self._took, to_come, _MOST_S)
        if left_s is not None and to_come:
            left_s = max(0.0, left_s - (now_s - self._last_s))
        return SweepProgress(
            state=state,
            n_done=n_done,
            n_points=len(self.sizes),
            nbytes=to_come[0] if to_come else 0,
            elapsed_s=now_s - self._begun_s if self._begun_s else 0.0,
            left_s=left_s,
        )

    def stop(self) -> None:
        """Stop the ranks, also within a size; idempotent.

        Measurements made so far are kept.
        """
        self._is_stopped = True
        self._events.put(Interrupted())

    def __iter__(self) -> Iterator[Measurement]:
        """Start the sweep and yield each measurement; works once.

        Raises
        ------
        DistributedError
            The ranks run a cell, or this sweep was run before.
        RankFailure
            A rank died meanwhile.
        """
        if self._thread is not None:
            msg = "this sweep has been run; ask for another with bench()"
            raise DistributedError(msg)
        started = datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")
        self._note(started=started, limits=self._bench.limits)
        self._thread = threading.Thread(target=self._work, name="phalanx-bench", daemon=True)
        self._thread.start()
        is_left = True
        try:
            while (news := self._news.get()) is not None:
                if isinstance(news, KeyboardInterrupt):
                    raise news
                self._take(news)
                if isinstance(news, Measurement):
                    yield news
            is_left = False
        finally:
            if is_left:
                self.stop()
            self._thread.join()
            self._end()
        if self.run.state == "failed" and self._failure is not None:
            raise self._failure

    @contextmanager
    def ends_at_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C end the iteration within this context, and never be lost.

        Python drops a KeyboardInterrupt that is raised in a finalizer or in code that a C library
        calls. Here Ctrl-C only puts a mark behind the measurements; the iteration raises at the
        mark. A second Ctrl-C raises at once.
        """
        pressed: list[KeyboardInterrupt] = []

        def press() -> None:
            pressed.append(KeyboardInterrupt())
            if len(pressed) > 1:
                raise pressed[-1]
            self._news.put(pressed[0])

        with ctrl_c(press):
            yield
        if len(pressed) == 1:  # it came after the last measurement
            raise pressed[0]

    def _note(self, **changes: Any) -> None:
        self.run = msgspec.structs.replace(self.run, **changes)

    def _take(self, news: SweepState | tuple[Limit, ...] | Measurement) -> None:
        now_s = time.monotonic()
        if isinstance(news, Measurement):
            self._took.append((news.nbytes, now_s - self._last_s))
            self._note(points=(*self.points, news))
        elif isinstance(news, tuple):
            self._note(limits=news)
            if all(limit.gbs > 0 for limit in news):  # else the next sweep measures again
                self._bench.limits = news
        else:
            self._note(state=news)
            self._begun_s = now_s
        self._last_s = now_s  # the time of the first size starts after the limits

    def _end(self) -> None:
        failure, self._ended_s = self._failure, time.monotonic()
        # Errors caused by our own stop are no failure; a rank's death is.
        is_stop = isinstance(failure, KeyboardInterrupt | CellError)
        if failure is not None and not (is_stop and self._is_stopped):
            self._note(state="failed")
        else:
            self._note(state="stopped" if len(self.points) < len(self.sizes) else "done")
        if self.points:
            self._bench.keep(self.run)

    def _work(self) -> None:
        """Run the ranks' cell, on a thread of its own."""
        put = self._news.put
        takers = {
            MEASUREMENT_MIME: lambda data: put(msgspec.convert(data, Measurement)),
            LIMITS_MIME: lambda data: put(msgspec.convert(data, tuple[Limit, ...])),
        }
        try:
            if not self._is_stopped:
                task = make_task(
                    publish_sweep,
                    self.run.op,
                    self.sizes,
                    self.run.dtype,
                    self._iterations,
                    with_limits=not self.limits,
                )
                view = BenchView(lambda: put("measuring"), takers)
                what = f"a bandwidth sweep of {self.run.op}"
                check = self._bench.up if self._wait else None
                self._bench.up().perform(task, view, what, events=self._events, check=check)
        except BaseException as error:  # noqa: BLE001 - raised on the iterating thread
            self._failure = refusal_of(error) or error
        finally:
            put(None)


class BandwidthBench:
    """Makes the sweeps of one workspace, and keeps the last results.

    ``up`` returns the runner of cells, or raises.
    """

    def __init__(
        self, size: int, up: Callable[[], CellRunner], topology: Callable[[], WorldTopology]
    ) -> None:
        self.sweeps: tuple[SweepRun, ...] = ()
        self.size, self.up = size, up
        self._topology = topology
        self.limits: tuple[Limit, ...] = ()  # of the machine, measured once; empty: not yet

    def sweep(
        self,
        op: str,
        *,
        begin: int,
        end: int,
        factor: int,
        dtype: str,
        iterations: int,
        wait: bool,
    ) -> Sweep:
        """Return a sweep that has not started; see `Workspace.bench`."""
        numbers = {"begin": begin, "end": end, "factor": factor, "iterations": iterations}
        begin, end, factor, iterations = (
            checked_whole(what, number, 0) for what, number in numbers.items()
        )
        check_request(op, dtype, iterations, ranks=self.size)
        sizes = sizes_between(begin, end, factor)
        self.up()
        # Ranks of other hosts check their memory when the sweep starts.
        check_memory(sizes, self._ranks_here(), available_memory())
        return Sweep(self, op, sizes, dtype, iterations, wait=wait)

    def _ranks_here(self) -> int:
        world = self._topology()
        here = {host.index for host in world.hosts if host.name == socket.gethostname()}
        return sum(rank.host in here for rank in world.ranks)

    def keep(self, run: SweepRun) -> None:
        self.sweeps = (*self.sweeps, run)[-_MOST_KEPT:]


class LinkBench:
    """Measures the links between ranks, and keeps the last result."""

    def __init__(self, size: int, up: Callable[[], CellRunner]) -> None:
        self.progress: LinksProgress | None = None  # for any thread
        self._size = size
        self._up = up
        self._begun_s = 0.0
        self._found: tuple[LinkMeasurement, ...] = ()
        self._runner: CellRunner | None = None
        self._engines: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[LinkMeasurement, ...]:
        """Return the last result, without links of ranks replaced since."""
        if self._runner is None:
            return ()
        now = self._runner.engines
        same = {rank for rank, engine in enumerate(self._engines) if now[rank] == engine}
        return tuple(link for link in self._found if link.a in same and link.b in same)

    def measure(self) -> tuple[LinkMeasurement, ...]:
        """Measure every pair of ranks; see `Workspace.measure_links`."""
        runner = self._up()
        engines = runner.engines
        found: list[Any] = []
        view = BenchView(self._on_begin, {LINKS_DONE_MIME: self._on_done, LINKS_MIME: found.append})
        try:
            runner.perform(make_task(publish_links), view, "a measurement of the links")
        finally:
            self.progress = None
        self._found = msgspec.convert(found[-1] if found else (), tuple[LinkMeasurement, ...])
        self._runner, self._engines = runner, engines
        return self._found

    def _on_begin(self) -> None:
        self._begun_s = time.monotonic()
        self._note(0)

    def _on_done(self, data: Any) -> None:
        self._note(msgspec.convert(data, dict[str, int])["n_done"])

    def _note(self, n_done: int) -> None:
        n_links = self._size * (self._size - 1) // 2
        self.progress = LinksProgress(n_done, n_links, time.monotonic() - self._begun_s)
