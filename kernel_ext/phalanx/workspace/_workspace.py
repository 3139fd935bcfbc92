"""A workspace: the ranks of one notebook, started or found, used and stopped from here.

The client's side only: life and death are the supervisor's, what a cell looks like is a view's.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING

from phalanx.protocol import BootProgress, HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor import find_record

from ._bench import CanBench
from ._checks import checked_seconds, checked_text, checked_whole
from ._connect import Mode, choose_record, connect_to, start_root
from ._exchange import CanExchange
from ._help import Help
from ._life import WorkspaceLife
from ._listing import WorkspaceInfo, list_workspaces
from ._look import CanLook
from ._measured_links import CanMeasureLinks
from ._outcome import RankResult
from ._output import MAX_LINES
from ._ranks import chosen_ranks
from ._restart import CanRestart
from ._start import LINGER_S, SILENCE_S, checked_options, starting
from ._view import View
from ._where import planned, where

if TYPE_CHECKING:
    from phalanx.hosts import Hostfile

__all__ = ["Workspace"]


class Workspace(WorkspaceLife, CanLook, CanExchange, CanRestart, CanBench, CanMeasureLinks):
    """Ranks that run cells together; made with `start`, or `attach`.

    A context manager: leaving it stops the ranks; those that were attached to, or started with
    ``detach``, are let go of. One cell runs at a time. `make_view` makes the view of a cell that
    is run without one: nobody sees it, unless a notebook sets its own.
    """

    @classmethod
    def start(
        cls,
        n: int | None = None,
        *,
        hosts: str | Iterable[str | HostPlan] | None = None,
        hostfile: str | PathLike[str] | Hostfile | None = None,
        name: str | None = None,
        linger: float = LINGER_S,
        silence: float = SILENCE_S,
        transport: str = "any",
        detach: bool = False,
        auto_restart: bool = False,
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
        """Start ranks, on this machine or on several hosts, and wait until they have met.

        Parameters
        ----------
        n : int, optional
            Number of ranks (4); with hosts, of each of them (its slots in the hostfile, else 1).
        hosts : str or iterable of str, optional
            Where the ranks run: ``"a,b,user@c:2222"``, with the port of ssh.
        hostfile : str, path or Hostfile, optional
            The same from a file: MLX's, Open MPI's or MPICH's.
        name : str, optional
            What to call the workspace; by default made from this process's id.
        linger : float
            Seconds that ranks outlive a killed process, or a Jupyter kernel: so long `attach` finds
            them. A normal end of any other process ends them.
        silence : float
            Seconds after which a rank that is frozen is named and the others are freed.
        transport : {"any", "tcp"}
            ``"tcp"`` keeps the ranks of one machine from sharing memory.
        detach : bool
            The ranks outlive a normal end of this process as well, by ``linger``.
        auto_restart : bool
            Replace a rank that dies at once, as `restart` does.
        python : str, optional
            The interpreter on the hosts; by default the path of this one.
        cwd : str or path, optional
            Where the ranks begin; by default here, or in a host's home folder if it lacks that.
        env : mapping, or iterable of str, optional
            Variables for the ranks; ``"KEY"`` alone: as it is set here.
        ssh_args : iterable of str, optional
            Words for ssh.
        interface : str, optional
            The network interface that the ranks use, by its name.
        launcher : str, optional
            How a host is reached (`hosts.LAUNCHERS`); without ``hosts``, those of the job we are in.
        boot_timeout : float, optional
            Seconds after which a host that is not up has failed (30; in a queue 600).
        connections_per_ip : int, optional
            How many connections two hosts have over each of their addresses (1). Where a hostfile
            has several ``ips`` for a host, all of these are used at once in any case.
        job : JobOptions or mapping, optional
            What a scheduler is asked for: ``{"nodes": 2, "queue": "short"}`` submits a job.
        remote : RemoteOptions, optional
            All of these in one, where ``hosts`` are a plan that is made already.
        progress : callable, optional
            Told, in this thread, of each host that starts, is up, is slow or has failed.

        Returns
        -------
        Workspace
            Ready for cells; every rank has ``rank size world px np``.

        Raises
        ------
        ValueError
            An option is out of range, or the hostfile is none; says what is expected.
        DistributedError
            The ranks did not come up; says why.

        Examples
        --------
        >>> with Workspace.start(n=2) as ws:  # doctest: +SKIP
        ...     ws.run("px.all_sum(rank)")
        """
        at = planned(hosts, remote) or where(
            n, hosts=hosts, hostfile=hostfile, python=python, cwd=cwd, env=env, ssh_args=ssh_args,
            interface=interface, launcher=launcher, boot_timeout=boot_timeout, job=job,
            connections_per_ip=connections_per_ip,
        )  # fmt: skip
        options = checked_options(
            at.ranks,
            name,
            linger,
            silence,
            transport,
            auto_restart=auto_restart,
            hosts=at.hosts,
            remote=at.remote,
        )
        with starting():
            self = cls(start_root(options), is_kept=detach)
        more_s = options.remote.timeout_s if options.hosts else 0.0
        try:
            self._boot(is_new=True, more_s=more_s, progress=progress)
        except BaseException:
            self.stop()
            find_record(self.name)  # looks, and so removes what a root killed this early has left
            raise
        return self

    @classmethod
    def attach(
        cls, name: str | None = None, *, take: bool = False, watch: bool = False
    ) -> Workspace:
        """Come (back) to ranks that run: of a process that is gone, or that lets them go.

        Parameters
        ----------
        name : str, optional
            The workspace's; it may be left out where only one is free.
        take : bool
            Take it from a process that uses it, which is told.
        watch : bool
            Only look, beside the process that uses it: `topology`, `output`, `stacks`, and `join`,
            which follows the cell that runs.

        Returns
        -------
        Workspace
            Its ranks have all their variables; `join` shows what was missed, and follows a cell
            that runs.

        Raises
        ------
        DistributedError
            There is no such workspace, or it cannot be attached to; says why.
        ValueError
            ``name`` is none that a workspace can have, or both ``take`` and ``watch`` are asked.
        """
        if take and watch:
            msg = "a workspace is taken or watched, not both"
            raise ValueError(msg)
        if name is not None:
            checked_text("name", name)
        mode: Mode = "take" if take else "watch" if watch else "own"
        self = cls(connect_to(choose_record(name), mode), is_kept=True)
        try:
            self._boot(is_new=False)
        except BaseException:
            self.detach()
            raise
        return self

    @staticmethod
    def list() -> tuple[WorkspaceInfo, ...]:
        """Return this user's workspaces on this machine, by name."""
        return list_workspaces()

    def join(self, *, view: View | None = None) -> builtins.list[RankResult]:
        """After `attach`: show what ranks printed meanwhile, and follow the cell that runs.

        Who only watches is shown that cell from its beginning; Ctrl-C ends the watching, and not
        the cell.

        Parameters
        ----------
        view : View, optional
            Where output goes and who is asked; by default `make_view`'s.

        Returns
        -------
        list of RankResult
            As of `run`, for a cell that ran; else nothing.

        Raises
        ------
        CellError, RankFailure, KeyboardInterrupt
            As of `run`.
        """
        shown = view or self.make_view()
        self._check_running()
        if self._bystander is not None:
            return self._bystander.follow(shown)
        return self._up().join(shown)

    # -- cells --------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        view: View | None = None,
        max_lines: int = MAX_LINES,
        every_start: bool = False,
    ) -> builtins.list[RankResult]:
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
        every_start : bool, optional
            Keep the cell: a rank that is replaced runs it again, alone, before any other.

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
        checked_text("the code of a cell", code)
        chosen = chosen_ranks(ranks, self.size)
        if timeout is not None:
            checked_seconds("timeout", timeout)
        max_lines = checked_whole("max_lines", max_lines, 1)
        return self._up().run(
            code,
            chosen,
            view or self.make_view(),
            timeout=timeout,
            max_lines=max_lines,
            every_start=every_start,
        )

    @property
    def help(self) -> Help:
        """Names and descriptions of what lives on the ranks, for a person who types."""
        return self._up().help

    def interrupt(self) -> None:
        """Stop the cell that runs, from another thread; without one, do nothing."""
        self._up().interrupt()
