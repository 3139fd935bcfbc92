"""Send the states of the ranks to the notebook's toolbar.

``widgets/js/src/toolbar`` is the page's half.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from jupyter_client.session import extract_header

from phalanx.protocol import RankState, WorldTopology
from phalanx.workspace import Workspace

from .typing_help import AutoDistributed

Message = dict[str, Any]


class ToolbarFrame(msgspec.Struct, frozen=True):
    """The state that the field shows: of each rank, and of `%autodistributed`.

    ``is_new``: the magics were just loaded, and a page may send its first message.
    """

    is_loaded: bool
    ranks: tuple[RankState, ...] = ()
    is_auto: bool = False
    is_new: bool = False


class Toolbar:
    """One end of a comm with all pages of this kernel.

    The comm has a fixed id and is never opened with a message: a page without the field would
    report an error in its console. A page finds it by `comm_info`, or by the first state that is
    sent. Until a page has sent a message, no further state is sent, and the ranks are not followed.

    The main thread and the workspace's threads call. The lock guards the fields.
    """

    comm_id = target_name = "phalanx.toolbar"

    def __init__(
        self, shell: Any, auto: AutoDistributed, workspace: Callable[[], Workspace | None]
    ) -> None:
        self._shell = shell
        self._kernel = getattr(shell, "kernel", None)
        self._auto = auto
        self._workspace = workspace
        self._lock = threading.Lock()
        self._ranks: tuple[RankState, ...] = ()
        self._has_page = False
        self._sent: ToolbarFrame | None = None

    def open(self) -> None:
        """Register the comm and announce it to the page; idempotent."""
        if self._kernel is None or self._kernel.comm_manager.comms.get(self.comm_id) is self:
            return
        self._kernel.comm_manager.comms[self.comm_id] = self
        self._shell.events.register("post_run_cell", self._on_cell_ends)
        self._send(ToolbarFrame(is_loaded=True, is_new=True))

    def close(self) -> None:
        """Remove the comm, and tell the page that the magics are gone."""
        if self._kernel is None or self._kernel.comm_manager.comms.pop(self.comm_id, None) is None:
            return
        self._shell.events.unregister("post_run_cell", self._on_cell_ends)
        self._send(ToolbarFrame(is_loaded=False))

    def refresh(self) -> None:
        """Send the state, unless the page has it."""
        with self._lock:
            frame = ToolbarFrame(is_loaded=True, ranks=self._ranks, is_auto=self._auto.is_on)
            if self._has_page and frame != self._sent:
                self._send(frame)

    @contextmanager
    def starting(self, n: int) -> Iterator[None]:
        """Show that ranks start, inside the context."""
        state: RankState = "starting"
        self._show([state] * n)
        try:
            yield
        except BaseException:
            self._show(())
            raise

    def follow(self) -> None:
        """Show the workspace's ranks from now on; without a workspace, no ranks."""
        workspace = self._workspace()
        if workspace is None or not workspace.is_running:
            self._show(())
        elif not self._has_page:
            self._ranks = ()  # asked for when a page looks
        else:

            def take(topology: WorldTopology | None) -> None:
                if workspace is self._workspace():  # else a late answer
                    self._show(() if topology is None else [its.state for its in topology.ranks])

            workspace.follow(take)

    def wishes_auto(self) -> bool:
        """Whether the running cell's notebook wants every cell on the ranks.

        The page says so with each cell: its messages come after cells that were sent together.
        """
        if self._kernel is None:
            return False
        carried = self._shell.get_parent().get("metadata", {}).get("phalanx")
        return isinstance(carried, dict) and carried.get("autodistributed") is True

    def handle_msg(self, message: Message) -> None:
        """Take a message of a page; the kernel's comm manager calls this."""
        data = message["content"].get("data", {})
        if data.get("kind") == "look":
            self._has_page, self._sent = True, None
            self.follow()
        elif data.get("kind") == "auto" and self._ranks:
            self._auto.set(data.get("on") is True)
        self.refresh()

    def handle_close(self, message: Message) -> None:
        """Do nothing: a page does not close this comm."""

    def _show(self, ranks: Iterable[RankState]) -> None:
        self._ranks = tuple(ranks)
        self.refresh()

    def _on_cell_ends(self, *_: Any) -> None:
        """Show that ranks are gone: a cell may have stopped them."""
        workspace = self._workspace()
        if workspace is None or not workspace.is_running:
            self._ranks = ()
        self.refresh()

    def _send(self, frame: ToolbarFrame) -> None:
        self._sent = frame
        assert self._kernel is not None
        content = {"comm_id": self.comm_id, "data": msgspec.to_builtins(frame)}
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "comm_msg",
            content,
            parent=extract_header(self._kernel.get_parent("shell")),
            ident=f"comm-{self.comm_id}".encode(),
        )
