"""A workspace: the ranks of one notebook, started, used and stopped from here.

The client's side only: life and death are the supervisor's, what a cell looks like is a view's.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from phalanx.distributed.bench import (
    check_memory,
    check_request,
    physical_memory,
    sizes_between,
)
from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import FromRoot, Measurement, RankLost, Topology

from ._bench import measure
from ._cell import Cell
from ._dispatch import Dispatch
from ._events import Lost
from ._io import SocketThread
from ._outcome import RankResult, raise_for, results_of
from ._output import MAX_LINES
from ._root_client import RootClient
from ._run import CellOutcome, run_cell
from ._start import StartOptions, checked_options, wait_answering
from ._transcript import Transcript
from ._view import QuietView, View

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Workspace"]

BOOT_S = 60.0
ENTER_CODE = "get_ipython().kernel.enter_world()"


class Workspace:
    """Ranks that run cells together; made with `start`.

    A context manager: leaving it stops the ranks. One cell runs at a time.
    """

    def __init__(self, options: StartOptions) -> None:
        self.name = options.name
        self.size = options.ranks
        self._names = itertools.count(1)
        self._busy = threading.Lock()  # one cell at a time
        self._running: Cell | None = None
        self._is_stopped = False
        self._dispatch: Dispatch | None = None
        self._transcript = Transcript()
        self._thread = SocketThread(f"phalanx-{self.name}")
        try:
            self._root = RootClient(self._thread, options, self._on_news)
        except BaseException:
            self._thread.close()
            raise

    @classmethod
    def start(
        cls,
        n: int = 4,
        *,
        name: str | None = None,
        linger: float = 0.0,
        transport: str = "any",
    ) -> Workspace:
        """Start ``n`` ranks on this machine and wait until they have met.

        Parameters
        ----------
        n : int
            Number of ranks, 1 or more.
        name : str, optional
            What to call the workspace; by default made from this process's id.
        linger : float
            Seconds that the ranks outlive this process (they end at once by default, as nothing
            can find them again yet).
        transport : {"any", "tcp"}
            ``"tcp"`` keeps the ranks of one machine from sharing memory.

        Returns
        -------
        Workspace
            Ready for cells; every rank has ``rank size world px np``.

        Raises
        ------
        ValueError
            ``n``, ``linger`` or ``transport`` is out of range.
        DistributedError
            The ranks did not come up; says why.

        Examples
        --------
        >>> with Workspace.start(n=2) as ws:  # doctest: +SKIP
        ...     ws.run("px.all_sum(rank)")
        """
        options = checked_options(n, name, linger, transport)
        self = cls(options)
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def _boot(self) -> None:
        booted = self._root.wait_booted(BOOT_S)
        self._dispatch = Dispatch(self._thread, booted.connection, booted.engines)
        wait_answering(self._dispatch, f"{self.name}:ping", self.size, BOOT_S)
        self._enter()
        atexit.register(self.stop)

    def _enter(self) -> None:
        """Have every rank join the world as it stands."""
        cell = Cell(f"{self.name}:enter:{next(self._names)}", tuple(range(self.size)))
        raise_for(self._execute(cell, ENTER_CODE, QuietView(), silent=True, timeout=None))

    # -- cells --------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        view: View | None = None,
        max_lines: int = MAX_LINES,
    ) -> list[RankResult]:
        """Run code on all ranks (or on some) and wait for it.

        Parameters
        ----------
        code : str
            A cell as IPython takes it: magics, ``await`` and all.
        ranks : iterable of int, optional
            Where to run; by default on every rank that lives.
        timeout : float, optional
            Seconds; when they are over the ranks are stopped.
        view : View, optional
            Where output goes and who is asked; by default nowhere and nobody.
        max_lines : int, optional
            Lines to show; `output` has them all.

        Returns
        -------
        list of RankResult
            By rank; ``value`` is the ``repr`` of the last expression, None without one.

        Raises
        ------
        CellError
            The code failed on a rank; holds every rank's error.
        RankFailure
            A rank died meanwhile.
        KeyboardInterrupt
            Ctrl-C, after the ranks were stopped.
        TimeoutError
            ``timeout`` was over; the ranks were stopped.
        ValueError
            ``ranks`` names one that is not there.
        """
        chosen = self._choose(ranks)
        view = view if view is not None else QuietView()
        with self._one_at_a_time():
            name = f"{self.name}:{next(self._names)}"
            allowed = self._root.begin_cell(name, chosen)
            if allowed.reform:
                self._enter()
            here = tuple(rank for rank in chosen if rank not in allowed.dead)
            if not here:
                rank, reason = next(iter(allowed.dead.items()))
                raise RankFailure(rank, "", reason)
            if allowed.dead and ranks is None:
                lost = "; ".join(f"rank {rank} {why}" for rank, why in allowed.dead.items())
                view.notice(f"running without {lost}")
            outcome = self._execute(
                Cell(name, here), code, view, silent=False, timeout=timeout, max_lines=max_lines
            )
        raise_for(outcome, timeout)
        return results_of(outcome, here)

    def _choose(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        self._check_running()
        if ranks is None:
            return tuple(range(self.size))
        chosen = tuple(sorted(set(ranks)))
        for rank in chosen:
            if not 0 <= rank < self.size:
                msg = f"there is no rank {rank}: the ranks are 0 to {self.size - 1}"
                raise ValueError(msg)
        if not chosen:
            msg = "no ranks to run on"
            raise ValueError(msg)
        return chosen

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            msg = "a cell runs already; wait for it, or stop it with %distributed interrupt"
            raise DistributedError(msg)
        try:
            yield
        finally:
            self._busy.release()

    def _execute(
        self,
        cell: Cell,
        code: str,
        view: View,
        *,
        silent: bool,
        timeout: float | None,
        max_lines: int = MAX_LINES,
    ) -> CellOutcome:
        dispatch = self._connected()
        self._running = cell
        try:
            for rank in cell.ranks:
                dispatch.execute(cell, rank, code, silent=silent)
            return run_cell(
                cell,
                view,
                dispatch,
                timeout_s=timeout,
                transcript=self._transcript,
                max_lines=max_lines,
            )
        finally:
            self._running = None
            dispatch.forget(cell)

    def output(self, rank: int) -> str:
        """Return all that a rank has printed in this workspace's cells, the last MiB of it."""
        self._choose([rank])
        return self._transcript.read(rank)

    def interrupt(self) -> None:
        """Stop the cell that runs, from another thread; without one, do nothing."""
        self._check_running()
        cell = self._running
        if cell is not None:
            self._connected().interrupt_cell(cell.name, cell.ranks)

    def bench(
        self,
        op: str = "all_sum",
        *,
        begin: int = 8,
        end: int = 64 << 20,
        factor: int = 4,
        dtype: str = "float32",
        iterations: int = 20,
    ) -> Iterator[Measurement]:
        """Measure an operation over a range of sizes; each is yielded when it was measured.

        Parameters
        ----------
        op : {"all_sum", "all_gather", "broadcast", "barrier"}
        begin, end : int
            First and last size in bytes.
        factor : int
            From one size to the next.
        dtype : str
            Of the elements.
        iterations : int
            Timed calls per size.

        Returns
        -------
        iterator of Measurement
            One per size, verified; times are of the slowest rank.

        Raises
        ------
        ValueError
            An unknown operation or dtype, an empty range, or more memory than there is.
        """
        check_request(op, dtype, iterations)
        check_memory(sizes_between(begin, end, factor), self.size, physical_memory())
        return measure(
            self.run,
            self.interrupt,
            op=op,
            begin=begin,
            end=end,
            factor=factor,
            dtype=dtype,
            iterations=iterations,
        )

    # -- life ---------------------------------------------------------------------------------

    def topology(self) -> Topology:
        """Return hosts, ranks, their states and the paths between them, as of now."""
        self._check_running()
        return self._root.topology()

    @property
    def is_running(self) -> bool:
        """Whether the workspace was not stopped and its supervisor lives."""
        return not self._is_stopped and self._root.is_alive

    def stop(self) -> None:
        """End the ranks and everything that was started for them; idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        atexit.unregister(self.stop)
        try:
            self._root.stop()
        finally:
            self._thread.close()
            self._transcript.close()

    def _check_running(self) -> None:
        if self._is_stopped:
            msg = "this workspace was stopped; start another with %distributed start -n 4"
            raise DistributedError(msg)
        if not self._root.is_alive:
            msg = "the supervisor of this workspace is gone, and its ranks with it; start anew"
            raise DistributedError(msg)

    def _connected(self) -> Dispatch:
        if self._dispatch is None:
            msg = "the ranks are not up yet"
            raise DistributedError(msg)
        return self._dispatch

    def _on_news(self, message: FromRoot) -> None:
        if isinstance(message, RankLost) and self._dispatch is not None:
            lost = Lost(message.rank, message.host, message.reason, message.tail)
            self._dispatch.on_lost(lost)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        """Name, size and whether it runs."""
        state = "running" if self.is_running else "stopped"
        return f"Workspace({self.name!r}, size={self.size}, {state})"
