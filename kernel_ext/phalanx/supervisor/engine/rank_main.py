"""Run a rank's process: ipyparallel's engine with `RankKernel`.

The host supervisor is the parent. Over the inherited channel it tells the engine its rank and how
to reach the controller. The same program is the fork server of a host, which ranks and
the controller come from.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any

from ..processes.fork_server import serve_forks
from ..processes.sweeper import VARIABLE
from ..processes.system import die_with_parent
from . import controller_main
from .controller import CONTROLLER

_SHARED = (
    "ipyparallel.controller.app",
    "ipyparallel.engine.app",
    "phalanx.rank.kernel",
    "phalanx.supervisor.engine.curve",
)
CURVE_KEYS = ("curve_serverkey", "curve_publickey", "curve_secretkey")


def _load_ipykernel() -> None:
    """Load ipykernel without debugpy.

    It costs each rank 8 MB and 0.1 s. `VisualDebugger` loads it once a front end attaches, with
    options of its own.
    """
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # an import of it fails
    importlib.import_module("ipykernel.debugger")
    del sys.modules["debugpy"]


def _load_shared() -> None:
    """Import all that ranks and the controller import until they take cells."""
    for name in _SHARED:
        importlib.import_module(name)
    gc.freeze()  # so that no collection in a rank writes to the shared pages


def main() -> None:
    """Run one rank, or a fork server, until the supervisor ends it.

    The processes of a fork server are ranks and the controller. Its command line has the parent's
    pid, the descriptor of its orders, and a title. A rank's has the parent's pid, the reading ends
    of its output, and its output file.
    """
    parent_pid, *words = int(sys.argv[1]), *sys.argv[2:]
    die_with_parent(parent_pid)
    faulthandler.enable(all_threads=False)
    _load_ipykernel()
    if len(words) == 2:
        _load_shared()
        title, *words = serve_forks(parent_pid, int(words[0]), mark=VARIABLE)
        if title == CONTROLLER:
            controller_main.main(int(words[0]), *words[1:])
            return
        if "numpy.random" in sys.modules:  # before numpy 2; else all ranks drew the same numbers
            sys.modules["numpy.random"].seed()
    _run_rank(*map(int, words))


def _run_rank(stdout_fd: int, stderr_fd: int, shown_fd: int) -> None:
    from ipyparallel.engine import app
    from traitlets.config import Application

    from phalanx.distributed.bootstrap.supervised import supervisor_channel
    from phalanx.protocol import EngineReady, Register, Registered
    from phalanx.rank.cell import from_cell
    from phalanx.rank.kernel import RankKernel
    from phalanx.rank.output.error_text import describe_error
    from phalanx.rank.output.record import OutputRecord
    from phalanx.rank.output.streams import PublishThread, RankOutput, Stream

    from .curve import HandshakeCounter, keep_alive, prepare_heartbeat

    channel = supervisor_channel(is_rank=True)
    request = Register(channel.next_id(), os.getpid())
    answer = channel.request(request, request.id, timeout=None)
    if not isinstance(answer, Registered):
        msg = f"the supervisor answered with {answer}"
        raise TypeError(msg)
    rank, size, is_replacement = answer.rank, answer.size, answer.replaces

    class Engine(app.IPEngine):  # type: ignore[misc]
        """Engine that tells its supervisor when it takes cells."""

        is_ready = was_terminated = False
        shell_socket: Any = None
        handshakes: HandshakeCounter | None = None  # of the shell, which cells come through

        def start(self) -> None:
            """Run until the loop is stopped; raise what comes out of it."""
            self.loop.run_sync(self._start)

        async def complete_registration(self, *args: Any) -> None:
            await super().complete_registration(*args)
            # ipykernel looks here for the kernel when a cell runs `%matplotlib` or `%gui`.
            # ipyparallel registers the application only as ipykernel's.
            Application._instance = self.kernel_app
            # From here on output written to the descriptors (not through Python) comes back through
            # a pipe and is sent with its cell.
            assert isinstance(sys.stdout, Stream)
            assert isinstance(sys.stderr, Stream)
            output = RankOutput(self.kernel.session, OutputRecord(shown_fd))
            output.capture(sys.stdout, sys.stderr, stdout_fd, stderr_fd)
            self.kernel.serve(rank, size, channel, output)
            # The 73,000 objects that stay for good need not be scanned by each garbage collection
            # (36 ms of a core); IPython runs some at exit.
            gc.freeze()
            # Before, the controller would drop a cell, or what the cell prints.
            assert self.handshakes is not None
            await self.handshakes.wait()
            await asyncio.wrap_future(self.kernel.iopub_socket.subscribed)
            self.is_ready = True
            channel.notify(EngineReady())

        def init_connector(self) -> tuple[Any, Any]:
            connect, tunnel = super().init_connector()

            def connect_for_long(sock: Any, url: str, *args: Any, **named: Any) -> Any:
                if url.startswith("tcp://"):
                    keep_alive(sock, url)
                if sock is self.shell_socket:
                    self.handshakes = self.handshakes or HandshakeCounter(sock)
                    self.handshakes.expect()
                return connect(sock, url, *args, **named)

            return connect_for_long, tunnel

        async def register(self) -> None:
            if is_replacement:
                # The rank's number is free only once the controller has forgotten the previous
                # engine. On the same connection the unregistration is handled first.
                send = self.session.send

                def forget_first(stream: Any, kind: Any, *args: Any, **named: Any) -> Any:
                    self.session.send = send
                    send(stream, "unregistration_request", content={"id": rank})
                    return send(stream, kind, *args, **named)

                self.session.send = forget_first
            await super().register()

        def _signal_sigint(self, sig: int, frame: object) -> None:
            """Ignore SIGINT between cells; `InterruptGate` sends it to a running one."""

        def _signal_stop(self, sig: int, frame: object) -> None:
            if self.kernel is None or not self.kernel.is_serving:
                os._exit(0)
            self.was_terminated = True
            self.kernel.control_thread.io_loop.add_callback_from_signal(self.kernel.stops.end)

    app.Kernel = RankKernel
    app.IOPubThread = PublishThread
    app.Heart = prepare_heartbeat(app.Heart)
    engine = Engine(
        out_stream_factory=Stream,
        connection_info_env=json.dumps(answer.connection),
        # Passed explicitly, so that ipyparallel reads no keys from the user's environment.
        **{name: (answer.connection.get(name) or "").encode() for name in CURVE_KEYS},
    )
    engine.initialize(
        [
            f"--IPEngine.id={answer.rank}",
            "--IPEngine.enable_nanny=False",
            "--IPEngine.max_heartbeat_misses=0",
            # The supervisor has its own limit for a start (ipyparallel's: 5 s).
            "--IPEngine.timeout=60",
            "--log-level=50",
        ]
    )
    engine.ident = answer.engine
    _restore_signals_in_children(
        {
            signal.SIGTERM: (engine._signal_stop, signal.SIG_DFL),
            signal.SIGINT: (engine._signal_sigint, signal.default_int_handler),
        }
    )
    run = engine.start
    while True:
        problem = "code of a cell stopped the event loop; the rank goes on"
        try:
            run()
        except (OSError, MemoryError):
            raise
        except BaseException as error:
            if not engine.is_ready:
                raise
            # tornado raises these two when a loop is stopped before its work is done.
            if from_cell(error.__traceback__) or not isinstance(
                error, (TimeoutError, RuntimeError)
            ):
                text = "this came out of the event loop, and the rank goes on"
                problem = f"{text}\n{describe_error(error)}"
        if engine.kernel.is_ending or engine.kernel._shutdown_message is not None:
            break
        # Code of the user's that runs between cells, as a task, has stopped the loop or raised
        # SystemExit or KeyboardInterrupt, which asyncio hands on to here.
        if engine.loop.asyncio_loop.is_closed():
            sys.exit("the event loop was closed by code of a cell")
        engine.kernel.tell_soon(problem)
        run = engine.loop.start
    # Not sys.exit: zmq's context would wait for peers that are ending as well.
    atexit._run_exitfuncs()
    if engine.was_terminated:  # so that the supervisor can tell why, unless it was the sender
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)


def _restore_signals_in_children(handlers: dict[signal.Signals, tuple[Any, Any]]) -> None:
    """Replace a rank's signal handlers, ``(ours, plain)``, in forked children.

    The rank's handlers only ask its loop to stop, and a forked child runs no loop. The signals stay
    blocked until then: `Process.terminate` may come before the child has run a line.
    """
    saved = threading.local()  # the mask of the thread that forks

    def block() -> None:
        saved.mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, saved.mask)

    def restore() -> None:
        for number, (ours, plain) in handlers.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, plain)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


if __name__ == "__main__":
    try:
        main()
    except (OSError, MemoryError) as error:
        sys.exit(f"it cannot run here: {error}")
