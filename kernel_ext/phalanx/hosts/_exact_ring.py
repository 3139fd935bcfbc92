"""The exact search for a ring: each edge is taken or left out, and what follows from it is drawn.

It knows sets of neighbours as numbers' bits, and a limit of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._separators import bits, parts

__all__ = ["exact_ring"]


def exact_ring(near: Sequence[int], limit: int) -> tuple[tuple[int, ...], bool]:
    """Return a ring through all hosts or nothing, and whether that is certain.

    Parameters
    ----------
    near : sequence of int
        For each host (3 or more) the set of its neighbours: bit j for host j.
    limit : int
        Edges that are decided on before it gives up.

    Notes
    -----
    What follows from an edge: a host with two edges left takes both; one that has taken two leaves
    the others out; the ends of a row may be joined only when the row holds all hosts. A branch ends
    where a host has fewer than two edges, or the hosts fall apart. (Vandegriend and Culberson 1998,
    doi:10.1613/jair.512.)
    """
    n = len(near)
    everybody = (1 << n) - 1
    stack = [_Branch(list(near), [0] * n, list(range(n)))]
    for _ in range(limit):
        if not stack:
            return (), True
        branch = stack.pop()
        if not branch.settle() or len(parts(branch.near, everybody)) > 1:
            continue
        at = branch.most_pressing()
        if at < 0:
            return branch.ring(), True
        options = branch.near[at] & ~branch.taken[at]
        low = options & -options
        other = low.bit_length() - 1
        without = branch.copy()
        without.leave(at, other)
        branch.open.append((at, other))
        stack += [without, branch]
    return (), False


class _Branch:
    """Edges that are left, those that are taken, and for each end of a row its other end."""

    def __init__(self, near: list[int], taken: list[int], mate: list[int]) -> None:
        self.near, self.taken, self.mate = near, taken, mate
        self.open: list[tuple[int, int]] = []  # edges that are to be taken

    def copy(self) -> _Branch:
        return _Branch(self.near[:], self.taken[:], self.mate[:])

    def leave(self, a: int, b: int) -> None:
        self.near[a] &= ~(1 << b)
        self.near[b] &= ~(1 << a)

    def settle(self) -> bool:
        """Draw all conclusions; False: there is no ring here."""
        n = len(self.near)
        waiting = set(range(n))
        while self.open or waiting:
            if self.open:
                a, b = self.open.pop()
                if not self._take(a, b, waiting):
                    return False
                continue
            at = waiting.pop()
            left = self.near[at]
            if left.bit_count() < 2:
                return False
            if self.taken[at].bit_count() == 2:
                for other in bits(left & ~self.taken[at]):
                    self.leave(at, other)
                    waiting.add(other)
            elif left.bit_count() == 2:
                self.open += [(at, other) for other in bits(left & ~self.taken[at])]
        return True

    def _take(self, a: int, b: int, waiting: set[int]) -> bool:
        if self.taken[a] >> b & 1:
            return True
        if not self.near[a] >> b & 1:
            return False
        if self.taken[a].bit_count() == 2 or self.taken[b].bit_count() == 2:
            return False
        closes = self.mate[a] == b
        self.taken[a] |= 1 << b
        self.taken[b] |= 1 << a
        waiting |= {a, b}
        if closes:
            return len(_row(self.taken, a)) == len(self.near)
        first, last = self.mate[a], self.mate[b]
        self.mate[first], self.mate[last] = last, first
        # Joining the two ends of a row would close it: right only if all hosts are in it.
        if (
            self.near[first] >> last & 1
            and not self.taken[first] >> last & 1
            and len(_row(self.taken, first)) < len(self.near)
        ):
            self.leave(first, last)
            waiting |= {first, last}
        return True

    def most_pressing(self) -> int:
        """Return the host with the fewest choices, ends of rows before others; -1: all is decided."""
        undecided = [i for i in range(len(self.near)) if self.taken[i].bit_count() < 2]
        if not undecided:
            return -1
        return min(
            undecided, key=lambda i: (-self.taken[i].bit_count(), self.near[i].bit_count(), i)
        )

    def ring(self) -> tuple[int, ...]:
        return tuple(_row(self.taken, 0))


def _row(taken: Sequence[int], start: int) -> list[int]:
    """Follow taken edges from an end until there is no further one, or the start comes again."""
    row, before = [start], -1
    while True:
        onward = taken[row[-1]] & ~(1 << before if before >= 0 else 0)
        if not onward:
            return row
        before = row[-1]
        after = (onward & -onward).bit_length() - 1
        if after == start:
            return row
        row.append(after)
