"""Define `Workspace`: the ranks of one notebook.

This is the client's side. It checks the arguments and sends requests; the supervisor starts and
watches the ranks, and a view shows the output of a cell.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from phalanx.protocol import (
    GRACE_S,
    BootProgress,
    GetTrace,
    HostPlan,
    JobOptions,
    LinkMeasurement,
    LinksProgress,
    RemoteOptions,
    SweepRun,
    TraceIs,
    WorldTopology,
)
from phalanx.rank import evaluate
from phalanx.supervisor import RootProcess, launch_root

from .bench import BandwidthBench, LinkBench, Sweep
from .cells.cell import make_task
from .cells.debugging import RankDebuggers
from .cells.loop import RankError, RankResult
from .cells.rank_help import Help
from .connection.connect import WorkspaceInfo, attach_root, list_workspaces
from .connection.root_client import SampleView
from .function_calls import (
    CallPlan,
    PendingCall,
    forget_values,
    make_call,
    plan_apply,
    plan_gather,
    plan_map,
    plan_push,
    plan_scatter,
)
from .lifecycle import Lifecycle
from .options import (
    HEARTBEAT_TIMEOUT_S,
    LINGER_S,
    checked_expressions,
    checked_options,
    checked_path,
    checked_seconds,
    checked_text,
    checked_whole,
    planned,
    resolve_placement,
    starting,
)
from .output.front_end import View
from .output.notices import Ranks, chosen_rank, chosen_ranks, is_one_rank
from .output.printer import MAX_LINES
from .trace import Trace, merged

if TYPE_CHECKING:
    import ipyparallel
    from typing_extensions import Self

    from phalanx.hosts import Hostfile


class Workspace:
    """Ranks that run cells together; made with `start` or `attach`.

    A context manager: leaving the block stops the ranks. Ranks that were attached to, or started
    with ``detach``, are only detached from. One cell runs at a time. `make_view` makes the view for
    cells that are run without ``view``; the default shows nothing, and a notebook sets its own.
    """

    name: str
    size: int

    def __init__(self, root: RootProcess, *, is_kept: bool) -> None:
        self.name = root.record.name
        self.size = root.record.size
        self.threads_note = ""  # set by `start`: how the ranks of a host share its cores
        self.make_view: Callable[[], View] = View
        self._life = Lifecycle(
            root, is_kept=is_kept, notice=lambda text: self.make_view().notice(text)
        )
        self._root = self._life.root
        self._bench = BandwidthBench(self.size, self._life.up, self.topology)
        self._links = LinkBench(self.size, self._life.up)

    @classmethod
    def start(
        cls,
        n: int | None = None,
        *,
        hosts: str | Iterable[str | HostPlan] | None = None,
        hostfile: str | PathLike[str] | Hostfile | None = None,
        name: str | None = None,
        linger: float = LINGER_S,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
        silence: float | None = None,
        transport: str | None = None,
        detach: bool = False,
        auto_restart: bool = False,
        grace: float = GRACE_S,
        python: str | None = None,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | Iterable[str] = (),
        ssh_args: Iterable[str] = (),
        interface: str | None = None,
        launcher: str | None = None,
        boot_timeout: float | None = None,
        connections_per_ip: int | None = None,
        job: JobOptions | Mapping[str, object] | None = None,
        remote: RemoteOptions | None = None,
        progress: Callable[[BootProgress], None] | None = None,
    ) -> Workspace:
        """Start ranks on this machine or on hosts, and wait for them.

        Parameters
        ----------
        n : int, optional
            Number of ranks (4); with hosts, ranks per host (slots in the hostfile, else 1).
        hosts : str or iterable of str, optional
            Hosts of the ranks: ``"a,b,user@c:2222"``; a number is the port of ssh.
        hostfile : str, path or Hostfile, optional
            The hosts from a file: MLX's, Open MPI's or MPICH's.
        name : str, optional
            Name of the workspace; by default made from the id of this process.
        linger : float
            Seconds that ranks outlive a process that is killed, or a Jupyter kernel that is
            restarted; `attach` finds them meanwhile. A normal end of the process ends the ranks at
            once, and so does an orderly shutdown of a kernel.
        heartbeat_timeout : float
            Seconds after which a frozen rank is named and the other ranks are released.
        silence : float, optional
            Another name of ``heartbeat_timeout``.
        transport : {"any", "tcp"}, optional
            ``"tcp"``: ranks of one machine do not share memory. By default the variable
            PHALANX_TRANSPORT, else ``"any"``.
        detach : bool
            The ranks also outlive, by ``linger``, a normal end of this process, and of a kernel
            that attaches to them.
        auto_restart : bool
            Replace a rank at once when it dies, as `restart` does. A rank that dies five times
            within five minutes stays dead until `restart` is called.
        grace : float
            Seconds that ranks have to end (``finally``, ``atexit``) at a stop or a forced restart
            before they are killed.
        python : str, optional
            The interpreter on the hosts; by default the path of this interpreter. A host with
            another version of phalanx is refused. Another version of numpy, torch, mlx or Python is
            named in a logged warning.
        cwd : str or path, optional
            Working folder of the ranks; by default this folder, or the home folder on a host that
            lacks this folder.
        env : mapping, or iterable of str, optional
            Variables for the ranks; ``"KEY"`` without a value copies the value set here.
        ssh_args : iterable of str, optional
            Arguments for ssh.
        interface : str, optional
            Name of the network interface that the ranks use.
        launcher : str, optional
            How hosts are reached (`hosts.LAUNCHERS`). Without ``hosts``: the hosts of the current
            job.
        boot_timeout : float, optional
            Seconds after which a host that is not up has failed (30; in a queue 600).
        connections_per_ip : int, optional
            Number of connections between two hosts over each of their addresses (1). If a hostfile
            has several ``ips`` for a host, all of them are always used at the same time.
        job : JobOptions or mapping, optional
            Request to Slurm: ``{"nodes": 2, "queue": "short"}`` submits a job.
        remote : RemoteOptions, optional
            All remote options in one object, if ``hosts`` is a finished plan.
        progress : callable, optional
            Called in this thread for each host that starts, is up, is slow or has failed.

        Returns
        -------
        Workspace
            Ready for cells; every rank has ``rank size world px np``.

        Raises
        ------
        ValueError
            An option is out of range, or the hostfile is invalid; the text says what is expected.
        DistributedError
            The ranks did not start; the text says why.

        Examples
        --------
        >>> with Workspace.start(n=2) as ws:  # doctest: +SKIP
        ...     ws.run("px.all_sum(rank)")
        """
        at = planned(hosts, remote) or resolve_placement(
            n, hosts=hosts, hostfile=hostfile, python=python, cwd=cwd, env=env, ssh_args=ssh_args,
            interface=interface, launcher=launcher, boot_timeout=boot_timeout, job=job,
            connections_per_ip=connections_per_ip,
        )  # fmt: skip
        options = checked_options(
            at.ranks,
            name,
            linger,
            heartbeat_timeout if silence is None else silence,
            transport,
            auto_restart=auto_restart,
            is_detached=detach,
            hosts=at.hosts,
            remote=at.remote,
            grace_s=grace,
        )
        with starting():
            self = cls(launch_root(options), is_kept=detach)
        self.threads_note = at.say_threads()
        more_s = options.remote.timeout_s if options.hosts else 0.0
        try:
            self._life.boot(is_new=True, more_s=more_s, progress=progress)
        except BaseException:
            self.stop()
            raise
        return self

    @classmethod
    def attach(cls, name: str | None = None, *, take: bool = False) -> Workspace:
        """Attach to running ranks that another process has left.

        Parameters
        ----------
        name : str, optional
            Name of the workspace; may be omitted if only one workspace is free.
        take : bool
            Take the workspace from a process that uses it; that process is notified.

        Returns
        -------
        Workspace
            The ranks have kept all their variables. `join` shows missed output and follows a
            running cell. The orderly shutdown of a Jupyter kernel ends the ranks, as if they were
            started there. Any other process detaches from the ranks at its end.

        Raises
        ------
        DistributedError
            There is no such workspace, or it cannot be attached to; the text says why.
        ValueError
            ``name`` is not a valid name.
        """
        if name is not None:
            checked_text("name", name)
        self = cls(attach_root(name, is_taking=take), is_kept=True)
        try:
            self._life.boot(is_new=False)
        except BaseException:
            self.detach()
            raise
        return self

    @staticmethod
    def list() -> tuple[WorkspaceInfo, ...]:
        """Return this user's workspaces on this machine, by name."""
        return list_workspaces()

    def join(self, *, view: View | None = None) -> builtins.list[RankResult]:
        """Show missed output and follow the running cell, after `attach`.

        Parameters
        ----------
        view : View, optional
            Shows output and prompts; by default made by `make_view`.

        Returns
        -------
        list of RankResult
            As from `run`, if a cell was running; else empty.

        Raises
        ------
        CellError, RankFailure, KeyboardInterrupt
            As in `run`.
        """
        shown = view or self.make_view()
        return self._life.up().join(shown)

    # -- cells --------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        ranks: Ranks | None = None,
        timeout: float | None = None,
        view: View | None = None,
        max_lines: int = MAX_LINES,
        every_start: bool = False,
        values: bool = True,
    ) -> builtins.list[RankResult]:
        """Run code on all ranks, or some, and wait for it.

        Parameters
        ----------
        code : str
            A cell as IPython takes it: magics, ``await`` and all.
        ranks : int, slice or iterable of int, optional
            Ranks to run on, as ``0``, ``[0, 2]`` or ``slice(None, None, 2)``; by default all live
            ranks.
        timeout : float, optional
            Seconds after which the ranks are stopped.
        view : View, optional
            Shows output and prompts; by default made by `make_view`.
        max_lines : int, optional
            Number of lines to show; `output` has all lines.
        every_start : bool, optional
            Keep the cell: a replaced rank runs it again, alone, before any other cell.
        values : bool, optional
            Whether to return the values of the last expression, and not only their texts.

        Returns
        -------
        list of RankResult
            By rank. ``value`` is the text of the last expression, or None; ``object`` is a copy of
            its value. If the value cannot be sent or loaded, or is larger than 16 MiB, ``object``
            is a `DistributedError` that says so; `pull` fetches large values. ``text`` is what the
            rank printed, the last MiB of it.

        Raises
        ------
        CellError
            The code failed on a rank; holds every rank's error. If all errors have the same type,
            built in or phalanx's, the exception is of that type as well (``except ValueError``
            catches it). Errors of ranks that were only released from an operation do not count. It
            is a plain `CellError` if the types differ, for a class of your own, for a `RankFailure`
            that the code raised or got, and for the code's own `KeyboardInterrupt` or `SystemExit`.
        RankFailure
            A rank died while the code ran.
        KeyboardInterrupt
            Ctrl-C was pressed; raised after the ranks stopped.
        TimeoutError
            ``timeout`` was over; raised after the ranks stopped.
        ValueError
            ``ranks`` names a rank that does not exist, or the code has half a character (a
            surrogate).

        Notes
        -----
        A stop, and the end of ``timeout``, stop all ranks before the same operation. Each rank goes
        on until its next operation, and begins that operation only if another rank has begun it.
        Ranks that reach no operation within 0.5 s are stopped where they are, and a line says where
        each rank was. Ranks that read a line, and ranks that have called no operation in this cell,
        stop at once. A second stop stops all ranks at once. Over MPI all ranks stop at once.

        Each rank with a value costs one more message, about a millisecond.

        Examples
        --------
        >>> [result.object for result in ws.run("px.all_sum(rank)")]  # doctest: +SKIP
        [1, 1]
        """
        checked_text("the code of a cell", code)
        chosen = chosen_ranks(ranks, self.size)
        if timeout is not None:
            checked_seconds("timeout", timeout)
        max_lines = checked_whole("max_lines", max_lines, 1)
        return self._life.up().run(
            code,
            chosen,
            view or self.make_view(),
            timeout=timeout,
            max_lines=max_lines,
            every_start=every_start,
            has_values=values,
        )

    def last_errors(self, ranks: Ranks | None = None) -> builtins.list[RankError]:
        """Return the ranks' last errors, as a debugger would find them.

        Parameters
        ----------
        ranks : int, slice or iterable of int, optional
            Ranks to ask; by default all live ranks.

        Returns
        -------
        list of RankError
            By rank, without ranks on which no cell has failed yet.

        Raises
        ------
        RankFailure
            A named rank is dead.
        DistributedError
            A cell runs.
        """
        return self._life.up().last_errors(chosen_ranks(ranks, self.size))

    @property
    def help(self) -> Help:
        """Return completion and help for names on the ranks."""
        return self._life.up().help

    @property
    def debuggers(self) -> RankDebuggers:
        """Return the visual debuggers of the ranks."""
        return self._life.up().debuggers

    def interrupt(self) -> tuple[int, ...]:
        """Stop the running cell, from another thread, or a widget's callback.

        Without a cell, the callbacks of widgets that run on ranks are stopped.

        Returns
        -------
        tuple of int
            The ranks that were asked to stop.
        """
        return self._life.up().interrupt()

    def output(self, rank: int) -> str:
        """Return the last MiB of a rank's output as text.

        Parameters
        ----------
        rank : int
            Rank to ask.

        Returns
        -------
        str
            The first line says how many bytes are left out, if any.
        """
        rank = chosen_rank(rank, self.size)
        self._life.check_running()
        piece = self._root.output(rank)
        text = piece.text.decode(errors="replace")
        if not piece.left_out_nbytes:
            return text
        return f"… {piece.left_out_nbytes:,} bytes before this are left out\n{text}"

    def stacks(self, ranks: Ranks | None = None) -> dict[int, str]:
        """Return the ranks' stacks, read from outside while they run.

        Parameters
        ----------
        ranks : int, slice or iterable of int, optional
            Ranks to look at; by default all.

        Returns
        -------
        dict of int to str
            By rank: the current operation, if any, then the Python stack, innermost line first.
        """
        chosen = chosen_ranks(ranks, self.size)
        self._life.check_running()
        seen = self._root.stacks(tuple(range(self.size)) if chosen is None else chosen)
        return {rank: stack.text for rank, stack in seen.items()}

    def trace(self, path: str | PathLike[str] | None = None) -> Trace:
        """Return the last operations of all ranks, on one clock.

        The flight recorders are always on. The ranks need not respond: they may run a cell, be
        frozen, or be dead (until replaced).

        Parameters
        ----------
        path : str or path, optional
            File to write as JSON for https://ui.perfetto.dev or chrome://tracing.

        Returns
        -------
        Trace
            ``records`` as from `px.trace`, with the rank; ``hosts`` has the error of each clock.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        if path is not None:
            path = checked_path("path", path)
        self._life.check_running()
        trace = merged(self._root.ask(GetTrace(), TraceIs))
        if path is not None:
            trace.save(path)
        return trace

    def push(self, values: Mapping[str, Any], *, ranks: Ranks | None = None) -> None:
        """Bind names on the ranks to copies of values from here.

        Parameters
        ----------
        values : mapping of str to object
            Values by name: anything that pickles. Instances, classes and functions made by cells
            work too; on a rank they use that rank's names. Arrays are sent without a copy in
            memory.
        ranks : int, slice or iterable of int, optional
            Ranks to bind on; by default all live ranks.

        Raises
        ------
        TypeError
            A value cannot be sent; the text names it and its type. Nothing is bound.
        CellError
            Also a `TypeError`: a rank cannot load a value, as a module is missing there.
        ValueError
            A key is not a variable name, or there is no such rank.
        RankFailure
            A named rank is dead.

        Examples
        --------
        >>> ws.push({"factor": 10, "lr": 1e-3})  # doctest: +SKIP
        """
        chosen = chosen_ranks(ranks, self.size)
        try:
            task = plan_push(values)
        except BaseException as error:
            forget_values(error)
            raise
        finally:
            del values  # see `forget_values`
        self._life.up().perform(task, self.make_view(), ranks=chosen, is_announced=False)

    def pull(self, names: str | Iterable[str], *, ranks: Ranks | None = None) -> Any:
        """Return copies of the ranks' variables or values of expressions.

        An expression is evaluated like a cell: it can be stopped, and may call collectives.

        Parameters
        ----------
        names : str or iterable of str
            Name of a variable, or an expression; or several of them.
        ranks : int, slice or iterable of int, optional
            Ranks to ask; by default all live ranks.

        Returns
        -------
        list of object, or object
            One item per rank; the item itself if ``ranks`` is one number. The item is the value if
            ``names`` is one str, else a dict of the values by name. Arrays are writable.

        Raises
        ------
        CellError
            Also of the error's own type: a `NameError` if a rank has no such variable, a
            `TypeError` if a value cannot be sent or loaded; the text has its name and type.
        ValueError
            A name is neither a variable name nor an expression, or there is no such rank.
        RankFailure
            A named rank is dead.

        Notes
        -----
        The class of a value is copied too if a cell made the class. If a class with the same name
        and the same code exists here, that class is used. Copies from several ranks share one
        class.

        Examples
        --------
        >>> ws.pull("rank")  # doctest: +SKIP
        [0, 1]
        >>> ws.pull(["rank", "x.sum()"], ranks=1)  # doctest: +SKIP
        {'rank': 1, 'x.sum()': 10.0}
        """
        chosen, expressions = chosen_ranks(ranks, self.size), checked_expressions(names)
        found = self._life.up().perform(
            make_task(evaluate, expressions),
            self.make_view(),
            ranks=chosen,
            is_announced=not all(expression.isidentifier() for expression in expressions),
        )
        values: list[Any] = [named for _, named in sorted(found.items())]
        if isinstance(names, str):
            values = [named[names] for named in values]
        return values[0] if is_one_rank(ranks) else values

    def restart(
        self,
        ranks: Ranks | None = None,
        *,
        all: bool = False,
        force: bool = False,
        copy_from: int | None = None,
        init: bool = True,
    ) -> tuple[int, ...]:
        """Replace ranks with new processes; the other ranks keep their state.

        A new rank has the number, host and memory slot of the rank before, but no variables of that
        rank. When all ranks are alive again, the group is formed anew before the next cell. Another
        thread may call this while a cell runs: the new ranks take part in the next cell.

        Parameters
        ----------
        ranks : int, slice or iterable of int, optional
            Ranks to replace; by default the dead ranks.
        all : bool
            Replace all ranks.
        force : bool
            Also replace live ranks. Their cell is interrupted, and they have the grace time to end
            before they are killed. All processes they have started are killed.
        copy_from : int, optional
            Rank to copy variables from: values that pickle, and functions and classes made by
            cells. Variables that cannot be copied are named.
        init : bool
            Run again the cells that were run with ``every_start``.

        Returns
        -------
        tuple of int
            The ranks that were replaced.

        Raises
        ------
        ValueError
            There is no such rank, or ``copy_from`` is one of the ranks to replace.
        CellError
            A cell of ``every_start`` failed on a new rank; the rank is kept.
        DistributedError
            A rank is alive and ``force`` was not given, no rank is dead, or a new rank did not
            start; the text says which.
        """
        chosen = chosen_ranks(range(self.size) if all else ranks, self.size)
        if copy_from is not None:
            copy_from = chosen_rank(copy_from, self.size)
            if chosen is not None and copy_from in chosen:
                msg = f"rank {copy_from} is to be replaced itself: nothing can be copied from it"
                raise ValueError(msg)
        return self._life.up().restart(
            chosen,
            force=force,
            copy_from=copy_from,
            init=init,
            make_view=self.make_view,
            tell=self.make_view().notice,
        )

    # -- calls --------------------------------------------------------------------------------

    def client(self) -> ipyparallel.Client:
        """Return ipyparallel's own client of the ranks.

        Engine numbers are rank numbers. ``ws.client()[0]`` is a view of rank 0, ``ws.client()[:]``
        of all ranks, and ``ws.client().load_balanced_view()`` gives each task to the next free
        rank. ipyparallel's ``%px`` magics work too. Each workspace has one client, which is closed
        with the workspace. A dead rank is removed from the client, and its replacement is added.

        Calls through this client have the limits of ipyparallel. They wait until the ranks' current
        cell ends. A stop does not stop their functions. An operation that not all ranks call waits
        until the ranks are restarted. `apply`, `map`, `scatter` and `gather` have none of these
        limits.

        Returns
        -------
        ipyparallel.Client
            Connected, with an engine for each live rank.

        Raises
        ------
        DistributedError
            The workspace was stopped.

        Notes
        -----
        The first call loads ipyparallel's client, which takes about a third of a second.

        Examples
        --------
        >>> ws.client()[:].apply_sync(lambda: rank)  # doctest: +SKIP
        [0, 1, 2, 3]
        """
        return self._life.up().client()

    @overload
    def apply(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        ranks: Ranks | None = None,
        block: Literal[True] = True,
        **named: Any,
    ) -> Any: ...

    @overload
    def apply(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        ranks: Ranks | None = None,
        block: Literal[False],
        **named: Any,
    ) -> PendingCall[Any]: ...

    def apply(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        ranks: Ranks | None = None,
        block: bool = True,
        **named: Any,
    ) -> Any:
        """Call a function on ranks with the same arguments; return the values.

        The function runs on the ranks like a cell. It may use ``rank``, ``px`` and all names there,
        call operations, print, and read input. A name missing on the rank is taken from the
        notebook. If another cell or call runs, this call waits for its end and says so.

        Parameters
        ----------
        function : callable
            The function; it may be defined in the notebook, as it is sent with cloudpickle.
        *args : object
            Arguments of the function. Arrays are sent without a copy in memory and are writable.
        ranks : int, slice or iterable of int, optional
            Ranks to use; by default all live ranks.
        block : bool
            Wait for the call. Otherwise the call runs in the background, and only `output` shows
            the text that the function prints.
        **named : object
            Keyword arguments of the function, except ``ranks`` and ``block``.

        Returns
        -------
        list of object, object or PendingCall
            The values by rank; the value itself if ``ranks`` is one number. With ``block=False`` a
            handle: ``result()`` returns the same.

        Raises
        ------
        CellError
            The function failed on a rank; as in `run`.
        RankFailure
            A rank died during the call, or ``ranks`` names a dead rank.
        KeyboardInterrupt
            Ctrl-C was pressed; raised after the ranks stopped.
        TypeError
            The function, an argument or a value cannot be sent; the text says why.
        ValueError
            ``ranks`` names a rank that does not exist.

        Examples
        --------
        >>> ws.apply(lambda x: x + rank, 10)  # doctest: +SKIP
        [10, 11, 12, 13]
        >>> handle = ws.apply(px.all_sum, 1, block=False)  # doctest: +SKIP
        >>> handle.result()  # doctest: +SKIP
        [4, 4, 4, 4]
        """
        plan = plan_apply(function, args, named, is_one=is_one_rank(ranks))
        return self._call(plan, ranks, block=block)

    @overload
    def map(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Iterable[Any],
        ranks: Ranks | None = None,
        block: Literal[True] = True,
    ) -> builtins.list[Any]: ...

    @overload
    def map(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Iterable[Any],
        ranks: Ranks | None = None,
        block: Literal[False],
    ) -> PendingCall[builtins.list[Any]]: ...

    def map(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Iterable[Any],
        ranks: Ranks | None = None,
        block: bool = True,
    ) -> builtins.list[Any] | PendingCall[builtins.list[Any]]:
        """Call a function on each item of a sequence, spread over ranks.

        Each rank gets one block of consecutive items; otherwise as `apply`. If the items take very
        different times, ``ws.client().load_balanced_view().map_sync(function, items)`` is faster.

        Parameters
        ----------
        function : callable
            Takes one item of each sequence.
        *sequences : iterable
            The items; all sequences must have the same length.
        ranks : int, slice or iterable of int, optional
            Ranks to use; by default all live ranks.
        block : bool
            Wait for the call.

        Returns
        -------
        list or PendingCall
            The values in the order of the items. With ``block=False`` a handle: ``result()``
            returns the same.

        Raises
        ------
        CellError, RankFailure, KeyboardInterrupt
            As in `apply`.
        TypeError
            No sequence is given, or something cannot be sent.
        ValueError
            The sequences differ in length, or ``ranks`` names a rank that does not exist.

        Examples
        --------
        >>> ws.map(lambda x: (x * x, rank), range(5))  # doctest: +SKIP
        [(0, 0), (1, 0), (4, 1), (9, 2), (16, 3)]
        """
        made: builtins.list[Any] | PendingCall[builtins.list[Any]]
        made = self._call(plan_map(function, sequences), ranks, block=block)
        return made

    @overload
    def scatter(
        self,
        name: str,
        values: Iterable[Any],
        *,
        ranks: Ranks | None = None,
        block: Literal[True] = True,
    ) -> None: ...

    @overload
    def scatter(
        self,
        name: str,
        values: Iterable[Any],
        *,
        ranks: Ranks | None = None,
        block: Literal[False],
    ) -> PendingCall[None]: ...

    def scatter(
        self,
        name: str,
        values: Iterable[Any],
        *,
        ranks: Ranks | None = None,
        block: bool = True,
    ) -> PendingCall[None] | None:
        """Bind a name on each rank to its block of a sequence.

        Parameters
        ----------
        name : str
            Name of the variable.
        values : iterable
            The sequence; an array is split along its first axis. The sizes of the blocks differ by
            at most one item. The blocks are in the order of the ranks.
        ranks : int, slice or iterable of int, optional
            Ranks to use; by default all live ranks.
        block : bool
            Wait for the call.

        Returns
        -------
        None or PendingCall
            With ``block=False`` a handle: ``result()`` waits for the end.

        Raises
        ------
        RankFailure, KeyboardInterrupt
            As in `apply`.
        TypeError
            The values cannot be sent.
        ValueError
            ``name`` is not a variable name, or ``ranks`` names a rank that does not exist.

        Examples
        --------
        >>> ws.scatter("x", np.arange(5))  # doctest: +SKIP
        >>> ws.pull("x")  # doctest: +SKIP
        [array([0, 1]), array([2]), array([3]), array([4])]
        """
        made: PendingCall[None] | None
        made = self._call(plan_scatter(name, values), ranks, block=block)
        return made

    @overload
    def gather(
        self, name: str, *, ranks: Ranks | None = None, block: Literal[True] = True
    ) -> Any: ...

    @overload
    def gather(
        self, name: str, *, ranks: Ranks | None = None, block: Literal[False]
    ) -> PendingCall[Any]: ...

    def gather(self, name: str, *, ranks: Ranks | None = None, block: bool = True) -> Any:
        """Return the ranks' values of a name, joined in rank order.

        Parameters
        ----------
        name : str
            Name of the variable.
        ranks : int, slice or iterable of int, optional
            Ranks to ask; by default all live ranks.
        block : bool
            Wait for the call.

        Returns
        -------
        array, list or PendingCall
            Arrays are joined along their first axis, lists and tuples to one list. Other values are
            listed by rank. With ``block=False`` a handle: ``result()`` returns the same.

        Raises
        ------
        CellError
            Also a `NameError`: a rank has no such variable.
        RankFailure, KeyboardInterrupt
            As in `apply`.
        TypeError
            A value cannot be sent.
        ValueError
            ``name`` is not a variable name, ``ranks`` names a rank that does not exist, or arrays
            have shapes that cannot be joined.

        Examples
        --------
        >>> ws.scatter("x", np.arange(5))  # doctest: +SKIP
        >>> ws.gather("x")  # doctest: +SKIP
        array([0, 1, 2, 3, 4])
        """
        return self._call(plan_gather(name), ranks, block=block)

    def _call(self, plan: CallPlan, ranks: Ranks | None, *, block: bool) -> Any:
        view = self.make_view() if block else View()
        return make_call(plan, self._life, chosen_ranks(ranks, self.size), view, block=block)

    # -- measurements -------------------------------------------------------------------------

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
        """Measure an operation over a range of sizes.

        Parameters
        ----------
        op : str
            Name of a collective, ``"sendrecv"`` (each rank to the next) or ``"barrier"``.
        begin, end : int
            First and last size in bytes.
        factor : int
            Ratio of each size to the size before.
        dtype : str
            Type of the elements.
        iterations : int
            Timed calls per size.
        wait : bool
            If the ranks run a cell, wait for its end; by default that is an error.

        Returns
        -------
        Sweep
            An iterable that yields one verified Measurement per size, as soon as the size was
            measured. Times are those of the slowest rank. Another thread can read the progress and
            stop the sweep.

        Raises
        ------
        ValueError
            The operation or dtype is unknown, the range is empty, or the ranks of this machine have
            too little free memory. Ranks of other hosts check their memory when the iteration
            starts.
        DistributedError
            (raised by the iteration) The ranks run a cell; the text names the cell.
        """
        return self._bench.sweep(
            op,
            begin=begin,
            end=end,
            factor=factor,
            dtype=dtype,
            iterations=iterations,
            wait=wait,
        )

    @property
    def sweeps(self) -> tuple[SweepRun, ...]:
        """Return the last 16 sweeps with a measurement, oldest first."""
        return self._bench.sweeps

    def measure_links(self) -> tuple[LinkMeasurement, ...]:
        """Measure latency and bandwidth of every pair of ranks in turn.

        Ctrl-C, or `interrupt` from another thread, stops the measurement like a cell.

        Returns
        -------
        tuple of LinkMeasurement
            One for each pair of ranks.

        Raises
        ------
        DistributedError
            The ranks run a cell; the text names the cell.
        RankFailure
            A rank is dead, or died during the measurement.
        KeyboardInterrupt
            The measurement was stopped; its results are dropped.
        """
        return self._links.measure()

    @property
    def measured_links(self) -> tuple[LinkMeasurement, ...]:
        """Return the last result of `measure_links`; empty before the first.

        Links of ranks that were replaced since are left out.
        """
        return self._links.measured

    @property
    def links_progress(self) -> LinksProgress | None:
        """Return the progress of `measure_links`, for any thread; else None."""
        return self._links.progress

    # -- the state of the ranks ---------------------------------------------------------------

    def topology(self) -> WorldTopology:
        """Return the current hosts, ranks, their states and links."""
        self._life.check_running()
        topology = self._root.topology()
        waiting = self._waiting()
        if not waiting:
            return topology
        ranks = tuple(
            msgspec.structs.replace(its, state="input", detail="waits for input")
            if its.rank in waiting and its.state == "busy"
            else its
            for its in topology.ranks
        )
        return msgspec.structs.replace(topology, ranks=ranks)

    def follow(self, take: Callable[[WorldTopology | None], None]) -> None:
        """Call a function with the topology, now and after each change.

        Parameters
        ----------
        take : callable
            Gets the topology; None once the supervisor has died. It is called at most five times a
            second, on another thread, and replaces the function of an earlier call.

        Raises
        ------
        DistributedError
            The workspace has ended; the text says why.

        Notes
        -----
        Nothing is sent while nothing changes. A change is a cell that begins or ends on a rank, a
        rank that dies, and a rank that is replaced.

        Examples
        --------
        >>> ws.follow(lambda t: print(t and [rank.state for rank in t.ranks]))  # doctest: +SKIP
        """
        self._life.check_running()
        self._root.follow(take)

    def _waiting(self) -> Collection[int]:
        """Return the ranks that wait for a typed line.

        Only the client that runs the cell knows them.
        """
        runner = self._life.runner
        return runner.waiting() if runner is not None else ()

    def samples(self, after: int = 0) -> SampleView:
        """Return recent samples of the ranks, and sample for 10 s more.

        Sampling runs at three samples per second, only while this method is called at least every
        10 s. The supervisors sample from outside, so the ranks need not respond. The first call
        starts the sampling and returns no sample.

        Parameters
        ----------
        after : int, optional
            Number of the last sample already seen; only newer samples are returned.

        Returns
        -------
        SampleView
            ``samples``, oldest first. ``dropped`` counts the samples after ``after`` that are no
            longer kept. ``waiting`` has the ranks that wait for a typed line now.
        """
        after = checked_whole("after", after, 0)
        self._life.check_running()
        view = self._root.samples(after)
        waiting = self._waiting()
        return replace(view, waiting=frozenset(waiting)) if waiting else view

    @property
    def n_ended(self) -> int:
        """Return a counter that grows when a task of this process ends.

        Tasks are cells, calls and everything else that this process runs on the ranks.
        """
        runner = self._life.runner
        return runner.slot.n_ended if runner is not None else 0

    @property
    def is_running(self) -> bool:
        """Whether this process uses a workspace with a live supervisor."""
        return self._life.is_running

    @property
    def was_left(self) -> bool:
        """Whether this process stopped or detached the workspace itself.

        False if another process took the workspace over, or the supervisor had died before.
        """
        return self._life.was_left

    @property
    def why_lost(self) -> str:
        """Say who took the workspace over, in one line; else ""."""
        return self._life.why_lost

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the ranks and all processes started for them; idempotent.

        A running cell is interrupted, so that its ``finally`` blocks run, and then what the ranks
        have registered with `atexit`. Ranks that have not ended after the grace time (``grace`` of
        `start`) are killed, and a line names them. A Ctrl-C meanwhile, or a call from another
        thread, kills the ranks at once.
        """
        self._life.stop()

    def detach(self) -> None:
        """Leave the ranks running for a later `attach`; idempotent.

        The ranks stay for their linger time. A running cell goes on. This object cannot be used any
        more.
        """
        self._life.detach()

    def __enter__(self) -> Self:
        """Return this workspace."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the ranks, or detach from ranks that are kept."""
        if self._life.is_kept:
            self.detach()
        else:
            self.stop()

    def __repr__(self) -> str:
        """Show name, size, and "running" or how the workspace ended."""
        return f"{type(self).__name__}({self.name!r}, size={self.size}, {self._life.state})"
