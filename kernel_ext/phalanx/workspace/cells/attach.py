"""Fetch what a client missed, and attach to the running cell."""

from __future__ import annotations

import time

from phalanx.protocol import (
    CellStatus,
    CellStatusReply,
    OutputIs,
    RankSays,
    format_ranks,
    name_ranks,
)

from ..connection.root_client import RootClient
from ..output.front_end import Text, View
from ..output.notices import say_died, say_returned
from ..output.printer import CellOutput
from .cell import Cell, Ended, failure_of
from .dispatch import Dispatch

MISSED_LINES = 200  # of each rank: about as much as a person scrolls through
NEVER_SENT_S, INTERVAL_S = 0.5, 0.1  # a cell that was sent reaches its rank within this time


class AttachSync:
    """Fetches what a new client missed, once the root has accepted it.

    `tell` and `show` write for the person.
    """

    def __init__(self, dispatch: Dispatch, root: RootClient, size: int) -> None:
        self._root = root
        self._ranks = tuple(range(size))
        self.cell: Cell | None = None
        self.status = root.cell_status()
        found = _last_running(self.status)
        if found is not None:
            # The cell keeps messages until `join_cell` knows which of them were shown already.
            self.cell = Cell(found.cell, found.ranks)
            dispatch.adopt(self.cell)
        dead = {death.rank for death in self.status.deaths}
        stacks = root.stacks(tuple(set(self._ranks) - dead))
        self.silent = {rank for rank, stack in stacks.items() if stack.is_silent}
        self._drop_unsent()
        # Output and ends after this request arrive as messages; earlier ones are in the reply.
        self.status = root.cell_status()
        self._missed: dict[int, OutputIs] = {
            rank: root.output(rank, since=since, max_lines=MISSED_LINES)
            for rank, since in self.status.marks.items()
        }
        dead = {death.rank for death in self.status.deaths}
        name = None if self.cell is None else self.cell.name
        self._known = next((cell for cell in self.status.cells if cell.cell == name), None)
        self.running: tuple[int, ...] = ()  # the ranks that still run the cell to attach to
        if (known := self._known) is not None:
            self.running = tuple(r for r in known.ranks if r not in known.ended and r not in dead)

    def _drop_unsent(self) -> None:
        """Cancel the cell on ranks it was never sent to.

        This happens when the client that announced the cell died before sending it to these ranks.
        """
        if self.cell is None:
            return
        until_s = time.monotonic() + NEVER_SENT_S
        while strays := self._strays(self.cell.name):
            if time.monotonic() > until_s:
                self._root.forget_cell(self.cell.name, tuple(sorted(strays)))
                return
            time.sleep(INTERVAL_S)

    def _strays(self, name: str) -> set[int]:
        """Return the ranks that answer and have not begun the cell."""
        status = self._root.cell_status()
        ranks = {rank for cell in status.cells if cell.cell == name for rank in cell.ranks}
        ended = {rank for cell in status.cells if cell.cell == name for rank in cell.ended}
        begun = {rank for rank, cell in status.begun.items() if cell == name}
        return ranks - self.silent - ended - begun

    def tell(self, view: View) -> None:
        """Report what happened meanwhile, except output."""
        for its in self.status.returns:
            view.notice(say_returned(its))
        for death in self.status.deaths:
            view.notice(say_died(death))
        if self.silent:
            verb = "do" if len(self.silent) > 1 else "does"
            view.notice(f"{name_ranks(self.silent)} {verb} not answer yet")
        if self.running:
            view.notice(f"a cell runs on {name_ranks(self.running)}; it is joined here")
            return
        for cell in self.status.cells:
            view.notice(f"the cell that ran has ended meanwhile: {_how(cell)}")

    def join_cell(self, cell: Cell) -> None:
        """Give the cell the events that it missed."""
        status = self._known
        assert status is not None
        cell.shown = {rank: piece.end for rank, piece in self._missed.items()}
        cell.over |= status.ended.keys()
        cell.typed = status.typed
        cell.missed = [
            *(text for rank in status.ranks for text in self._texts(rank)),
            *(Ended(rank, failure_of(how)) for rank, how in status.ended.items()),
            *self.status.deaths,
            *(RankSays(rank, need) for rank, need in status.needs),
        ]

    def show(self, view: View) -> None:
        """Show missed output when there is no cell to attach to."""
        view.begin(self._ranks)
        output = CellOutput(view, MISSED_LINES * len(self._ranks) + len(self._ranks))
        now_s = time.monotonic()
        for rank in self._missed:
            for text in self._texts(rank):
                output.text(text, now_s)
        self._missed = {}
        output.finish()

    def _texts(self, rank: int) -> list[Text]:
        piece = self._missed.get(rank)
        if piece is None or not piece.text:
            return []
        texts = [Text(rank, "stdout", piece.text.decode(errors="replace"))]
        if piece.left_out_nbytes > 0:
            # The same text for all ranks, so that equal lines are merged.
            more = f"… {_left_out(piece)}: %distributed output RANK\n"
            texts.insert(0, Text(rank, "stdout", more))
        return texts


def _left_out(piece: OutputIs) -> str:
    if piece.left_out_lines < 0:
        return f"{piece.left_out_nbytes >> 20:,} MiB before this"
    return f"{piece.left_out_lines:,} lines before this"


def _last_running(status: CellStatusReply) -> CellStatus | None:
    dead = {death.rank for death in status.deaths}
    running = [cell for cell in status.cells if set(cell.ranks) - cell.ended.keys() - dead]
    return running[-1] if running else None


def _how(cell: CellStatus) -> str:
    well = [rank for rank, end in cell.ended.items() if end.ok]
    parts = [f"{name_ranks(well)} well"] if well else []
    by_error: dict[str, list[int]] = {}
    for rank, end in sorted(cell.ended.items()):
        if not end.ok:
            by_error.setdefault(f"{end.ename}: {end.evalue}"[:200], []).append(rank)
    parts += [f"rank {format_ranks(ranks)} in {error}" for error, ranks in by_error.items()]
    return "; ".join(parts) or "its ranks have died"
