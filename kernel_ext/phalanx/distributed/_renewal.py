"""Splits that go on in a new epoch of their world: which do, and how they are formed again.

It runs when the new world's own group stands and before anybody uses it; what holds the groups
it does not change (`Renewal.publish` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from phalanx import _native
from phalanx.errors import DistributedError

from ._connect import Links
from ._deadline import Deadline
from ._family import Family, Gone
from ._handshake import Lane
from ._rendezvous import Rendezvous, name_ranks
from ._split import CONNECT_LIMIT_S, Part, abort_check, form_part, spec_of
from ._world import WorldSpec, native_hosts

if TYPE_CHECKING:
    from ._group import Group

__all__ = ["Renewal", "renew_splits"]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A split that a rank holds: what tells it from others, where it is, and of whom."""

    number: int
    channel: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Renewal:
    """The splits of before: what stands again on this rank, and why others do not, by number."""

    family: Family
    held: Mapping[int, Group]
    made: Mapping[int, tuple[_native.Group, WorldSpec]]
    lost: Mapping[int, str]

    def publish(self) -> None:
        """Let the groups of before go on with what was formed, or say why not."""
        for number, group in self.held.items():
            if number in self.made:
                engine, spec = self.made[number]
                group._renew(engine, spec, self.family)
            else:
                group._retire(Gone(f"{self.lost[number]}; make the split anew"))

    def close(self) -> None:
        """Give up what was formed."""
        for engine, _ in self.made.values():
            engine.close()


def judge(table: Sequence[Sequence[Row]]) -> tuple[list[Row], dict[int, str]]:
    """Tell the splits that all their ranks hold from those that one has closed or lost.

    Parameters
    ----------
    table : sequence of sequence of Row
        What each rank holds, by rank; the same everywhere.

    Returns
    -------
    list of Row, and dict of int to str
        In the order of their numbers; why not, by number.

    Examples
    --------
    >>> pair, other = Row(7, 1, (0, 2)), Row(5, 2, (0, 1))
    >>> judge([[pair, other], [], [pair]])
    ([Row(number=7, channel=1, members=(0, 2))], {5: 'rank 1 has closed or lost this split'})
    """
    holders: dict[int, dict[int, Row]] = {}
    for rank, rows in enumerate(table):
        for row in rows:
            holders.setdefault(row.number, {})[rank] = row
    standing, lost = [], {}
    for number, by_rank in sorted(holders.items()):
        row = next(iter(by_rank.values()))
        away = [member for member in row.members if by_rank.get(member) != row]
        if away:
            have = "has" if len(away) == 1 else "have"
            lost[number] = f"{name_ranks(away)} {have} closed or lost this split"
        else:
            standing.append(row)
    return standing, lost


def renew_splits(
    engine: _native.Group,
    spec: WorldSpec,
    meeting: Rendezvous,
    old: Family | None,
    new: Family,
    deadline: Deadline,
) -> Renewal:
    """Form the splits of before again; every rank of the new world calls it.

    The same numbers, and the same channels: two splits with a rank in common have different ones,
    and everybody has left the groups of the old epoch. So what is formed, and in which rounds,
    follows from the table of all ranks. A split that cannot be formed is given up, on all its
    ranks; the world stands all the same.

    Raises
    ------
    TimeoutError
        Not every rank came to a round in time.
    DistributedError
        The new world has failed meanwhile.
    """
    held = {} if old is None else old.held()
    mine = [Row(n, group._spec.channel, group._spec.members) for n, group in sorted(held.items())]
    parts = meeting.all_gather(msgspec.msgpack.encode(mine), timeout=deadline.remaining())
    standing, lost = judge([msgspec.msgpack.decode(part, type=list[Row]) for part in parts])
    made: dict[int, tuple[_native.Group, WorldSpec]] = {}
    renewal = Renewal(new, held, made, lost)  # type: ignore[arg-type]  # holders are groups
    if not standing:
        return renewal
    problems: dict[int, str] = {}
    try:
        for channel in sorted({row.channel for row in standing}):
            rows = [row for row in standing if row.channel == channel]
            row = next((row for row in rows if spec.rank in row.members), None)
            part = None if row is None else Part(row.members, channel, row.number)
            own = None if part is None else spec_of(spec, part)
            try:
                group = _form(rows, meeting, engine, spec, own, part, new, deadline)
            except (DistributedError, OSError, ValueError) as error:
                if engine.failure is not None:
                    raise
                if row is not None:
                    problems[row.number] = str(error)
                continue
            if own is not None and group is not None:
                made[own.number] = group, own
        said = meeting.all_gather(msgspec.msgpack.encode(problems), timeout=deadline.remaining())
    except BaseException:
        renewal.close()
        raise
    for rank, text in enumerate(said):
        for number, why in msgspec.msgpack.decode(text, type=dict[int, str]).items():
            lost.setdefault(number, f"this split could not be formed again: rank {rank}: {why}")
            if number in made:
                made.pop(number)[0].close()
    return renewal


def _form(
    rows: Sequence[Row],
    meeting: Rendezvous,
    engine: _native.Group,
    spec: WorldSpec,
    own: WorldSpec | None,
    part: Part | None,
    family: Family,
    deadline: Deadline,
) -> _native.Group | None:
    """Form the splits of one channel, which have no rank in common: all at once."""
    hosts = native_hosts(spec)
    if all(len({hosts[member] for member in row.members}) == 1 for row in rows):
        nothing: Links = {lane: {} for lane in Lane}
        return None if own is None else family.make(own, nothing)
    left = deadline.remaining()
    # Half of the time: what remains is for telling each other how it went.
    timeout = CONNECT_LIMIT_S if left is None else min(CONNECT_LIMIT_S, left / 2)
    check = abort_check(engine, spec)
    return form_part(meeting, spec, own, part, family, check=check, timeout=timeout)
