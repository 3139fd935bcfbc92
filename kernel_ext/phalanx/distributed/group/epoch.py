"""Form the groups of an epoch, or a group of one.

The supervisor has named the new epoch and its ranks. In three steps, all ranks tell which splits
they hold, they connect, and they tell whether that worked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from phalanx import _native
from phalanx.errors import CollectiveTimeout

from ..connect.rendezvous import Rendezvous, name_ranks
from ..control import Deadline
from ..world_spec import MappedHostMemory, WorldSpec
from .formation import (
    CONNECT_LIMIT_S,
    Part,
    exchange,
    form_part,
    gather_problems,
    try_part,
)
from .group import Group
from .registry import ADAPTERS, GroupRegistry, Membership, Report

_log = logging.getLogger(__name__)


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """Share of a rank in the first round of an epoch.

    ``splits`` are the splits that it holds, with ranks of the world. ``master`` is of rank 0: the
    port and address at which torch and JAX meet in this epoch.
    """

    splits: tuple[Part, ...]
    master: str


def next_epoch(
    spec: WorldSpec,
    meeting: Rendezvous,
    memory: MappedHostMemory,
    group: Group | None,
    *,
    deadline: Deadline,
    report: Report | None = None,
    master: str = "",
) -> tuple[Group, str]:
    """Form the world's group of an epoch, and its splits again.

    Every rank of the epoch calls this. ``group`` is the world's previous group: it stays one object
    and gets the new engine. A failed call leaves ``group`` as it was, except that its epoch is
    over. Returns the group and the ``master`` of rank 0. Raises `CollectiveTimeout` also while a
    thread of this rank is still inside the old epoch.

    Splits keep their numbers and channels. Channels cannot conflict: two splits with a common rank
    have different channels, and all ranks have left the old groups. So the table of all ranks
    determines the splits and the order of rounds. A split that cannot be formed is given up on all
    its ranks.
    """
    old = None if group is None else group._current.registry
    held: Mapping[int, Group] = {}
    if old is not None:
        old.settle_epoch(deadline)
        held = old.held()
    registry = GroupRegistry(spec, memory, report)
    formed: dict[int, Membership] = {}
    try:
        mine = tuple(
            Part(number, split._current.spec.channel, split._current.spec.members)
            for number, split in sorted(held.items())
        )
        arrivals = exchange(meeting, Arrival(mine, master), Arrival, deadline.remaining())
        standing, lost = judge(
            {member: its.splits for member, its in zip(spec.members, arrivals, strict=True)}
        )
        every_rank = Part(0, 0, tuple(range(spec.size)))
        formed |= form_part(meeting, spec, [every_rank], registry, None, deadline.remaining())
        problems = _form_splits(standing, formed, meeting, spec, registry, deadline)
        problems = gather_problems(meeting, spec, problems, deadline.remaining())
    except BaseException as error:
        for its in formed.values():
            its.engine.close()
        if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise CollectiveTimeout(str(error)) from error
        raise
    _log.debug("rank %d of %d: epoch %d stands", spec.rank, spec.size, spec.epoch)
    for number, why in problems.items():
        lost[number] = f"this split could not be formed again: {why}"
        if number in formed:
            formed.pop(number).engine.close()
    world = formed.pop(0)
    if group is None:
        group = Group(world)
    else:
        group._enter(world)
    for number, its in formed.items():
        if number in held:
            held[number]._enter(its)
        else:
            group._adapters_group = Group(its, (0, -1))
    if old is not None:
        old.end(lost)
    return group, arrivals[0].master


def judge(table: Mapping[int, Sequence[Part]]) -> tuple[list[Part], dict[int, str]]:
    """Separate splits that all their ranks hold from lost ones.

    ``table`` has the splits that each rank holds, by rank in the world. Returns the held splits by
    number, and why each other split is lost. The adapters' split is formed on all ranks, also on
    those that do not hold it.

    Examples
    --------
    >>> pair, other = Part(7, 1, (0, 2)), Part(5, 2, (0, 1))
    >>> standing, lost = judge({0: [pair, other], 1: [], 2: [pair]})
    >>> [part.number for part in standing], lost
    ([7], {5: 'rank 1 has closed or lost this split'})
    >>> judge({0: [Part(ADAPTERS, 3, (0, 1))], 1: []})[0][0].ranks
    (0, 1)
    """
    holders: dict[int, dict[int, Part]] = {}
    for rank, parts in table.items():
        for part in parts:
            holders.setdefault(part.number, {})[rank] = part
    standing, lost = [], {}
    for number, by_rank in sorted(holders.items()):
        part = next(iter(by_rank.values()))
        away = [rank for rank in part.ranks if by_rank.get(rank) != part]
        if number == ADAPTERS:
            others = [its for rank in table.keys() - by_rank.keys() for its in table[rank]]
            if any(its.channel == part.channel for its in others):
                lost[number] = "another split has taken its channel"
            else:
                standing.append(Part(number, part.channel, tuple(sorted(table))))
        elif away:
            have = "has" if len(away) == 1 else "have"
            lost[number] = f"{name_ranks(away)} {have} closed or lost this split"
        else:
            standing.append(part)
    return standing, lost


def _form_splits(
    standing: Sequence[Part],
    formed: dict[int, Membership],
    meeting: Rendezvous,
    spec: WorldSpec,
    registry: GroupRegistry,
    deadline: Deadline,
) -> dict[int, str]:
    """Form splits again; return the problems of this rank.

    The problems are by number of the split. Splits of one channel share no rank and are formed at
    once.
    """
    # From here on use the ranks of the new world, which may have fewer ranks.
    here = {member: rank for rank, member in enumerate(spec.members)}
    world = formed[0].engine
    problems: dict[int, str] = {}
    for channel in sorted({part.channel for part in standing}):
        parts = [
            Part(part.number, channel, tuple(here[member] for member in part.ranks))
            for part in standing
            if part.channel == channel
        ]
        left = deadline.remaining()
        # Half of the time: the other half is for exchanging the results.
        timeout = CONNECT_LIMIT_S if left is None else min(CONNECT_LIMIT_S, left / 2)
        made, problem = try_part(meeting, spec, parts, registry, world, timeout)
        formed |= made
        problems |= problem
    return problems


def group_of_one() -> Group:
    """Make a group with one rank, for a process in no world."""
    spec = WorldSpec(0, (0,), 1, workspace="", key=b"", hosts=(0,), slots=(0,), host_names=("",))
    return Group(Membership(_native.Group(rank=0, size=1, epoch=spec.epoch, hosts=(0,)), spec))
