"""The process of ipyparallel's controller, started by the root supervisor.

It runs the stock controller in one process, and hands the connection files to its parent over
a pipe instead of writing them to disk (they hold the key). It knows nothing of ranks.

Client and ranks are processes of this machine and this user, and meet it on Unix sockets that the
kernel opens to this user alone. On tcp ports other users could read what ranks publish, which is
signed, not hidden, and fill this process's memory before a handshake (libzmq bounds neither).
CURVE would leave the latter, and make a large value five times slower (64 MiB: 0.6 s, 3.0 s).
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import threading
from typing import Any

from ._process import die_with_parent

__all__ = ["main"]

OPTIONS = (
    "--log-level=40",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--TaskScheduler.scheme_name=pure",
    "--HeartMonitor.period=1000",
    # The supervisor alone says who is dead; this heartbeat is ipyparallel's own hygiene.
    "--HeartMonitor.max_heartmonitor_misses=1000000",
)

_IPC_FILTER_UID = 59  # ZMQ_IPC_FILTER_UID, which pyzmq does not name

FORGOTTEN = (b"in", b"out", b"intask", b"outtask", b"inbcast", b"outbcast", b"tracktask", b"iopub")


def forget(idents: list[bytes], message: list[bytes]) -> None:
    """Take the place of the hub's bookkeeping of a message."""


class HeartThread(threading.Thread):
    """Takes the place of the process that ipyparallel forks for its heartbeat.

    A fork of a threaded process can hang, outlives a killed parent and holds its descriptors.
    """

    def terminate(self) -> None:
        """End with the process, as daemon threads do."""


def listen_to_own_user_only() -> None:
    """Let nobody but our own user connect to any socket that is bound from now on.

    Here for all of them, as ipyparallel binds its own in six places and four threads.
    """
    import zmq

    bind = zmq.Socket.bind

    def bind_for_own_user(self: zmq.Socket[bytes], address: str) -> object:
        if not address.startswith(("ipc://", "inproc://")):
            msg = f"the controller must not listen on {address}"
            raise ValueError(msg)
        self.setsockopt(_IPC_FILTER_UID, os.geteuid())
        return bind(self, address)

    zmq.Socket.bind = bind_for_own_user  # type: ignore[method-assign,assignment]


def main() -> None:
    """Run the controller until the parent (its pid is the first argument) ends."""
    die_with_parent(int(sys.argv[1]))
    report_fd = int(sys.argv[2])

    from ipyparallel.controller import app
    from IPython.core.profiledir import ProfileDir
    from traitlets.config import Config

    app.Process = HeartThread
    listen_to_own_user_only()
    numbers = itertools.count(1)

    class Controller(app.IPController):  # type: ignore[misc]
        """ipyparallel's controller that reports over a pipe and leaves no file behind."""

        def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
            files["client" if fname == self.client_json_file else "engine"] = cdict

        def cleanup_connection_files(self) -> None:
            """Nothing was written."""

        def next_port(self, pool_name: str = "common") -> int:
            """Number the sockets: there are no ports to be found free, and lost to another."""
            return next(numbers)

        def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
            """As engines write it (with a colon), which stock controllers do for tcp alone."""
            number = getattr(self, f"{kind}_info")[channel]
            return f"ipc://{name}:{number if index is None else number[index]}"

        def init_schedulers(self) -> None:
            super().init_schedulers()
            self.hub.engine_state_file = ""  # the folder is gone when the first engine comes
            # The schedulers' threads start before the loop does: by then all ports are bound.
            self.loop.add_callback(report)

    def report() -> None:
        with os.fdopen(report_fd, "w") as pipe:
            pipe.write(json.dumps(files) + "\n")

    files: dict[str, dict[str, Any]] = {}
    config = Config()
    # In no file system, so that nothing is left of it when we are killed.
    config.IPController.transport = "ipc"
    config.IPController.ip = name = f"@phalanx-{secrets.token_hex(16)}"
    # A profile without a place: one with a folder would be left behind by a kill at this moment.
    controller = Controller(profile_dir=ProfileDir(), config=config)
    controller.initialize(list(OPTIONS))
    controller.hub.engine_state_file = ""  # else it writes one
    # It notes every message for queries that nobody makes: 4.6 KB a cell of two ranks, for ever.
    for topic in FORGOTTEN:
        controller.hub.monitor_handlers[topic] = forget
    controller.start()


if __name__ == "__main__":
    main()
