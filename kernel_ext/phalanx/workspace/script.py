"""Start a script's ranks, read their output, send input.

`Script` stays connected to the ranks' root supervisor. The command line (`phalanx launch`) uses it.
"""

from __future__ import annotations

import math
import queue
import signal
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import (
    GRACE_S,
    AskRoot,
    BootProgress,
    GetStacks,
    Notice,
    RootAnswered,
    StacksAre,
)
from phalanx.protocol.host import CommandInput, CommandOutput, OutputDone
from phalanx.protocol.scripts import (
    WINDOW_COST,
    AllEnded,
    FromScriptRoot,
    InputCut,
    InputTaken,
    NotStarted,
    RankEnded,
    ScriptOptions,
    Started,
    ToScriptRoot,
    cost,
)
from phalanx.supervisor import launch_root

from .connection.transport import RootLink, SocketThread
from .options import HEARTBEAT_TIMEOUT_S, Job, checked_options, starting

if TYPE_CHECKING:
    from typing_extensions import Self

_ALIVE = 1  # request id of the liveness check: only the fact of an answer counts
# A root that leaves this many requests in a row unanswered counts as frozen: after 30 s, or after
# the grace time plus 5 s while it ends its ranks. Several requests, as this process itself may have
# been stopped meanwhile.
ASKS = 3
ASK_EVERY_S = 10.0
ENDING_S = 5.0
CLOSE_S = 2.0  # the supervisor needs at most 0.5 s


class RootGone:
    """Event: the supervisor has died, and its ranks with it."""


class RootSilent:
    """Event: the supervisor does not answer; it is stopped or hangs."""


class Woken:
    """Event: `Script.wake` was called."""


ScriptEvent = (
    BootProgress
    | Started
    | NotStarted
    | CommandOutput
    | InputCut
    | StacksAre
    | Notice
    | RankEnded
    | AllEnded
    | RootGone
    | RootSilent
    | Woken
)


