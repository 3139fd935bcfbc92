"""A workspace: the ranks of one notebook, started, used and stopped from here.

The client's side only: life and death are the supervisor's, what a cell looks like is a view's.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from phalanx.distributed.bench import check_memory, check_request, physical_memory, sizes_between
from phalanx.errors import DistributedError
from phalanx.protocol import FromRoot, Measurement, Topology

from ._bench import measure
from ._help import Help
from ._io import SocketThread
from ._outcome import RankResult
from ._output import MAX_LINES
from ._ranks import chosen_ranks
from ._root_client import RootClient
from ._runner import CellRunner
from ._start import SILENCE_S, StartOptions, checked_options, starting
from ._values import pull_request, push_request
from ._view import QuietView, View

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Workspace"]

BOOT_S = 60.0


class Workspace:
    """Ranks that run cells together; made with `start`.

    A context manager: leaving it stops the ranks. One cell runs at a time. `make_view` makes the
    view of a cell that is run without one: nobody sees it, unless a notebook sets its own.
    """

    def __init__(self, options: StartOptions) -> None:
        self.name = options.name
        self.size = options.ranks
        self.make_view: Callable[[], View] = QuietView
        self._is_stopped = False
        self._runner: CellRunner | None = None
        with starting():
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
        silence: float = SILENCE_S,
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
        silence : float
            Seconds after which a rank that is frozen is named and the others are freed.
        transport : {"any", "tcp"}
            ``"tcp"`` keeps the ranks of one machine from sharing memory.

        Returns
        -------
        Workspace
            Ready for cells; every rank has ``rank size world px np``.

        Raises
        ------
        ValueError
            ``n``, ``linger``, ``silence`` or ``transport`` is out of range.
        DistributedError
            The ranks did not come up; says why.

        Examples
        --------
        >>> with Workspace.start(n=2) as ws:  # doctest: +SKIP
        ...     ws.run("px.all_sum(rank)")
        """
        options = checked_options(n, name, linger, silence, transport)
        self = cls(options)
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def _boot(self) -> None:
        booted = self._root.wait_booted(BOOT_S)
        self._runner = CellRunner(self.name, self._thread, self._root, booted)
        atexit.register(self.stop)

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
            Where output goes and who is asked; by default `make_view`'s.
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
        chosen = chosen_ranks(ranks, self.size)
        return self._up().run(
            code, chosen, view or self.make_view(), timeout=timeout, max_lines=max_lines
        )

    def push(self, values: Mapping[str, Any], *, ranks: int | Iterable[int] | None = None) -> None:
        """Bind names on the ranks to copies of values from here.

        Parameters
        ----------
        values : mapping of str to object
            By name; anything that pickles, and functions. Arrays travel without a copy in memory.
        ranks : int or iterable of int, optional
            Where; by default on every rank that lives.

        Raises
        ------
        ValueError
            A key is not a name, or there is no such rank.
        RankFailure
            A named rank is dead.
        """
        self._up().call(chosen_ranks(ranks, self.size), push_request(values))

    def pull(self, name: str, *, ranks: int | Iterable[int] | None = None) -> Any:
        """Return copies of a variable of the ranks.

        Parameters
        ----------
        name : str
        ranks : int or iterable of int, optional
            Whose; by default of every rank that lives.

        Returns
        -------
        list of object, or object
            By rank; the value itself where ``ranks`` is one number.

        Raises
        ------
        CellError
            Also a `NameError`: a rank has no such variable.
        ValueError
            ``name`` is not a name, or there is no such rank.
        RankFailure
            A named rank is dead.
        """
        values = self._up().call(chosen_ranks(ranks, self.size), pull_request([name]))
        found = [value[0] for _, value in sorted(values.items())]
        return found[0] if isinstance(ranks, int) else found

    def output(self, rank: int) -> str:
        """Return all that a rank has printed in this workspace's cells, the last MiB of it."""
        chosen_ranks(rank, self.size)
        return self._up().transcript.read(rank)

    def stacks(self, ranks: int | Iterable[int] | None = None) -> dict[int, str]:
        """Return where ranks are, as seen from outside: also while they run, whatever they run.

        Parameters
        ----------
        ranks : int or iterable of int, optional
            Which; by default all.

        Returns
        -------
        dict of int to str
            By rank: the operation it is in, if any, then its Python stack, innermost line first.
        """
        chosen = chosen_ranks(ranks, self.size)
        self._up()
        seen = self._root.stacks(tuple(range(self.size)) if chosen is None else chosen)
        return {rank: stack.text for rank, stack in seen.items()}

    @property
    def help(self) -> Help:
        """Names and descriptions of what lives on the ranks, for a person who types."""
        return self._up().help

    def interrupt(self) -> None:
        """Stop the cell that runs, from another thread; without one, do nothing."""
        self._up().interrupt()

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

        Returns
        -------
        iterator of Measurement
            One per size, verified; times are of the slowest rank.

        Raises
        ------
        ValueError
            An unknown operation or dtype, an empty range, or more memory than there is.
        """
        check_request(op, dtype, iterations, ranks=self.size)
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
            if self._runner is not None:
                self._runner.transcript.close()

    def _check_running(self) -> None:
        if self._is_stopped:
            msg = "this workspace was stopped; start another with %distributed start -n 4"
            raise DistributedError(msg)
        if not self._root.is_alive:
            msg = "the supervisor of this workspace is gone, and its ranks with it; start anew"
            raise DistributedError(msg)

    def _up(self) -> CellRunner:
        self._check_running()
        if self._runner is None:
            msg = "the ranks are not up yet"
            raise DistributedError(msg)
        return self._runner

    def _on_news(self, message: FromRoot) -> None:
        if self._runner is not None:
            self._runner.on_news(message)

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
