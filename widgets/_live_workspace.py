"""What the live widgets of a workspace share: that it is one, and that another may take its place.

It knows the workspace and the lock that looks at it; what is seen is its subclasses'.
"""

from __future__ import annotations

import threading
from typing import Protocol

from phalanx.errors import DistributedError
from phalanx.workspace import Workspace

from ._live import LiveWidget

__all__ = ["WorkspaceWidget", "checked_workspace"]


class _Rank(Protocol):
    @property
    def state(self) -> str: ...
    @property
    def pid(self) -> int: ...


class _Frame(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def ranks(self) -> tuple[_Rank, ...]: ...


def checked_workspace(kind: str, workspace: Workspace) -> Workspace:
    """Refuse with `TypeError` what is no workspace."""
    if not hasattr(workspace, "topology"):
        msg = f"{kind} shows a Workspace, not {type(workspace).__name__}"
        raise TypeError(msg)
    return workspace


class WorkspaceWidget(LiveWidget):
    """A live widget that looks at a workspace: on the ticker's thread and on those of answers.

    Subclasses say what there is to see before anything is shown (`_prepare`), and what a workspace
    that is new to them begins with (`_begin`).
    """

    def __init__(self, workspace: Workspace) -> None:
        self._looking = threading.Lock()
        self._why_gone = ""
        self._was_left = False
        self._lives: tuple[tuple[int, bool], ...] = ()
        self._is_busy = False
        self._workspace = checked_workspace(type(self).__name__, workspace)
        self._prepare()
        super().__init__()
        with self._looking:
            self._begin()

    @property
    def workspace(self) -> Workspace:
        """What is shown."""
        return self._workspace

    @workspace.setter
    def workspace(self, workspace: Workspace) -> None:
        with self._looking:
            self._workspace = checked_workspace(type(self).__name__, workspace)
            self._why_gone = ""
            self._begin()

    def _reason(self, error: DistributedError) -> str:
        """Say why nothing is to be seen; of a workspace that is gone, what was said first.

        Whoever clears away what has died can say only that it was stopped.
        """
        if self._workspace.is_running:
            return str(error)
        if not self._why_gone:
            self._why_gone, self._was_left = str(error), self._workspace.was_left
        return self._why_gone

    def _why_absent(self, error: DistributedError) -> str:
        """Say for a still picture why it is of before; nothing where a person has ended what it shows."""
        why = self._reason(error)
        if self._workspace.is_running:  # its supervisor lives, and may answer yet
            return f"the workspace is silent: {why}"
        if self._workspace.why_lost:  # it lives on elsewhere
            return why
        return "" if self._was_left else f"the workspace has gone: {why}"

    def _keep_who_lives(self, frame: _Frame) -> None:
        """Let the file know of a rank that died or was replaced, and of the end of them or of a cell.

        The next cell may be long in coming, and the last one had ended here before its supervisor
        had heard of all its ranks.
        """
        was_busy, self._is_busy = self._is_busy, any(its.state == "busy" for its in frame.ranks)
        lives = tuple(
            (rank.pid, rank.state == "dead" or frame.status == "gone") for rank in frame.ranks
        )
        if lives != self._lives or (was_busy and not self._is_busy):
            self._lives = lives
            self.keep_still()

    def _prepare(self) -> None:
        """Look for the first time; `DistributedError` where there is nothing to show."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Show the workspace from now on; `_looking` is held."""
        raise NotImplementedError
