"""The life of a workspace on the client's side: reached, used, left to others, or stopped.

It knows the root client and the runner; what a user does with ranks is `Workspace`'s.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import BootProgress, FromRoot, Taken, Topology

from ._bystander import Bystander
from ._checks import checked_whole
from ._connect import Connection
from ._io import SocketThread
from ._root_client import RootClient
from ._runner import CellRunner
from ._samples import SampleView
from ._view import QuietView, View

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WorkspaceLife", "lives_in_kernel"]

BOOT_S = 60.0


def lives_in_kernel() -> bool:
    """Whether this process is a Jupyter kernel, which may be restarted at any time.

    Its end is no end of the work: not even a shutdown, which also comes when the server ends.
    """
    application = sys.modules.get("ipykernel.kernelapp")
    return application is not None and bool(application.IPKernelApp.initialized())


class WorkspaceLife:
    """A workspace's connection to its root, from its beginning to its end.

    ``is_kept``: the ranks outlive this process's normal end, and a ``with`` statement.
    """

    def __init__(self, connection: Connection, *, is_kept: bool) -> None:
        self.name = connection.name
        self.size = connection.size
        self.make_view: Callable[[], View] = QuietView
        self._mode = connection.mode
        self._is_kept = is_kept
        self._is_closed = False
        self._why_lost = ""
        self._was_alive = True  # when it was closed
        self._why_closed = "this workspace was stopped; start another with %distributed start -n 4"
        self._runner: CellRunner | None = None
        self._bystander: Bystander | None = None
        self._news_lock = threading.Lock()
        self._early: list[FromRoot] = []  # news that came before the runner was there
        try:
            self._thread = SocketThread(f"phalanx-{self.name}")
        except BaseException:
            connection.abandon()
            raise
        try:
            self._root = RootClient(self._thread, connection, self._on_news)
        except BaseException:
            self._thread.close()
            raise

    def _boot(
        self,
        *,
        is_new: bool,
        more_s: float = 0.0,
        progress: Callable[[BootProgress], None] | None = None,
    ) -> None:
        """Wait for the ranks; ``more_s`` longer where their hosts have to come up before."""
        booted = self._root.wait_booted(BOOT_S + more_s, progress)
        if self.is_watching:
            bystander = Bystander(self.name, self._thread, self._root, booted)
            with self._news_lock:
                self._bystander = bystander
        else:
            runner = CellRunner(self.name, self._thread, self._root, booted)
            with self._news_lock:
                for message in self._early:
                    runner.on_news(message)
                self._early.clear()
                self._runner = runner
            runner.begin(is_new=is_new)
        atexit.register(self._at_exit)

    def topology(self) -> Topology:
        """Return hosts, ranks, their states and the paths between them, as of now."""
        self._check_running()
        topology = self._root.topology()
        # Who asks a person is the business of the client that runs the cell.
        waiting = self._runner.waiting() if self._runner is not None else set()
        if not waiting:
            return topology
        ranks = tuple(
            msgspec.structs.replace(its, state="input", detail="waits for input")
            if its.rank in waiting and its.state == "busy"
            else its
            for its in topology.ranks
        )
        return msgspec.structs.replace(topology, ranks=ranks)

    def samples(self, after: int = 0) -> SampleView:
        """Return what the ranks did lately, three looks a second; and look on for 10 s more.

        Nobody looks before this is called, nor once it is not called again; it needs nothing of the
        ranks. The first call returns no sample: the first one comes a moment later.

        Parameters
        ----------
        after : int, optional
            Number of the last sample that was seen: only newer ones are returned.

        Returns
        -------
        SampleView
            ``samples``, the oldest first; ``dropped`` counts those after ``after`` that are not
            among them any more; ``waiting`` are the ranks that wait for a typed line now.
        """
        after = checked_whole("after", after, 0)
        self._check_running()
        view = self._root.samples(after)
        waiting = self._runner.waiting() if self._runner is not None else set()
        return replace(view, waiting=frozenset(waiting)) if waiting else view

    @property
    def n_ended(self) -> int:
        """A number that grows as anything ends that this process had the ranks for."""
        return self._runner.n_ended if self._runner is not None else 0

    @property
    def is_running(self) -> bool:
        """Whether the workspace is this process's (to use or to watch) and its supervisor lives."""
        return not self._is_closed and self._root.is_alive

    @property
    def is_watching(self) -> bool:
        """Whether the ranks are another process's, and only looked at from here."""
        return self._mode == "watch"

    @property
    def was_left(self) -> bool:
        """Whether this process has stopped the workspace or let it go, and had not lost it before."""
        return self._is_closed and self._was_alive and not self._why_lost

    @property
    def why_lost(self) -> str:
        """Who has taken the workspace over, in one line; empty where nobody has."""
        return self._why_lost

    def stop(self) -> None:
        """End the ranks and everything that was started for them; idempotent.

        Raises
        ------
        DistributedError
            This process only watches them.
        """
        if self._is_closed:
            self._thread.close()  # of a workspace that was taken over it is open yet
            return
        if self.is_watching:
            raise DistributedError(self._only_watches())
        self._close(self._root.stop)

    def detach(self) -> None:
        """Leave the ranks as they are, for `attach` within their linger time; idempotent.

        A cell that runs goes on. This object cannot be used any more.
        """
        if not self._is_closed:
            self._why_closed = (
                f"this workspace was let go; %distributed attach {self.name} takes it up again"
            )
            self._close(self._root.let_go)

    def _close(self, leave: Callable[[], None]) -> None:
        self._was_alive = self._root.is_alive  # before who sees that it is closed asks (`was_left`)
        self._is_closed = True
        atexit.unregister(self._at_exit)
        try:
            leave()
        finally:
            self._thread.close()

    def _at_exit(self) -> None:
        """At a normal end of the process: end what was started here, and leave the rest."""
        if self._is_kept or lives_in_kernel():
            self.detach()
        else:
            self.stop()

    def _check_running(self) -> None:
        if self._is_closed:
            raise DistributedError(self._why_closed)
        if not self._root.is_alive:
            msg = "the supervisor of this workspace is gone, and its ranks with it; start anew"
            raise DistributedError(msg)

    def _up(self) -> CellRunner:
        self._check_running()
        if self.is_watching:
            raise DistributedError(self._only_watches())
        if self._runner is None:
            msg = "the ranks are not up yet"
            raise DistributedError(msg)
        return self._runner

    def _only_watches(self) -> str:
        return (
            f"the workspace {self.name!r} is only watched from here; "
            f"take it over with %distributed attach {self.name} --take"
        )

    def _on_news(self, message: FromRoot) -> None:
        """Take news of the root, on the socket thread."""
        if isinstance(message, Taken):
            self._on_taken(message.pid)
            return
        with self._news_lock:
            listener = self._bystander or self._runner
            if listener is None:
                self._early.append(message)
                return
        listener.on_news(message)

    def _on_taken(self, pid: int) -> None:
        text = (
            f"the workspace {self.name!r} was taken over by process {pid}; "
            f"%distributed attach {self.name} --take takes it back"
        )
        # The reason first: who sees that it is closed asks whether it was lost (`was_left`).
        self._why_lost = self._why_closed = text
        self._is_closed = True
        atexit.unregister(self._at_exit)
        self._root.leave()
        if self._runner is not None and self._runner.is_running:
            self._runner.taken(text)
        else:
            self.make_view().notice(text)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, or let go of ranks that are to outlive this."""
        if self._is_kept:
            self.detach()
        else:
            self.stop()

    def __repr__(self) -> str:
        """Name, size and whether it runs."""
        state = "running" if self.is_running else "closed" if self._is_kept else "stopped"
        return f"{type(self).__name__}({self.name!r}, size={self.size}, {state})"
