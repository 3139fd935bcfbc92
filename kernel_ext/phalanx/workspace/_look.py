"""What a workspace offers to see of its ranks whatever they do: output, stacks, recorders.

It asks the root, and nothing of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

from ._checks import checked_path
from ._ranks import chosen_rank, chosen_ranks
from ._root_client import RootClient
from ._trace import Trace, merged

__all__ = ["CanLook"]


class CanLook:
    """The part of a workspace that looks at its ranks from outside."""

    size: int
    _root: RootClient

    def _check_running(self) -> None:
        raise NotImplementedError

    def output(self, rank: int) -> str:
        """Return all that a rank has shown, as text: the last MiB of it.

        Parameters
        ----------
        rank : int
            Whose.

        Returns
        -------
        str
            It begins with how much was left out, if anything was.
        """
        rank = chosen_rank(rank, self.size)
        self._check_running()
        piece = self._root.output(rank)
        text = piece.text.decode(errors="replace")
        if not piece.left_out_nbytes:
            return text
        return f"… {piece.left_out_nbytes:,} bytes before this are left out\n{text}"

    def stacks(self, ranks: int | Iterable[int] | None = None) -> dict[int, str]:
        """Return where ranks are, as seen from outside: also while they run, whatever they run.

        Parameters
        ----------
        ranks : int or iterable of int, optional
            Which; by default all.

        Returns
        -------
        dict of int to str
            By rank: the operation it is in, if any, then its Python stack, innermost line first.
        """
        chosen = chosen_ranks(ranks, self.size)
        self._check_running()
        seen = self._root.stacks(tuple(range(self.size)) if chosen is None else chosen)
        return {rank: stack.text for rank, stack in seen.items()}

    def trace(self, path: str | PathLike[str] | None = None) -> Trace:
        """Return what all ranks did last, on one clock; their flight recorders are always on.

        It needs nothing of the ranks: they may run a cell, be frozen, or dead (until replaced).

        Parameters
        ----------
        path : str or path, optional
            Where to write it as JSON for https://ui.perfetto.dev or chrome://tracing.

        Returns
        -------
        Trace
            ``records`` as of `px.trace`, with the rank; ``hosts`` says how sure the clock is.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        if path is not None:
            path = checked_path("path", path)
        self._check_running()
        trace = merged(self._root.trace())
        if path is not None:
            trace.save(path)
        return trace
