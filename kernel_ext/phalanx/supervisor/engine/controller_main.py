"""Run ipyparallel's controller in a process of its own.

The connection files go to the parent over a pipe, not to disk, because they contain the key.

The client and the ranks of this host connect over Unix sockets of this user. On tcp ports other
users could read the ranks' output and fill this process's memory before a handshake. CURVE does not
prevent the second, and makes a large value five times slower (64 MiB: 3.0 s instead of 0.6 s). So
tcp with CURVE (`CurveTcpEndpoints`) is added only for ranks on other hosts. ipyparallel's own
``enable_curve`` would sign nothing any more and accept every client's key.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..processes.system import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

OPTIONS = (
    "--log-level=40",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    # Runs in the hub's thread, with one task per rank: the next task goes to the first idle rank.
    "--TaskScheduler.scheme_name=leastload",
    "--HeartMonitor.period=1000",
    # Only the supervisor decides which ranks are dead; ipyparallel's heartbeat must never do so.
    "--HeartMonitor.max_heartmonitor_misses=1000000",
)

_IPC_FILTER_UID = 59  # ZMQ_IPC_FILTER_UID, which pyzmq does not name

FORGOTTEN = (b"in", b"out", b"intask", b"outtask", b"inbcast", b"outbcast", b"tracktask", b"iopub")


def forget(idents: list[bytes], message: list[bytes]) -> None:
    """Ignore a message: replaces the hub's bookkeeping."""


def only_that_engine(
    hub: Any, unregister: Callable[[Any, dict[str, Any]], None]
) -> Callable[[Any, dict[str, Any]], None]:
    """Return a handler that unregisters an engine only if its uuid matches.

    Without this check a late request for a rank's previous engine would unregister the new one.
    """

    def handle(idents: Any, message: dict[str, Any]) -> None:
        named = message["content"].get("uuid")
        engine = hub.engines.get(message["content"].get("id"))
        if named is None or (engine is not None and engine.uuid == named):
            unregister(idents, message)

    return handle


class HeartThread(threading.Thread):
    """Run ipyparallel's heartbeat in a thread instead of a forked process.

    A fork of a threaded process can hang, outlives a killed parent and holds its descriptors.
    """

    def terminate(self) -> None:
        """Do nothing: a daemon thread ends with the process."""


def listen_to_own_user_only(bound: Callable[[zmq.Socket[bytes], int], None]) -> None:
    """Let only this user connect to Unix sockets bound from now on.

    `zmq.Socket.bind` is patched because ipyparallel binds its sockets in six places and four
    threads. ``bound`` is called with each socket and its number.
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


def main(report_fd: int, folder: str, *addresses: str) -> None:
    """Run the controller until the parent process ends.

    Arguments: the descriptor to report on, the folder for Unix sockets (empty: abstract names), and
    this host's addresses for other hosts.
    """
    import zmq
    from ipyparallel.controller import app
    from IPython.core.profiledir import ProfileDir
    from traitlets.config import Config

    from .curve import CurveTcpEndpoints, tcp_interface

    app.Process = HeartThread
    endpoints = CurveTcpEndpoints(addresses)
    numbers = itertools.count(1)

    class Controller(app.IPController):  # type: ignore[misc]
        """Controller that reports over a pipe and leaves no file behind."""

        def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
            files["client" if fname == self.client_json_file else "engine"] = cdict

        def cleanup_connection_files(self) -> None:
            """Do nothing: no file was written."""

        def next_port(self, pool_name: str = "common") -> int:
            """Return the next socket number.

            Unix sockets need numbers, not free ports that another process could take first.
            """
            return next(numbers)

        def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
            """Return a socket's URL as engines write it, with a colon.

            The colon precedes the socket's number. Stock controllers write it for tcp only.
            """
            number = getattr(self, f"{kind}_info")[channel]
            return f"ipc://{name}:{number if index is None else number[index]}"

        def init_schedulers(self) -> None:
            super().init_schedulers()
            self.hub.engine_state_file = ""  # the folder is gone when an engine comes
            # A client of a Unix socket that a thread has yet to bind connects again by itself.
            if not endpoints.addresses:
                self.loop.add_callback(report, files)

    def of_engines() -> dict[str, list[int]]:
        """Return the numbers of the sockets that ranks use, by channel."""
        info = {k: v for k, v in controller.engine_info.items() if k != "interface"}
        return {k: v if isinstance(v, list) else [v] for k, v in info.items()}

    def on_bound(sock: zmq.Socket[bytes], number: int) -> None:
        """Open tcp ports for a socket that ranks use.

        Report once all ports are open. Called in any thread.
        """
        public = set(itertools.chain.from_iterable(of_engines().values()))
        if endpoints.addresses and number in public and endpoints.open(sock, number) == len(public):
            controller.loop.add_callback(report, files)

    def report(files: dict[str, Any]) -> None:
        remote = {address: file_for(address) for address in endpoints.addresses}
        with os.fdopen(report_fd, "w") as pipe:
            pipe.write(json.dumps({**files, "remote": remote}) + "\n")

    def file_for(address: str) -> dict[str, Any]:
        """Return the connection file for ranks that reach this host at ``address``."""
        file = {**files["engine"], **endpoints.keys, "interface": tcp_interface(address)}
        for channel, sockets in of_engines().items():
            ports = [endpoints.port(number, address) for number in sockets]
            file[channel] = ports if isinstance(file[channel], list) else ports[0]
        return file

    files: dict[str, dict[str, Any]] = {}
    listen_to_own_user_only(on_bound)
    config = Config()
    # Abstract names where the system has them, so that a kill leaves no file behind.
    config.IPController.transport = "ipc"
    config.IPController.enable_curve = False  # whatever the user's environment says
    name = f"{folder}/c" if folder else f"@phalanx-{secrets.token_hex(16)}"
    config.IPController.ip = name
    # A profile without a folder: a kill at this moment would leave the folder behind.
    controller = Controller(profile_dir=ProfileDir(), config=config)
    try:
        controller.initialize(list(OPTIONS))
    except zmq.ZMQError as error:
        sys.exit(f"it cannot listen on {', '.join(endpoints.addresses) or name}: {error.strerror}")
    controller.hub.engine_state_file = ""  # otherwise the hub writes a file
    unregister = controller.hub.query_handlers["unregistration_request"]
    controller.hub.query_handlers["unregistration_request"] = only_that_engine(
        controller.hub, unregister
    )
    # The hub would record every message for queries that nobody makes: 4.6 KB for a cell of two
    # ranks, never freed.
    for topic in FORGOTTEN:
        controller.hub.monitor_handlers[topic] = forget
    controller.start()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), folder=sys.argv[3])
    main(int(sys.argv[2]), *sys.argv[3:])
