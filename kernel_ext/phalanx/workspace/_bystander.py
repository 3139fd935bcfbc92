"""Looking on while another process runs cells on the ranks: nothing it does reaches a rank's cell.

It knows how a cell that runs is joined; what a workspace's owner may do is the runner's.
"""

from __future__ import annotations

from phalanx.protocol import Booted, FromRoot, Notice, RankLost, Replaced, TypedLine

from ._catch_up import CatchUp
from ._cell import Cell
from ._dispatch import Dispatch
from ._events import TakenAway, Told
from ._io import SocketThread
from ._outcome import RankResult, raise_for, results_of
from ._ranks import name_ranks
from ._root_client import RootClient
from ._run import run_cell
from ._steps import lost_of
from ._view import View

__all__ = ["Bystander"]

LEFT = "the cell is no longer watched; it goes on"


class Bystander:
    """Follows the cells of another process, one at a time."""

    def __init__(self, name: str, thread: SocketThread, root: RootClient, booted: Booted) -> None:
        self._name = f"{name}:{booted.client}"
        self._root = root
        self._size = len(booted.engines)
        self._dispatch = Dispatch(thread, booted.connection, booted.engines, booted.session)

    def follow(self, view: View) -> list[RankResult]:
        """Show the cell that runs, from its beginning to its end; see `Workspace.join`."""
        missed = CatchUp(self._name, self._dispatch, self._root, self._size, is_owner=False)
        missed.tell(view)
        if missed.cell is None:
            return []
        try:
            if not missed.running:
                return []
            cell = missed.begin_cell()
            outcome = run_cell(cell, view, _Mute(cell), look=self._root.look, see=self._root.see)
        finally:
            self._dispatch.forget(missed.cell)
        if outcome.taken:
            view.notice(outcome.taken)
            return []
        raise_for(outcome)
        view.notice(f"the cell has ended on {name_ranks(cell.ranks)}")
        return results_of(outcome, cell.ranks)

    def on_news(self, message: FromRoot) -> None:
        """Tell the cell that is followed what the root has to say."""
        if isinstance(message, RankLost):
            self._dispatch.on_lost(lost_of(message))
        elif isinstance(message, Replaced):
            self._dispatch.on_replaced(message.rank, message.engine)
        elif isinstance(message, Notice):
            self._dispatch.tell(Told(message.text))


class _Mute:
    """Sends nothing; whoever stops the cell here only stops looking on."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def send_line(self, cell: str, index: int, entry: TypedLine) -> None:
        """Do nothing: questions are the owner's."""

    def refuse_line(self, cell: str, message: str) -> None:
        """Do nothing."""

    def interrupt_cell(self, cell: str, ranks: tuple[int, ...]) -> None:
        """End the looking on."""
        self._cell.events.put(TakenAway(LEFT))
