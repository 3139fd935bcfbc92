"""What a workspace offers to exchange values with its ranks; the calls are the runner's.

It checks what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._ranks import chosen_ranks
from ._runner import CellRunner
from ._values import pull_request, push_request
from ._view import View

__all__ = ["CanExchange"]


class CanExchange:
    """The part of a workspace that brings values to ranks and back."""

    size: int
    make_view: Callable[[], View]

    def _up(self) -> CellRunner:
        raise NotImplementedError

    def push(self, values: Mapping[str, Any], *, ranks: int | Iterable[int] | None = None) -> None:
        """Bind names on the ranks to copies of values from here.

        Parameters
        ----------
        values : mapping of str to object
            By name; anything that pickles, and functions. Arrays travel without a copy in memory.
        ranks : int or iterable of int, optional
            Where; by default on every rank that lives.

        Raises
        ------
        ValueError
            A key is not a name, or there is no such rank.
        RankFailure
            A named rank is dead.
        """
        chosen, request = chosen_ranks(ranks, self.size), push_request(values)
        self._up().call(chosen, request, self.make_view().notice)

    def pull(self, name: str, *, ranks: int | Iterable[int] | None = None) -> Any:
        """Return copies of a variable of the ranks.

        Parameters
        ----------
        name : str
            The variable's.
        ranks : int or iterable of int, optional
            Whose; by default of every rank that lives.

        Returns
        -------
        list of object, or object
            By rank; the value itself where ``ranks`` is one number.

        Raises
        ------
        CellError
            Also a `NameError`: a rank has no such variable.
        ValueError
            ``name`` is not a name, or there is no such rank.
        RankFailure
            A named rank is dead.
        """
        chosen, request = chosen_ranks(ranks, self.size), pull_request([name])
        values = self._up().call(chosen, request, self.make_view().notice)
        found = [value[0] for _, value in sorted(values.items())]
        return found if ranks is None or isinstance(ranks, Iterable) else found[0]
