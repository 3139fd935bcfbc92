"""The process of ipyparallel's controller, started by the root supervisor.

It runs the stock controller in one process, and hands the connection files to its parent over
a pipe instead of writing them to disk (they hold the key). It knows nothing of ranks.

Client and ranks of this machine and this user meet it on Unix sockets that the kernel opens to this
user alone. On tcp ports other users could read what ranks publish, which is signed, not hidden, and
fill this process's memory before a handshake (libzmq bounds neither). CURVE leaves the latter, and
makes a large value five times slower (64 MiB: 0.6 s, 3.0 s).

So only where ranks of other hosts come too, and only the sockets that ranks use get a second door:
tcp with CURVE (`Doors`). ipyparallel's own ``enable_curve`` would encrypt its way to itself and to
this machine's ranks as well, signs nothing any more, and lets in every client's key.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any

from ._system import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

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


def listen_to_own_user_only(bound: Callable[[zmq.Socket[bytes], int], None]) -> None:
    """Let nobody but our own user connect to any socket that is bound from now on.

    Here for all of them, as ipyparallel binds its own in six places and four threads. ``bound`` is
    told of each, and of its number.
    """
    import zmq

    bind = zmq.Socket.bind

    def bind_for_own_user(self: zmq.Socket[bytes], address: str) -> object:
        if address.startswith("tcp://") and self.get(zmq.CURVE_SERVER):
            return bind(self, address)
        if not address.startswith(("ipc://", "inproc://")):
            msg = f"the controller must not listen on {address}"
            raise ValueError(msg)
        self.setsockopt(_IPC_FILTER_UID, os.geteuid())
        binding = bind(self, address)
        if address.startswith("ipc://"):
            bound(self, int(address.rpartition(":")[2]))
        return binding

    zmq.Socket.bind = bind_for_own_user  # type: ignore[method-assign,assignment]


def main() -> None:
    """Run the controller until the parent (its pid is the first argument) ends.

    The second argument is the descriptor to report on; the third a folder for Unix sockets, or
    empty; the others, the addresses for other hosts.
    """
    folder = sys.argv[3]  # of its sockets, where they must have names in one
    die_with_parent(int(sys.argv[1]), folder)
    report_fd = int(sys.argv[2])

    import zmq
    from ipyparallel.controller import app
    from IPython.core.profiledir import ProfileDir
    from traitlets.config import Config

    from ._doors import Doors, tcp_interface

    app.Process = HeartThread
    doors = Doors(tuple(sys.argv[4:]))
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
            # Who comes to a Unix socket that a thread has yet to bind tries again.
            if not doors.addresses:
                self.loop.add_callback(report, files)

    def of_engines() -> dict[str, list[int]]:
        """The numbers of the sockets that ranks use, by channel."""
        info = {k: v for k, v in controller.engine_info.items() if k != "interface"}
        return {k: v if isinstance(v, list) else [v] for k, v in info.items()}

    def on_bound(sock: zmq.Socket[bytes], number: int) -> None:
        """Open the second door where ranks come in; report when all are open (in any thread)."""
        public = set(itertools.chain.from_iterable(of_engines().values()))
        if doors.addresses and number in public and doors.open(sock, number) == len(public):
            controller.loop.add_callback(report, files)

    def report(files: dict[str, Any]) -> None:
        remote = {address: file_for(address) for address in doors.addresses}
        with os.fdopen(report_fd, "w") as pipe:
            pipe.write(json.dumps({**files, "remote": remote}) + "\n")

    def file_for(address: str) -> dict[str, Any]:
        """Write ipyparallel's connection file for ranks that reach us at this address."""
        file = {**files["engine"], **doors.keys, "interface": tcp_interface(address)}
        for channel, sockets in of_engines().items():
            ports = [doors.port(number, address) for number in sockets]
            file[channel] = ports if isinstance(file[channel], list) else ports[0]
        return file

    files: dict[str, dict[str, Any]] = {}
    listen_to_own_user_only(on_bound)
    config = Config()
    # In no file system if that can be, so that nothing is left of it when we are killed.
    config.IPController.transport = "ipc"
    config.IPController.enable_curve = False  # whatever the user's environment says
    name = f"{folder}/c" if folder else f"@phalanx-{secrets.token_hex(16)}"
    config.IPController.ip = name
    # A profile without a place: one with a folder would be left behind by a kill at this moment.
    controller = Controller(profile_dir=ProfileDir(), config=config)
    try:
        controller.initialize(list(OPTIONS))
    except zmq.ZMQError as error:
        sys.exit(f"it cannot listen on {', '.join(doors.addresses) or name}: {error.strerror}")
    controller.hub.engine_state_file = ""  # else it writes one
    # It notes every message for queries that nobody makes: 4.6 KB a cell of two ranks, for ever.
    for topic in FORGOTTEN:
        controller.hub.monitor_handlers[topic] = forget
    controller.start()


if __name__ == "__main__":
    main()
