"""Handle the loss of a rank.

1. `LocalHost` sees that the process of a rank has ended, and sends `RankGone`. `HostSet.hear` records the exit status
   and calls the root's ``on_lost``. A host that is lost loses each of its ranks in the same way.
2. `RankLosses.mark_lost` ends the epoch: the control page of every host gets the abort, which frees the ranks that
   wait there, and `WorldState.lose` refuses the ranks that wait in the root.
3. `RankDirectory` keeps the death and tells its subscribers: the cell that runs goes on without the rank.
4. `WorkspaceLosses` tells the client (`RankLost`). With ``--auto-restart`` it has `Restarts` start a new process.
   `ScriptRoot` starts the rank again, goes on without it or ends the others.

A rank that lives can also make others wait for ever: it is frozen, or it does not join their operation. Then only the
waiting ranks are freed (`RankLosses.on_frozen`, `RankLosses.on_impossible_wait`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from phalanx.distributed import AbortKind
from phalanx.protocol import BootFailed, BootOptions, Notice, RankLost
from phalanx.protocol.host import AbortEpoch, GiveBack

from ..health.impossible_waits import ImpossibleWait
from ..hosts.host_set import HostSet
from ..world.membership import MembershipCoordinator
from ..world.state import WorldState

if TYPE_CHECKING:
    from .clients import Clients
    from .ending import RankEnding
    from .replacement import Restarts

STOPPING = "the workspace is being stopped"


class RankLosses:
    """Free the ranks that wait for a rank which never comes."""

    def __init__(self, world: WorldState, host: HostSet, membership: MembershipCoordinator) -> None:
        self._world = world
        self._host = host
        self._membership = membership

    def mark_lost(
        self, rank: int, reason: str, consequence: str = "", *, will_return: bool = False
    ) -> None:
        """Free those that wait for a dead rank; record its death.

        The arguments are those of `WorldState.lose`.
        """
        said = f"{reason}; {consequence}" if consequence else reason
        self._host.take(AbortEpoch(self._world.epoch, AbortKind.RANK_FAILURE, rank, said))
        answers = self._world.lose(rank, reason, consequence, will_return=will_return)
        self._membership.send_all(answers)
        # A rank that is being ended may still save arrays.
        if self._host.statuses[rank] is not None:
            self._host.take(GiveBack(rank))

    def free_waiters(self, rank: int, reason: str) -> None:
        """Free the ranks that wait in this epoch for ``rank``.

        It never comes: ranks that begin to wait later are freed as well.
        """
        self._membership.abort(AbortKind.RANK_FAILURE, reason, rank)

    def on_frozen(self, rank: int, reason: str, awaited: Collection[int]) -> None:
        """Free the ranks that may wait for a frozen one.

        `HeartbeatMonitor` finds it, and calls this repeatedly while the rank has no heartbeat.
        ``awaited``: the ranks that others may wait for.
        """
        if rank in awaited and len(awaited) > 1:
            self.free_waiters(rank, reason)

    def on_impossible_wait(self, found: ImpossibleWait) -> None:
        """Free the ranks that wait for a rank that joins no operation."""
        reason = f"{self._world.absence_reason(found.missing)}; {found}"
        self.free_waiters(found.missing, reason)


class WorkspaceLosses:
    """Decide what follows in a workspace when a rank ends.

    Parameters
    ----------
    end : callable
        Ends the workspace: a rank could not be started.
    spawn_task : callable
        Runs a coroutine as a task of the root, cancelled when the root ends.
    """

    def __init__(
        self,
        options: BootOptions,
        world: WorldState,
        host: HostSet,
        losses: RankLosses,
        restarts: Restarts,
        rank_ending: RankEnding,
        clients: Clients,
        end: Callable[[], None],
        spawn_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._is_auto_restart = options.auto_restart
        self._world = world
        self._host = host
        self._losses = losses
        self._restarts = restarts
        self._rank_ending = rank_ending
        self._clients = clients
        self._end = end
        self._spawn_task = spawn_task

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Handle the end of a rank's process."""
        self._rank_ending.on_lost()
        if self._clients.is_stopping:
            self._losses.free_waiters(rank, f"has ended: {STOPPING}")
        elif self._restarts.on_lost(rank, reason, tail):
            pass  # a restart has ended it, or has started it in vain
        elif self._world.ranks.are_ready:
            self._lose(rank, reason, tail)
        else:
            self._fail_boot(rank, reason, tail)

    def _fail_boot(self, rank: int, reason: str, tail: str) -> None:
        self._losses.mark_lost(rank, reason)
        when = "" if "could not be started" in reason else " while starting"
        self._clients.tell(BootFailed(f"rank {rank} {reason}{when}\n{tail}".rstrip()))
        self._end()

    def _lose(self, rank: int, reason: str, tail: str) -> None:
        """Free the other ranks, tell the client, start a successor if wanted."""
        will_return, consequence = self._is_auto_restart, ""
        if will_return:
            consequence = self._restarts.deaths.add(rank, asyncio.get_running_loop().time())
            will_return = not consequence
        self._losses.mark_lost(rank, reason, consequence)
        host, said = self._host.layout.name_of(rank), self._world.dead[rank]
        self._clients.tell(RankLost(rank, host, said, tail, will_return))
        if will_return and self._restarts.claim(rank):
            self._spawn_task(self._replace(rank))

    async def _replace(self, rank: int) -> None:
        if problem := await self._restarts.replace(rank):
            self._clients.tell(Notice(f"rank {rank} could not be replaced: {problem}"))
