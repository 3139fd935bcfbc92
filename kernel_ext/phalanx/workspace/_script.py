"""The client's side of a script's ranks: start them, take their output, give them input.

It speaks with the root supervisor and knows nothing of terminals, labels and exit codes.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, BootProgress, GetStacks, Hello, Notice, StacksAre
from phalanx.protocol.scripts import (
    WINDOW_COST,
    AllEnded,
    Bye,
    FromScriptRoot,
    Input,
    InputCut,
    InputTaken,
    NotStarted,
    Output,
    OutputTaken,
    RankEnded,
    ScriptOptions,
    Started,
    ToScriptRoot,
    cost,
)
from phalanx.supervisor import launch_root

from ._io import SocketThread
from ._job import Job
from ._start import SILENCE_S, checked_options, starting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RootGone", "Script", "ScriptEvent", "Woken", "script_options"]

LAST_WORD_S = 0.5  # of a supervisor that has ended: its words may be heard later than its end
CLOSE_S = 2.0  # design.md section 5: the supervisor needs half a second at most


def script_options(boot: BootOptions, job: Job, grace_s: float, log_dir: str = "") -> ScriptOptions:
    """Put together what a script's root reads first."""
    return ScriptOptions(
        boot,
        tuple(job.command),
        dict(job.env),
        grace_s,
        log_dir,
        tuple(job.words),
        job.is_script_checked,
    )


class RootGone:
    """The supervisor has died; its ranks died with it."""


class Woken:
    """Somebody called `Script.wake`."""


ScriptEvent = (
    BootProgress
    | Started
    | NotStarted
    | Output
    | InputCut
    | StacksAre
    | Notice
    | RankEnded
    | AllEnded
    | RootGone
    | Woken
)


class Script:
    """A command that runs once per rank, under a supervisor of its own.

    Parameters
    ----------
    job : Job
        What to run, and where.
    transport : {"any", "tcp"}
        As in `Workspace.start`.
    grace_s : float
        Between a signal to a rank and the next, harder one.
    quiet_s : float
        How long an operation may last before it is told of (a `Notice`).
    silence_s : float
        Without a sign of life for so long, a rank is taken for frozen.

    Notes
    -----
    `next` is for one thread; the other methods are for any.
    """

    def __init__(
        self,
        job: Job,
        *,
        transport: str = "any",
        grace_s: float = 5.0,
        quiet_s: float = 10.0,
        silence_s: float = SILENCE_S,
    ) -> None:
        checked = checked_options(job.at.ranks, None, 0.0, silence_s, transport)
        public_key, secret_key = zmq.curve_keypair()
        boot = BootOptions(
            name=checked.name,
            ranks=checked.ranks,
            client_pid=os.getpid(),
            client_public_key=public_key,
            transport=checked.transport,
            linger_s=0.0,
            silence_s=checked.silence_s,
            cwd=job.cwd,
            quiet_s=quiet_s,
            hosts=job.at.hosts,
            remote=job.at.remote,
        )
        options = script_options(boot, job, grace_s)
        self._events: queue.SimpleQueue[ScriptEvent] = queue.SimpleQueue()
        self._untold: dict[tuple[int, str], int] = {}  # cost of output that is done with
        self._input_room = threading.Condition()
        self._input_nbytes = WINDOW_COST  # that may be sent now; the condition's lock guards it
        self._closed = threading.Event()
        self._n_started = 0
        self._decoder = msgspec.msgpack.Decoder(FromScriptRoot)
        with starting(), ExitStack() as stack:
            self._root = launch_root(options)
            stack.callback(self._root.close, 0.0)
            self._thread = SocketThread("phalanx-script")
            stack.callback(self._thread.close)
            self._connect(public_key, secret_key)
            stack.pop_all()

    def _connect(self, public_key: bytes, secret_key: bytes) -> None:
        def configure(sock: zmq.Socket[bytes]) -> None:
            sock.curve_serverkey = self._root.address.public_key
            sock.curve_publickey, sock.curve_secretkey = public_key, secret_key

        self._socket = self._thread.socket(
            zmq.DEALER, self._root.address.endpoint, self._receive, configure=configure
        )
        threading.Thread(target=self._watch_root, name="phalanx-root", daemon=True).start()
        self._send(Hello(phalanx.__version__))

    @property
    def root_pid(self) -> int:
        """Process id of the supervisor."""
        return self._root.pid

    def next(self, timeout_s: float | None = None) -> ScriptEvent | None:
        """Wait for the next event; None when the time is over."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wake(self) -> None:
        """Let `next` return a `Woken`; also from a signal handler."""
        self._events.put(Woken())

    def taken(self, output: Output) -> None:
        """Say that this output is done with: only then may its rank print more."""
        key = output.rank, output.stream
        amount = self._untold.pop(key, 0) + cost(output.data)
        if amount < WINDOW_COST // 4:
            self._untold[key] = amount  # told with the next: a small print costs no answer
        else:
            self._send(OutputTaken(*key, amount))

    def input(self, data: bytes) -> None:
        """Give input to all ranks; no bytes are its end. Waits while none of them takes more."""
        with self._input_room:
            self._input_room.wait_for(lambda: self._input_nbytes > 0)
            self._input_nbytes -= len(data)
        self._send(Input(data))

    def ask_stacks(self) -> None:
        """Ask where the ranks are; a `StacksAre` comes."""
        self._send(GetStacks(0, tuple(range(self._n_started))))

    def signal(self, number: signal.Signals) -> None:
        """End the ranks: politely, or, told a second time, at once; also from a signal handler."""
        self._root.signal(number)

    def close(self) -> None:
        """End everything; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._send(Bye())
        self._root.close(CLOSE_S)
        self._thread.close()

    def __enter__(self) -> Self:
        """Use it for a while; `close` follows."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        self.close()

    def failure(self) -> DistributedError:
        """What to say of a supervisor that is gone."""
        said = self._root.log_tail()
        return DistributedError(f"the supervisor is gone{': ' + said if said else ''}")

    def _watch_root(self) -> None:
        self._root.wait()
        self._closed.wait(LAST_WORD_S)
        self._events.put(RootGone())

    def _send(self, message: ToScriptRoot) -> None:
        self._thread.send(self._socket, [msgspec.msgpack.encode(message)])

    def _receive(self, frames: list[bytes]) -> None:
        message: FromScriptRoot = self._decoder.decode(frames[-1])
        if isinstance(message, InputTaken):
            with self._input_room:
                self._input_nbytes += message.nbytes
                self._input_room.notify()
            return
        if isinstance(message, Started):
            self._n_started = len(message.pids)
        self._events.put(message)
