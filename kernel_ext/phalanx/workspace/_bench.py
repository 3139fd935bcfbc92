"""Running the ranks' sweep engine and taking its measurements as they come.

It knows how far a sweep is and what ends it; what the ranks run and say is `_bench_cell`'s.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone

from phalanx.distributed.bench import (
    available_memory,
    check_memory,
    check_request,
    measure_limits,
    sizes_between,
    time_left,
)
from phalanx.errors import CellError, DistributedError
from phalanx.protocol import (
    Limit,
    Measurement,
    SweepProgress,
    SweepRun,
    SweepState,
    Topology,
)

from ._bench_cell import BenchView, Request, refusal_of
from ._checks import checked_whole
from ._output import MAX_LINES
from ._runner import CellRunner
from ._turns import CellRuns

__all__ = ["CanBench", "Sweep"]

_LOOK_S = 0.2  # how often who waits for its turn looks whether it was stopped
_MOST_S = 12.0  # that a size takes: twice the 5 s of `sweep`, and the checks
_MOST_KEPT = 16  # sweeps of a workspace


class Sweep:
    """A sweep, by iteration: each size is yielded when it was measured.

    It begins when the iteration does. Whoever leaves that early, or presses Ctrl-C in it, stops
    the ranks; so does `stop`, from any thread, between two sizes and within one. `progress`,
    `points` and `limits` may be read from any thread meanwhile.

    The iterating thread alone adds points; the lock guards what `stop` and the cell's thread
    decide together: whether there is a cell to interrupt.
    """

    def __init__(
        self,
        request: Request,
        ranks: int,
        runner: Callable[[], CellRunner],
        limits: Callable[[], tuple[Limit, ...] | None],
        learn: Callable[[tuple[Limit, ...]], None],
        keep: Callable[[SweepRun], None],
        *,
        wait: bool,
    ) -> None:
        self.op, self.dtype, self.ranks = request.op, request.dtype, ranks
        self.sizes = request.sizes
        self.points: tuple[Measurement, ...] = ()
        self.limits: tuple[Limit, ...] = ()
        self._request = request
        self._runner, self._keep = runner, keep
        self._find_limits, self._learn = limits, learn
        self._wait = wait
        self._view = BenchView(self._on_begin, self._on_limits)
        self._lock = threading.Lock()
        self._is_running = False  # the ranks have the cell
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._state: SweepState = "waiting"
        self._started = ""
        self._begun_s = self._ended_s = 0.0
        self._took: list[tuple[int, float]] = []
        self._last_s = 0.0

    # -- from any thread ----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the ranks, also within a size; what was measured stays. Idempotent."""
        with self._lock:
            self._stop.set()
            if self._is_running:
                self._interrupt()

    def _interrupt(self) -> None:
        with suppress(DistributedError):  # the ranks are gone, and the sweep with them
            self._runner().interrupt()

    @property
    def progress(self) -> SweepProgress:
        """How far it is, as of now."""
        n_done = len(self.points)
        to_come = self.sizes[n_done:] if self._state in ("waiting", "measuring") else ()
        now_s = self._ended_s or time.monotonic()
        left_s = time_left(self._took, to_come, _MOST_S)
        if left_s is not None and to_come:
            left_s = max(0.0, left_s - (now_s - self._last_s))
        return SweepProgress(
            state=self._state,
            n_done=n_done,
            n_points=len(self.sizes),
            nbytes=to_come[0] if to_come else 0,
            elapsed_s=now_s - self._begun_s if self._begun_s else 0.0,
            left_s=left_s,
        )

    @property
    def run(self) -> SweepRun:
        """What came of it so far, as a record."""
        return SweepRun(
            op=self.op,
            dtype=self.dtype,
            ranks=self.ranks,
            state=self._state,
            started=self._started,
            points=self.points,
            limits=self.limits,
        )

    # -- the iterating thread -----------------------------------------------------------------

    def __iter__(self) -> Iterator[Measurement]:
        """Begin, and yield what is measured; once.

        Raises
        ------
        DistributedError
            The ranks run a cell, or this sweep has been run before.
        RankFailure
            A rank died meanwhile.
        """
        if self._thread is not None:
            msg = "this sweep has been run; ask for another with bench()"
            raise DistributedError(msg)
        self._started = datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")
        self._thread = threading.Thread(target=self._work, name="phalanx-bench", daemon=True)
        self._thread.start()
        is_left = True
        try:
            while (measurement := self._view.measured.get()) is not None:
                self._take(measurement)
                yield measurement
            is_left = False
        finally:
            if is_left:
                self.stop()
            self._thread.join()
            self._end()
        if self._state == "failed" and self._failure is not None:
            raise self._failure

    def _take(self, measurement: Measurement) -> None:
        now_s = time.monotonic()
        self._took.append((measurement.nbytes, now_s - self._last_s))
        self._last_s = now_s
        self.points = (*self.points, measurement)

    def _end(self) -> None:
        failure, self._ended_s = self._failure, time.monotonic()
        # What follows from our own stop is no failure; a rank that died is.
        is_stop = isinstance(failure, KeyboardInterrupt | CellError)
        if failure is not None and not (is_stop and self._stop.is_set()):
            self._state = "failed"
        elif len(self.points) < len(self.sizes):
            self._state = "stopped"
        else:
            self._state = "done"
        if self.points:
            self._keep(self.run)

    # -- the cell's thread --------------------------------------------------------------------

    def _on_begin(self) -> None:
        with self._lock:
            self._is_running = True
            if self._stop.is_set():
                self._interrupt()
        self._state = "measuring"
        self._begun_s = self._last_s = time.monotonic()

    def _on_limits(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits
        self._last_s = time.monotonic()  # the first size takes its time from here
        self._learn(limits)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                runner = self._runner()
                if self._wait and not runner.wait_idle(_LOOK_S):
                    continue
                try:
                    runner.check_idle()
                    known = self._find_limits()
                    self.limits = known or ()
                    self._run(runner, with_limits=known is None)
                    return
                except CellRuns:
                    if not self._wait:
                        raise
        except BaseException as error:  # noqa: BLE001 - raised on the iterating thread
            self._failure = refusal_of(error) or error
        finally:
            self._view.measured.put(None)

    def _run(self, runner: CellRunner, *, with_limits: bool) -> None:
        code = self._request.code(with_limits=with_limits)
        what = f"a bandwidth sweep of {self.op}"
        try:
            runner.run(code, None, self._view, timeout=None, max_lines=MAX_LINES, what=what)
        finally:
            with self._lock:
                self._is_running = False


class CanBench:
    """The part of a workspace that measures its ranks' bandwidth."""

    size: int
    _sweeps: tuple[SweepRun, ...] = ()
    _limits: tuple[Limit, ...] = ()

    def _up(self) -> CellRunner:
        raise NotImplementedError

    def topology(self) -> Topology:
        """Return the world as of now; `WorkspaceLife` has it."""
        raise NotImplementedError

    @property
    def sweeps(self) -> tuple[SweepRun, ...]:
        """The sweeps of this workspace that gave a measurement: the last 16, oldest first."""
        return self._sweeps

    def bench(
        self,
        op: str = "all_sum",
        *,
        begin: int = 8,
        end: int = 64 << 20,
        factor: int = 4,
        dtype: str = "float32",
        iterations: int = 20,
        wait: bool = False,
    ) -> Sweep:
        """Measure an operation over a range of sizes; each is yielded when it was measured.

        Parameters
        ----------
        op : str
            A collective by its name, ``"sendrecv"`` (each rank to the next) or ``"barrier"``.
        begin, end : int
            First and last size in bytes.
        factor : int
            From one size to the next.
        dtype : str
            Of the elements.
        iterations : int
            Timed calls per size.
        wait : bool
            Where the ranks run a cell, wait for its end; by default that is an error.

        Returns
        -------
        Sweep
            An iterable of one Measurement per size, verified, of the slowest rank's times; it
            tells its progress, and can be stopped from another thread.

        Raises
        ------
        ValueError
            An unknown operation or dtype, an empty range, or more memory than the ranks of this
            machine find free. Those of others look for themselves, as the iteration begins.
        DistributedError
            (by the iteration) The ranks run a cell; says which.
        """
        numbers = {"begin": begin, "end": end, "factor": factor, "iterations": iterations}
        begin, end, factor, iterations = (
            checked_whole(what, number, 0) for what, number in numbers.items()
        )
        check_request(op, dtype, iterations, ranks=self.size)
        sizes = sizes_between(begin, end, factor)
        self._up()
        # Those of other hosts ask theirs, as the sweep begins.
        check_memory(sizes, self._ranks_here(), available_memory())
        request = Request(op, begin, end, factor, dtype, iterations)
        return Sweep(
            request, self.size, self._up, self._known_limits, self._learn_limits, self._keep_sweep,
            wait=wait,
        )  # fmt: skip

    def _ranks_here(self) -> int:
        world = self.topology()
        here = {host.index for host in world.hosts if host.name == socket.gethostname()}
        return sum(rank.host in here for rank in world.ranks)

    def _known_limits(self) -> tuple[Limit, ...] | None:
        """Measure once in a workspace's life: machines stay what they are.

        None where the ranks are not on this one: they are to measure, as they begin.
        """
        if not self._limits:
            world = self.topology()
            if [host.name for host in world.hosts] != [socket.gethostname()]:
                return None
            self._limits = measure_limits({link.transport for link in world.links})
        return self._limits

    def _learn_limits(self, limits: tuple[Limit, ...]) -> None:
        if all(limit.gbs > 0 for limit in limits):  # else the next sweep may find out
            self._limits = limits

    def _keep_sweep(self, run: SweepRun) -> None:
        self._sweeps = (*self._sweeps, run)[-_MOST_KEPT:]
