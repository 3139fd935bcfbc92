"""The process of a rank: ipyparallel's engine with our kernel in it.

Here ipyparallel and the rank room meet; the supervisor of this host is the parent and tells the
engine whom to serve, over the inherited channel.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import sys
from typing import Any

from ._system import die_with_parent

__all__ = ["main"]

CURVE_KEYS = ("curve_serverkey", "curve_publickey", "curve_secretkey")


def main() -> None:
    """Run one rank until its supervisor ends it."""
    die_with_parent(int(sys.argv[1]))
    faulthandler.enable(all_threads=False)

    from ipyparallel.engine import app
    from traitlets.config import Application

    from phalanx.distributed import supervisor_channel
    from phalanx.protocol import EngineReady, Register, Registered
    from phalanx.rank import OutputRecord

    from ._doors import keep_alive, prepare_heart
    from ._kernel import RankKernel
    from ._outgoing import note_outgoing
    from ._stream import Stream

    channel = supervisor_channel()
    request = Register(channel.next_id(), os.getpid())
    answer = channel.request(request, request.id, timeout=None)
    if not isinstance(answer, Registered):
        msg = f"the supervisor answered with {answer}"
        raise TypeError(msg)
    rank, is_replacement = answer.rank, answer.replaces

    class Engine(app.IPEngine):  # type: ignore[misc]
        """ipyparallel's engine that tells its supervisor when it takes cells."""

        async def complete_registration(self, *args: Any) -> None:
            await super().complete_registration(*args)
            # Where ipykernel looks for the kernel when a cell says `%matplotlib` or `%gui`;
            # ipyparallel makes the application known as ipykernel's alone.
            Application._instance = self.kernel_app
            # From here on what is written past Python comes back to us, to go with its cell.
            assert isinstance(sys.stdout, Stream)
            assert isinstance(sys.stderr, Stream)
            self.kernel.captures = (
                sys.stdout.capture(int(sys.argv[2])),
                sys.stderr.capture(int(sys.argv[3])),
            )
            note_outgoing(self.kernel.session, OutputRecord(int(sys.argv[4])))
            self.kernel.serve(rank, channel)
            # What is here for good (73,000 objects) need not be looked through again by each
            # collection, 36 ms of a core; IPython makes some at the end.
            gc.freeze()
            channel.notify(EngineReady())

        def init_connector(self) -> tuple[Any, Any]:
            connect, tunnel = super().init_connector()

            def connect_for_long(sock: Any, url: str, *args: Any, **named: Any) -> Any:
                if url.startswith("tcp://"):
                    keep_alive(sock, url)
                return connect(sock, url, *args, **named)

            return connect_for_long, tunnel

        async def register(self) -> None:
            if is_replacement:
                # Its number is only free once the controller has forgotten who had it; on this
                # connection, that comes first.
                send = self.session.send

                def forget_first(stream: Any, kind: Any, *args: Any, **named: Any) -> Any:
                    self.session.send = send
                    send(stream, "unregistration_request", content={"id": rank})
                    return send(stream, kind, *args, **named)

                self.session.send = forget_first
            await super().register()

        def _signal_sigint(self, sig: int, frame: object) -> None:
            """Ignore it between cells; `CellGate` sends it to a running one only."""

        def _signal_stop(self, sig: int, frame: object) -> None:
            told_to_end.append(sig)
            self.loop.add_callback_from_signal(self.loop.stop)

    told_to_end: list[int] = []
    app.Kernel = RankKernel
    app.Heart = prepare_heart(app.Heart)
    engine = Engine(
        out_stream_factory=Stream,
        connection_info_env=json.dumps(answer.connection),
        # Said here, so that ipyparallel takes none from the user's environment.
        **{name: (answer.connection.get(name) or "").encode() for name in CURVE_KEYS},
    )
    engine.initialize(
        [
            f"--IPEngine.id={answer.rank}",
            "--IPEngine.enable_nanny=False",
            "--IPEngine.max_heartbeat_misses=0",
            # Its supervisor knows how long a start may take (ipyparallel: 5 s).
            "--IPEngine.timeout=60",
            "--log-level=50",
        ]
    )
    engine.ident = answer.engine
    try:
        engine.start()
    except RuntimeError:  # tornado's, of a loop that was stopped before what it ran was over
        if not told_to_end:
            raise
    # Not sys.exit: zmq's context would wait for peers that are being ended as well.
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except (OSError, MemoryError) as error:
        sys.exit(f"it cannot run here: {error}")