class Script:
    """Runs a command once per rank, under a separate supervisor.

    Parameters
    ----------
    job : Job
        Command, hosts and ranks.
    transport : {"any", "tcp"}, optional
        As in `Workspace.start`.
    grace_s : float
        Seconds between a signal to a rank and the next, harder signal.
    slow_operation_s : float
        Seconds after which a running operation is reported (a `Notice`).
    heartbeat_timeout_s : float
        Seconds without a sign of life after which a rank counts as frozen.
    keep_going : bool
        If true, a rank that fails does not end the others.
    max_restarts : int
        How often failed ranks are started again, all ranks together.

    Notes
    -----
    Only one thread may call `next`; any thread may call the other methods.
    """

    def __init__(
        self,
        job: Job,
        *,
        transport: str | None = None,
        grace_s: float = GRACE_S,
        slow_operation_s: float = 10.0,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
        keep_going: bool = False,
        max_restarts: int = 0,
    ) -> None:
        boot = msgspec.structs.replace(
            checked_options(
                job.at.ranks,
                None,
                0.0,
                heartbeat_timeout_s,
                transport,
                hosts=job.at.hosts,
                remote=job.at.remote,
                grace_s=grace_s,
            ),
            cwd=job.cwd,
            slow_operation_s=slow_operation_s,
        )
        options = ScriptOptions(
            boot,
            tuple(job.command),
            dict(job.env),
            tuple(job.words),
            job.is_script_checked,
            keep_going,
            max_restarts,
        )
        self._events: queue.SimpleQueue[ScriptEvent] = queue.SimpleQueue()
        self._untold: dict[tuple[int, str], int] = {}  # cost of handled output not yet acked
        self._input_space = threading.Condition()
        self._input_nbytes = WINDOW_COST  # may be sent now; guarded by the condition's lock
        self._closed = threading.Event()
        self._n_started = 0
        self._why_broken = ""
        self._grace_s = grace_s
        self._ask_every_s = ASK_EVERY_S
        self._asks_at_s = time.monotonic() + self._ask_every_s
        self._n_unanswered = 0
        self._is_ending = self._is_silent = False
        with starting(), ExitStack() as stack:
            self._root = launch_root(options)
            stack.callback(self._root.abandon)
            self._thread = SocketThread("phalanx-script", self._on_broken)
            stack.callback(self._thread.close)
            self._link = RootLink(
                self._thread, self._root.sock, FromScriptRoot, self._receive, self._on_end
            )
            stack.pop_all()

    @property
    def root_pid(self) -> int:
        """Return the process id of the supervisor."""
        return self._root.pid

    def next(self, timeout_s: float | None = None) -> ScriptEvent | None:
        """Wait for the next event; return None after the timeout."""
        ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            until_s = min(ends_s, self._asks_at_s)
            try:
                return self._events.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                if time.monotonic() >= ends_s:
                    return None
            if time.monotonic() >= self._asks_at_s and self._is_root_silent():
                self._is_silent = True
                return RootSilent()

    def _is_root_silent(self) -> bool:
        """Return whether the root is silent; if not, send another request."""
        if self._n_unanswered >= ASKS:
            return True
        self._n_unanswered += 1
        self._asks_at_s = time.monotonic() + self._ask_every_s
        self._send(AskRoot(_ALIVE, GetStacks(())))  # of no ranks, so it is cheap
        return False

    def wake(self) -> None:
        """Make `next` return a `Woken`; may be called in a signal handler."""
        self._events.put(Woken())

    def taken(self, output: CommandOutput) -> None:
        """Ack handled output, so that the rank may print more."""
        key = output.rank, output.stream
        amount = self._untold.pop(key, 0) + cost(output.data)
        if amount < WINDOW_COST // 4:
            self._untold[key] = amount  # acked with a later output: a small print needs no ack
        else:
            self._send(OutputDone(*key, amount))

    def input(self, data: bytes) -> None:
        """Send input to all ranks; wait while no rank takes more.

        Empty bytes mark the end of the input.
        """
        with self._input_space:
            self._input_space.wait_for(lambda: self._input_nbytes > 0)
            self._input_nbytes -= len(data)
        self._send(CommandInput(data))

    def ask_stacks(self) -> None:
        """Request the ranks' stacks; the answer is a `StacksAre` event."""
        self._send(AskRoot(0, GetStacks(tuple(range(self._n_started)))))

    def forward(self, number: signal.Signals) -> None:
        """Send the ranks one of `USER_SIGNALS`.

        May be called in a signal handler.
        """
        self._root.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Signal the supervisor to end the ranks; a second call kills them.

        May be called in a signal handler.
        """
        self._root.signal(number)
        if not self._is_ending:
            self._is_ending = True
            self._ask_every_s = min(ASK_EVERY_S, (self._grace_s + ENDING_S) / ASKS)
            self._n_unanswered, self._asks_at_s = 0, 0.0
        self.wake()

    def close(self) -> None:
        """End the ranks and the supervisor; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._link.finish()
        self._root.close(0.0 if self._is_silent else CLOSE_S)
        self._thread.close()

    def __enter__(self) -> Self:
        """Return this object; `close` runs at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the ranks and the supervisor."""
        self.close()

    def failure(self) -> DistributedError:
        """Return the error for a dead, silent or unreachable supervisor."""
        if self._why_broken:
            return DistributedError(self._why_broken)
        if self._is_silent:
            waited_s = ASKS * self._ask_every_s
            msg = (
                f"the supervisor (process {self._root.pid}) has not answered for {waited_s:g} s, so "
                "it is killed, and its ranks with it; was it stopped?"
            )
            return DistributedError(msg)
        said = self._root.last_output()
        return DistributedError(f"the supervisor is gone{': ' + said if said else ''}")

    def _on_broken(self, text: str) -> None:
        self._why_broken = text
        self._events.put(RootGone())

    def _on_end(self) -> None:
        self._events.put(RootGone())

    def _send(self, message: ToScriptRoot) -> None:
        self._link.send(message)

    def _receive(self, message: FromScriptRoot) -> None:
        self._n_unanswered = 0
        if isinstance(message, RootAnswered):
            if message.id != _ALIVE and isinstance(message.answer, StacksAre):
                self._events.put(message.answer)
            return
        if isinstance(message, InputTaken):
            with self._input_space:
                self._input_nbytes += message.nbytes
                self._input_space.notify()
            return
        if isinstance(message, Started):
            self._n_started = len(message.pids)
        self._events.put(message)
