"""Split a group, and form its splits again in a new epoch.

A split is an operation of the parent group: ranks exchange all messages through the parent's
engine. In a new epoch, `renew_splits` runs after the world's group is formed and before it is used;
`Renewal.publish` then updates the public groups.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError

from ..connect.connector import Links, connect_links
from ..connect.handshake import Identity, LinkPurpose
from ..connect.rendezvous import Rendezvous, name_ranks
from ..control import Deadline
from ..world_spec import WorldSpec, abort_error, check_color, link_peers, native_hosts
from .registry import GroupRegistry, RetiredEngine

if TYPE_CHECKING:
    from .group import Group

CONNECT_LIMIT_S = 30.0  # as for joining a world
_NO_COLOR = -1
_FIELDS = 5
_WORD = 8
# If two threads of a rank split two groups, one thread must retry. Ranks may choose different
# threads, so each thread waits for a random time to let the other go first.
_RETRY_S = 0.002


class GroupRendezvous:
    """Rendezvous of ranks that have a group; error texts say split."""

    def __init__(self, engine: _native.Group) -> None:
        self._engine = engine

    @property
    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self._engine.size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`; a timeout ends the group's epoch."""
        try:
            lengths = self.exchange([len(data)], timeout)[:, 0].tolist()
            width = -(-max(lengths) // _WORD)
            words = np.frombuffer(data.ljust(width * _WORD, b"\0"), np.int64)
            rows = self.exchange(words, timeout)
        except CollectiveTimeout as error:
            msg = f"not every rank came to the rendezvous: {error}"
            raise TimeoutError(msg) from error
        except DistributedError as error:
            if type(error) is not DistributedError:
                raise
            msg = f"the rendezvous can never be complete: {error}"
            raise DistributedError(msg) from error
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def exchange(
        self, row: Sequence[int] | np.ndarray, timeout: float | None = None
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Send a row of numbers and return the rows of all ranks."""
        mine = np.ascontiguousarray(row, np.int64)
        rows = np.empty((self.size, mine.size), np.int64)
        self._engine.split(mine, rows.reshape(-1), timeout)
        return rows


@dataclass(frozen=True)
class Part:
    """Planned group: ranks of the parent in their new order."""

    ranks: tuple[int, ...]
    channel: int | None
    number: int
    is_busy: bool = False  # a rank offered nothing: another thread of it splits too


def _plan(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> dict[int, Part]:
    """Compute the parts by color, identically on every rank.

    Examples
    --------
    >>> rows = np.array([[7, -1, 0b1100, 0, 5], [7, 0, 0b0110, 0, 6], [-1, -1, 2, 0, 7]])
    >>> _plan(rows)
    {7: Part(ranks=(0, 1), channel=2, number=5, is_busy=False)}
    """
    parts = {}
    for color in sorted({int(color) for color in rows[:, 0] if color >= 0}):
        ranks = [rank for rank in range(len(rows)) if rows[rank, 0] == color]
        ranks.sort(key=lambda rank: (int(rows[rank, 1]) if rows[rank, 1] >= 0 else rank, rank))
        common = int(np.bitwise_and.reduce(rows[ranks, 2]))
        channel = (common & -common).bit_length() - 1 if common else None
        number = int(rows[min(ranks), 4])
        parts[color] = Part(tuple(ranks), channel, number, bool(rows[ranks, 3].any()))
    return parts


def _agree(
    meeting: GroupRendezvous, registry: GroupRegistry, color: int, key: int
) -> dict[int, Part]:
    """Agree on the parts and their channels; take this rank's channel."""
    while True:
        offered = registry.offer()
        taken = None
        try:
            mask = sum(1 << channel for channel in offered or ())
            number = secrets.randbits(62) + 1
            parts = _plan(meeting.exchange([color, key, mask, offered is None, number]))
            lacking = [part for part in parts.values() if part.channel is None]
            if not lacking and color >= 0:
                taken = parts[color].channel
        finally:
            if offered is not None:
                registry.settle(taken)
        if not lacking:
            return parts
        if not any(part.is_busy for part in lacking):
            most = _native.Group.CHANNELS - 1
            msg = (
                "no channel is free on all ranks of a new group: a process can be in at most "
                f"{most} splits of a world at a time; close splits that are not needed any more"
            )
            raise DistributedError(msg)
        time.sleep(random.uniform(0, _RETRY_S))  # noqa: S311  # no secret: only who goes first


def split_group(
    engine: _native.Group,
    spec: WorldSpec,
    registry: GroupRegistry,
    color: int | None,
    key: int,
) -> tuple[_native.Group, WorldSpec] | None:
    """Form this rank's part of a group; every rank must call this.

    Returns None for a rank that gave no color. If no channel is free or a part could not be formed,
    every rank raises the same `DistributedError` and the parent stays usable. Any other error is a
    failure of the parent.
    """
    new_color, new_key = check_color(color, key)
    meeting = GroupRendezvous(engine)
    part, new, made = None, None, None
    try:
        part = _agree(meeting, registry, new_color, new_key).get(new_color)
        if part is not None:
            new = spec_of(spec, part)
        problem = b""
        try:
            check = abort_check(engine, registry.world)
            made = form_part(
                meeting, spec, new, part, registry, check=check, timeout=CONNECT_LIMIT_S
            )
        except (DistributedError, OSError, ValueError) as error:
            problem = str(error).encode()  # sent to all ranks, so that none waits for this one
        said = meeting.all_gather(problem, timeout=None)
    except BaseException as error:
        if not isinstance(error, DistributedError):  # a DistributedError is raised on all ranks
            me = spec.me
            if isinstance(error, KeyboardInterrupt):
                engine.abort(_native.ABORT_INTERRUPTED, me, f"rank {me} was interrupted in split")
            else:
                engine.abort(_native.ABORT_ERROR, me, f"rank {me} failed in split: {error}")
        _drop(registry, new, made)
        raise
    found = {spec.world_rank(rank): text.decode() for rank, text in enumerate(said) if text}
    if found:
        _drop(registry, new, made)
        rank, text = next(iter(found.items()))
        text = text.removeprefix(f"rank {rank}: ")
        msg = f"the group could not be split: rank {rank}: {text}"
        raise DistributedError(msg)
    return None if made is None or new is None else (made, new)


def _drop(registry: GroupRegistry, new: WorldSpec | None, made: _native.Group | None) -> None:
    """Give back the channel of a part that was not formed."""
    if new is None:
        return
    if made is None:
        registry.settle_back(new.channel)
    else:
        made.close()
        registry.leave(new, made)


def spec_of(spec: WorldSpec, part: Part) -> WorldSpec:
    """Describe a part of a group for this rank."""
    return spec.part(part.ranks, cast("int", part.channel), part.number)


def form_part(
    meeting: Rendezvous,
    spec: WorldSpec,
    new: WorldSpec | None,
    part: Part | None,
    registry: GroupRegistry,
    *,
    check: Callable[[], None],
    timeout: float,
) -> _native.Group | None:
    """Connect the ranks of each part and make this rank's native group.

    Only ranks that share no arena are connected. Every rank of the group that ``spec`` describes
    must call this. ``part`` and ``new`` describe the part of this rank, if any.
    """
    peers: dict[LinkPurpose, tuple[int, ...]] = dict.fromkeys(LinkPurpose, ())
    name = "none"
    if new is not None and part is not None:
        wanted = link_peers(new)
        peers = {
            purpose: tuple(part.ranks[peer] for peer in wanted[purpose]) for purpose in LinkPurpose
        }
        name = f"{part.number:x} in channel {part.channel}"
    links = connect_links(
        # The identity is part of the proof: a socket of one split can never become one of another.
        Identity(f"{spec.workspace}, split {name}", spec.epoch, spec.rank, spec.key),
        peers,
        spec.addresses,
        meeting,
        timeout=timeout,
        host_names=spec.rank_host_names(),
        check=check,
        names=spec.members,
        striping=spec.striping,
        path_health=registry.memory.path_health,
    )
    if new is None or part is None:
        return None
    own = {
        purpose: {part.ranks.index(peer): socks for peer, socks in links[purpose].items()}
        for purpose in LinkPurpose
    }
    return registry.make(new, own)


def abort_check(engine: _native.Group, world: WorldSpec) -> Callable[[], None]:
    """Return a function that raises the group's failure, if it failed."""

    def check() -> None:
        failure = engine.failure
        if failure is not None:
            raise abort_error(world, *failure)

    return check


class Row(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Split that a rank holds: its number, channel and members.

    ``is_adapters``: this split of all ranks belongs to the adapters of frameworks. It is formed on
    all ranks again, also on those that do not hold it.
    """

    number: int
    channel: int
    members: tuple[int, ...]
    is_adapters: bool = False


@dataclass(frozen=True)
class Renewal:
    """Splits of the last epoch: formed again or lost, by number.

    ``lost`` has the reason why a split was not formed again. ``adapters`` is the number of the
    adapters' split, if any.
    """

    registry: GroupRegistry
    held: Mapping[int, Group]
    made: Mapping[int, tuple[_native.Group, WorldSpec]]
    lost: Mapping[int, str]
    adapters: int | None = None

    def publish(self, world: Group) -> None:
        """Give each split its new engine, or retire it with the reason."""
        for number, group in self.held.items():
            if number in self.made:
                engine, spec = self.made[number]
                group._renew(engine, spec, self.registry)
            else:
                group._retire(RetiredEngine(f"{self.lost[number]}; make the split anew"))
        if self.adapters is not None and self.adapters in self.made:
            if self.adapters not in self.held:
                world._keep_adapters_group(*self.made[self.adapters], self.registry)
            self.registry.adapters = self.adapters

    def close(self) -> None:
        """Close the groups that were formed."""
        for engine, _ in self.made.values():
            engine.close()


def judge(table: Mapping[int, Sequence[Row]]) -> tuple[list[Row], dict[int, str]]:
    """Separate splits that all their ranks hold from lost ones.

    ``table`` has the splits that each rank holds, by rank in the world. Returns the held splits by
    number, and why each other split is lost.

    Examples
    --------
    >>> pair, other = Row(7, 1, (0, 2)), Row(5, 2, (0, 1))
    >>> standing, lost = judge({0: [pair, other], 1: [], 2: [pair]})
    >>> [row.number for row in standing], lost
    ([7], {5: 'rank 1 has closed or lost this split'})

    The adapters' split is formed on all ranks:

    >>> judge({0: [Row(9, 3, (0, 1), True)], 1: []})[0][0].members
    (0, 1)
    """
    holders: dict[int, dict[int, Row]] = {}
    for rank, rows in table.items():
        for row in rows:
            holders.setdefault(row.number, {})[rank] = row
    standing, lost = [], {}
    every = (row for rows in table.values() for row in rows if row.is_adapters)
    adapters = min(every, key=lambda row: row.number, default=None)
    if adapters is not None:
        holding = holders.pop(adapters.number)
        if any(
            row.channel == adapters.channel
            for rank, rows in table.items()
            if rank not in holding
            for row in rows
        ):
            lost[adapters.number] = "another split has taken its channel"
        else:
            standing.append(msgspec.structs.replace(adapters, members=tuple(sorted(table))))
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
    old: GroupRegistry | None,
    new: GroupRegistry,
    deadline: Deadline,
) -> Renewal:
    """Form the splits of the last epoch again; every rank calls this.

    Splits keep their numbers and channels. Channels cannot conflict: two splits with a common rank
    have different channels, and all ranks have left the old groups. So the table of all ranks
    determines the splits and the order of rounds. A split that cannot be formed is given up on all
    its ranks.
    """
    held = {} if old is None else old.held()
    adapters = None if old is None else old.adapters
    mine = [
        Row(n, group._spec.channel, group._spec.members, n == adapters)
        for n, group in sorted(held.items())
    ]
    parts = meeting.all_gather(msgspec.msgpack.encode(mine), timeout=deadline.remaining())
    held_by = [msgspec.msgpack.decode(part, type=list[Row]) for part in parts]
    standing, lost = judge({spec.world_rank(rank): rows for rank, rows in enumerate(held_by)})
    # From here on use the ranks of the new world, which may have fewer ranks.
    here = {spec.world_rank(rank): rank for rank in range(spec.size)}
    standing = [
        msgspec.structs.replace(row, members=tuple(here[member] for member in row.members))
        for row in standing
    ]
    adapters = next((row.number for row in standing if row.is_adapters), None)
    made: dict[int, tuple[_native.Group, WorldSpec]] = {}
    renewal = Renewal(new, held, made, lost, adapters)  # type: ignore[arg-type]  # groups
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
            who = f"rank {spec.world_rank(rank)}"
            lost.setdefault(number, f"this split could not be formed again: {who}: {why}")
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
    registry: GroupRegistry,
    deadline: Deadline,
) -> _native.Group | None:
    """Form all splits of one channel at once; they share no rank."""
    hosts = native_hosts(spec)
    if all(len({hosts[member] for member in row.members}) == 1 for row in rows):
        nothing: Links = {purpose: {} for purpose in LinkPurpose}
        return None if own is None else registry.make(own, nothing)
    left = deadline.remaining()
    # Half of the time: the other half is for exchanging the results.
    timeout = CONNECT_LIMIT_S if left is None else min(CONNECT_LIMIT_S, left / 2)
    check = abort_check(engine, spec)
    return form_part(meeting, spec, own, part, registry, check=check, timeout=timeout)
