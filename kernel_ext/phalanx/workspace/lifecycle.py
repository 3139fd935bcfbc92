"""Boot, leave and stop a workspace."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from typing import Any

from phalanx.errors import DistributedError
from phalanx.protocol import BootProgress
from phalanx.supervisor import RootProcess

from .cells.runner import CellRunner
from .connection.root_client import RootClient
from .connection.transport import SocketThread
from .connection.widget_relay import notebook_kernel

BOOT_S = 60.0


class Lifecycle:
    """A workspace's connection to its root supervisor, from start to close.

    ``is_kept``: the ranks outlive a normal end of this process, and a ``with`` statement. In a
    Jupyter kernel only ranks started with ``detach`` outlive its shutdown; after its restart or
    crash all stay for their linger time. ``notice`` shows the user one line, from any thread.
    """

    def __init__(self, root: RootProcess, *, is_kept: bool, notice: Callable[[str], None]) -> None:
        self.is_kept = is_kept
        self.why_lost = ""  # who took the workspace over
        self._name = root.record.name
        self._notice = notice
        self._is_detached = root.record.is_detached
        self._is_closed = self._is_closing = self._ends_with_kernel = False
        self._was_alive = True  # at the time of the close
        self._how_closed = "stopped"
        self._why_closed = "this workspace was stopped; start another with %distributed start -n 4"
        self.runner: CellRunner | None = None
        self._unwatch_kernel: Callable[[], None] = lambda: None
        try:
            self.thread = SocketThread(
                f"phalanx-{self._name}",
                self._on_broken,
                way_out=f"the ranks keep all they have: %distributed detach, then "
                f"%distributed attach {self._name} --take",
            )
        except BaseException:
            root.abandon()
            raise
        try:
            self.root = RootClient(self.thread, root, self._on_taken)
        except BaseException:
            self.thread.close()
            raise

    def boot(
        self,
        *,
        is_new: bool,
        more_s: float = 0.0,
        progress: Callable[[BootProgress], None] | None = None,
    ) -> None:
        """Wait until the ranks are up.

        ``more_s`` is extra time in seconds for starting their hosts.
        """
        booted = self.root.wait_booted(BOOT_S + more_s, progress)
        runner = CellRunner(self._name, self.thread, self.root, booted)
        if not is_new:
            runner.attach()
        self.runner = runner
        self.root.pass_news(runner.on_news)
        if is_new:
            runner.form()
        atexit.register(self._at_exit)
        self._unwatch_kernel = _watch_kernel(self._on_shutdown, self._on_stop_button)

    @property
    def is_running(self) -> bool:
        """Whether the supervisor lives and this process has not left it."""
        return not self._is_closed and self.root.is_alive

    @property
    def was_left(self) -> bool:
        """See `Workspace.was_left`."""
        return self._is_closed and self._was_alive and not self.why_lost

    def stop(self) -> None:
        """End the ranks; idempotent. See `Workspace.stop`."""
        if self._is_closing:  # another thread waits for the ranks' end
            self.root.kill_ranks()
        elif self._is_closed:
            self.thread.close()  # still open if the workspace was taken over
        else:
            self._close(self._end_ranks)

    def _end_ranks(self) -> None:
        if cut_off := self.root.stop():
            self._notice(cut_off)

    def detach(self) -> None:
        """Leave the ranks running; idempotent. See `Workspace.detach`."""
        if not self._is_closed:
            self._how_closed = "detached"
            self._why_closed = (
                f"this workspace was let go; %distributed attach {self._name} takes it up again"
            )
            self._close(self.root.detach)

    def _close(self, leave: Callable[[], None]) -> None:
        self._was_alive = self.root.is_alive  # set before `_is_closed`: `was_left` reads both
        self._is_closed = True
        self._forget_ends()
        if self.runner is not None:
            self.runner.taken(self._why_closed)  # ends the calls of other threads
            self.runner.close()
        try:
            self._is_closing = True
            leave()
        finally:
            self._is_closing = False
            self.thread.close()

    def _forget_ends(self) -> None:
        """Remove the handlers for process exit and kernel shutdown."""
        atexit.unregister(self._at_exit)
        self._unwatch_kernel()
        self._unwatch_kernel = lambda: None

    def _on_shutdown(self) -> None:
        """Ask the root to end the ranks: the kernel shuts down.

        Called from any thread, and does not wait. The main thread may run a cell that never ends;
        then the kernel is killed before `_at_exit`, which would wait for the ranks' end.
        """
        if self.is_running and not self._is_detached:
            self._ends_with_kernel = True
            with contextlib.suppress(DistributedError):  # must not keep the kernel alive
                self.root.ask_to_stop()

    def _on_stop_button(self) -> None:
        """Stop callbacks of widgets: no cell of the notebook runs."""
        if self.is_running and self.runner is not None:
            with contextlib.suppress(DistributedError):  # broken: other news tells the user
                self.runner.interrupt_callbacks()

    def _at_exit(self) -> None:
        """At normal process exit, stop or detach the ranks.

        `Lifecycle` says which of them ends.
        """
        if self._ends_with_kernel:
            self.stop()
        elif self.is_kept or notebook_kernel() is not None:  # which may be restarted at any time
            self.detach()
        else:
            self.stop()

    def check_running(self) -> None:
        """Raise `DistributedError` if the supervisor cannot be reached any more."""
        if self._is_closed:
            raise DistributedError(self._why_closed)
        if not self.root.is_alive:
            msg = "the supervisor of this workspace is gone, and its ranks with it; start anew"
            raise DistributedError(msg)
        self.thread.check()

    def up(self) -> CellRunner:
        """Return the runner of cells; refuse while booting."""
        self.check_running()
        if self.runner is None:
            msg = "the ranks are not up yet"
            raise DistributedError(msg)
        return self.runner

    def _on_taken(self, pid: int) -> None:
        how = f"was taken over by process {pid}"
        if pid < 0:
            how = "was let go, as this process did not take what its supervisor sent"
        text = (
            f"the workspace {self._name!r} {how}; "
            f"%distributed attach {self._name} --take takes it back"
        )
        # Set the reason before `_is_closed`: `was_left` reads both.
        self.why_lost = self._why_closed = text
        self._how_closed = "taken over"
        self._is_closed = True
        self._forget_ends()
        self.root.let_go()
        if self.runner is not None and self.runner.slot.is_taken:
            self.runner.taken(text)
        else:
            self._notice(text)

    def _on_broken(self, text: str) -> None:
        """End the wait for a cell, as the connection is broken.

        Other calls check the connection themselves.
        """
        if self.runner is not None:
            self.runner.taken(text)

    @property
    def state(self) -> str:
        """Return "running", or how the workspace ended."""
        over = self._how_closed if self._is_closed else "gone"
        return "running" if self.is_running else over


def _watch_kernel(
    on_shutdown: Callable[[], None], on_stop_button: Callable[[], None]
) -> Callable[[], None]:
    """Watch the kernel's shutdown, and its stop button between two cells.

    The thread that receives the message calls ``on_shutdown``, also while the main thread runs a
    cell. A restart does not call it, only a shutdown for good. The main thread calls ``on_stop_button``: a kernel ignores
    SIGINT between its requests, but it installs ``saved_sigint_handler`` at the end of the request
    that runs, and keeps it. A process that is no kernel never calls the listeners.

    Returns
    -------
    callable
        Removes the listeners.
    """
    kernel = notebook_kernel()
    if kernel is None:
        return lambda: None
    hook = kernel.do_shutdown
    if not isinstance(hook, _Shutdown):
        hook = kernel.do_shutdown = _Shutdown(hook)
    button = getattr(kernel, "saved_sigint_handler", None)
    if not isinstance(button, _StopButton):
        button = kernel.saved_sigint_handler = _StopButton(kernel)
    hook.listeners.append(on_shutdown)
    button.listeners.append(on_stop_button)

    def remove() -> None:
        hook.listeners.remove(on_shutdown)
        button.listeners.remove(on_stop_button)

    return remove


class _StopButton:
    """Handles SIGINT between two requests of a kernel."""

    def __init__(self, kernel: Any) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._kernel = kernel

    def __call__(self, *_: object) -> None:
        for listener in tuple(self.listeners):
            self._kernel.io_loop.add_callback_from_signal(listener)


class _Shutdown:
    """Replaces a kernel's ``do_shutdown`` and calls it after the listeners.

    The main thread changes the list of listeners; the control thread reads a copy of it.
    """

    def __init__(self, before: Callable[[bool], Any]) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._before = before

    def __call__(self, restart: bool) -> Any:
        if not restart:
            for listener in tuple(self.listeners):
                listener()
        return self._before(restart)
