"""What a client that comes to running ranks has missed, and the cell that it joins.

It knows the root's word on how things stand and the ranks' own; showing is a cell's loop's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import msgspec

from phalanx.protocol import CellStanding, OutputIs, StandingIs, TypedLine

from ._dispatch import Dispatch
from ._events import Ended, Lost, Text
from ._joined import Greeting, JoinedCell, WatchedCell, failure_of
from ._output import CellOutput
from ._ranks import format_ranks, name_ranks
from ._root_client import RootClient
from ._sayings import say_died, say_returned
from ._view import View

__all__ = ["CatchUp"]

MISSED_LINES = 200  # of each rank: about what a person scrolls through
FIRST_INTERVAL_S, INTERVAL_S = 0.02, 0.1  # a subscription takes some milliseconds to arrive
ANSWER_S = 1.0  # for ranks that are alive and do not answer (stopped, or in C with the GIL)
SILENT_S = 5.0  # where none of them answers at all
NEVER_SENT_S = 0.5  # in which a cell that was sent has come to its rank


class CatchUp:
    """Made when the root has taken a new client in; `show` is for the person in front of it.

    Who is not the ranks' owner only looks on, and is shown a cell that runs from its beginning.
    """

    def __init__(
        self,
        name: str,
        dispatch: Dispatch,
        root: RootClient,
        size: int,
        *,
        is_owner: bool = True,
    ) -> None:
        self._name = name
        self._dispatch = dispatch
        self._root = root
        self._ranks = tuple(range(size))
        self.cell: JoinedCell | None = None
        self._is_owner = is_owner
        self.standing = root.standing()
        self._missed: dict[int, OutputIs] = {}
        self.silent: set[int] = set()
        found = _last_running(self.standing)
        if found is None and not is_owner:
            return
        if found is not None:
            made = JoinedCell if is_owner else WatchedCell
            self.cell = made(found.cell, found.ranks)
            # From here on what comes is held back, until it is known what of it was shown.
            dispatch.adopt(self.cell)
        self._greeting = Greeting(f"{name}:greet", self._ranks)
        dead = {death.rank for death in self.standing.deaths}
        self.silent = self._greet(set(self._ranks) - dead, SILENT_S)
        if is_owner:
            self._drop_unsent()
        # What ranks show or end after this comes by itself; what they did before is in here.
        self.standing = root.standing()
        self._missed = {
            rank: root.output(rank, since=since, max_lines=MISSED_LINES)
            for rank, since in self._since().items()
        }

    def _since(self) -> Mapping[int, int]:
        """From where on what each rank has shown is to be shown here."""
        if self._is_owner:
            return self.standing.marks
        standing = self._standing()
        return {} if standing is None else standing.since

    @property
    def deaths(self) -> list[Lost]:
        """The ranks that are dead."""
        return [Lost(death.rank, death.host, death.reason, "") for death in self.standing.deaths]

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks that run the cell to be joined."""
        standing = self._standing()
        if standing is None:
            return ()
        dead = {lost.rank for lost in self.deaths}
        return tuple(r for r in standing.ranks if r not in standing.ended and r not in dead)

    @property
    def typed(self) -> list[TypedLine]:
        """The lines that were typed for the cell, all of them known to every rank now."""
        logs = {
            rank: {int(index): entry for index, entry in answer["typed"]}
            for rank, answer in self._greeting.answers.items()
            if self.cell is not None and answer["cell"] == self.cell.name
        }
        whole: dict[int, TypedLine] = {}
        for log in logs.values():
            for index, entry in log.items():
                whole.setdefault(index, msgspec.convert(entry, TypedLine))
        typed = [entry for _, entry in sorted(whole.items())]
        for index, line in enumerate(typed):
            # The client before may have died between two ranks.
            if self.cell is not None and any(index not in known for known in logs.values()):
                self._dispatch.send_line(self.cell.name, index, line)
        return typed

    def _standing(self) -> CellStanding | None:
        name = None if self.cell is None else self.cell.name
        return next((cell for cell in self.standing.cells if cell.cell == name), None)

    # -- the ranks ----------------------------------------------------------------------------

    def _greet(self, ranks: Collection[int], patience_s: float) -> set[int]:
        """Greet ranks until they have answered; those that did not within their time."""
        missing = set(ranks)
        begun_s = time.monotonic()
        interval_s = FIRST_INTERVAL_S
        while missing:
            has_answer = len(missing) < len(ranks)
            if time.monotonic() - begun_s > (
                min(ANSWER_S, patience_s) if has_answer else patience_s
            ):
                break
            for rank in missing:
                self._dispatch.greet(self._greeting, rank)
            missing -= self._greeting.wait_ended(missing, interval_s)
            interval_s = INTERVAL_S
        return missing

    def _drop_unsent(self) -> None:
        """Take a cell back from ranks it was announced for and never sent to: its client died."""
        if self.cell is None:
            return
        until_s = time.monotonic() + NEVER_SENT_S
        while True:
            standing = next(
                (c for c in self._root.standing().cells if c.cell == self.cell.name), None
            )
            strays = {
                rank
                for rank, answer in self._greeting.answers.items()
                if standing is not None
                and rank in standing.ranks
                and rank not in standing.ended
                and answer["cell"] != self.cell.name
            }
            if not strays or time.monotonic() > until_s:
                break
            self._greet(strays, INTERVAL_S)
        if strays:
            self._root.forget_cell(self.cell.name, tuple(sorted(strays)))

    # -- showing ------------------------------------------------------------------------------

    def tell(self, view: View) -> None:
        """Say what happened meanwhile, but for the output."""
        for its in self.standing.returns:
            view.notice(say_returned(its))
        for death in self.standing.deaths:
            view.notice(say_died(death))
        if self.silent:
            verb = "do" if len(self.silent) > 1 else "does"
            view.notice(f"{name_ranks(self.silent)} {verb} not answer yet")
        if self.running:
            how = "joined" if self._is_owner else "watched"
            view.notice(f"a cell runs on {name_ranks(self.running)}; it is {how} here")
            return
        if not self._is_owner:
            return
        for cell in self.standing.cells:
            view.notice(f"the cell that ran has ended meanwhile: {_how(cell)}")

    def begin_cell(self) -> JoinedCell:
        """Give the cell to be joined what it has missed, and let it go on."""
        standing = self._standing()
        assert self.cell is not None
        assert standing is not None
        for rank in standing.ranks:
            for text in self._texts(rank):
                self.cell.events.put(text)
        for rank, how in standing.ended.items():
            self.cell.events.put(Ended(rank, failure_of(how)))
        for lost in self.deaths:
            self.cell.events.put(lost)
        shown = {rank: piece.end for rank, piece in self._missed.items()}
        self.cell.begin(shown, set(standing.ended))
        self._missed = {}
        return self.cell

    def show(self, view: View) -> None:
        """Show what was missed where no cell is to be joined."""
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
            # The same words for all ranks: equal lines come together.
            more = f"… {_left_out(piece)}: %distributed output RANK\n"
            texts.insert(0, Text(rank, "stdout", more))
        return texts


def _left_out(piece: OutputIs) -> str:
    if piece.left_out_lines < 0:
        return f"{piece.left_out_nbytes >> 20:,} MiB before this"
    return f"{piece.left_out_lines:,} lines before this"


def _last_running(standing: StandingIs) -> CellStanding | None:
    dead = {death.rank for death in standing.deaths}
    running = [cell for cell in standing.cells if set(cell.ranks) - cell.ended.keys() - dead]
    return running[-1] if running else None


def _how(cell: CellStanding) -> str:
    well = [rank for rank, error in cell.ended.items() if not error]
    parts = [f"{name_ranks(well)} well"] if well else []
    by_error: dict[str, list[int]] = {}
    for rank, error in sorted(cell.ended.items()):
        if error:
            by_error.setdefault(error, []).append(rank)
    parts += [f"rank {format_ranks(ranks)} in {error}" for error, ranks in by_error.items()]
    return "; ".join(parts) or "its ranks have died"
