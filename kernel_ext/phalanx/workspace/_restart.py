"""What a workspace offers to replace ranks; the steps are the runner's.

It checks what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ._newcomers import Wish
from ._ranks import chosen_rank, chosen_ranks
from ._runner import CellRunner
from ._view import View

__all__ = ["CanRestart"]


class CanRestart:
    """The part of a workspace that replaces its ranks."""

    size: int
    make_view: Callable[[], View]

    def _up(self) -> CellRunner:
        raise NotImplementedError

    def restart(
        self,
        ranks: int | Iterable[int] | None = None,
        *,
        all: bool = False,
        force: bool = False,
        copy_from: int | None = None,
        init: bool = True,
    ) -> tuple[int, ...]:
        """Put new processes in the place of ranks; the others keep all that they have.

        A new rank has the number, host and memory slot of the one before, and none of its
        variables. Where all ranks live again, the world is formed anew before the next cell. It
        may be called from another thread while a cell runs: the new ranks take part in the next.

        Parameters
        ----------
        ranks : int or iterable of int, optional
            Which; by default those that are dead.
        all : bool
            All of them.
        force : bool
            Also ranks that live, whatever they do: they are killed, with all they have started.
        copy_from : int, optional
            A rank whose variables the new ones get: what pickles, and functions and classes of
            cells. What does not is named.
        init : bool
            Run the cells again that were run with ``every_start``.

        Returns
        -------
        tuple of int
            The ranks that were replaced.

        Raises
        ------
        ValueError
            There is no such rank, or ``copy_from`` is to be replaced itself.
        CellError
            A cell of ``every_start`` failed on a new rank, which is there all the same.
        DistributedError
            A rank lives and ``force`` was not given, none is dead, or a new one did not start;
            the text says so.
        """
        chosen = chosen_ranks(range(self.size) if all else ranks, self.size)
        if copy_from is not None:
            copy_from = chosen_rank(copy_from, self.size)
            if chosen is not None and copy_from in chosen:
                msg = f"rank {copy_from} is to be replaced itself: nothing can be copied from it"
                raise ValueError(msg)
        wish, view = Wish(copy_from, init), self.make_view()
        return self._up().restart(
            chosen, wish, force=force, make_view=self.make_view, tell=view.notice
        )
