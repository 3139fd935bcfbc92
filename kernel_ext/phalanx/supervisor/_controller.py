"""The process of ipyparallel's controller, started by the root supervisor.

It runs the stock controller in one process, and hands the connection files to its parent over
a pipe instead of writing them to disk (they hold the key). It knows nothing of ranks.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from ._process import die_with_parent

__all__ = ["main"]

OPTIONS = (
    "--ip=127.0.0.1",
    "--log-level=40",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--TaskScheduler.scheme_name=pure",
    "--HeartMonitor.period=1000",
    # The supervisor alone says who is dead; this heartbeat is ipyparallel's own hygiene.
    "--HeartMonitor.max_heartmonitor_misses=1000000",
)


FORGOTTEN = (b"in", b"out", b"intask", b"outtask", b"inbcast", b"outbcast", b"tracktask", b"iopub")


def forget(idents: list[bytes], message: list[bytes]) -> None:
    """Take the place of the hub's bookkeeping of a message."""


class HeartThread(threading.Thread):
    """Takes the place of the process that ipyparallel forks for its heartbeat.

    A fork of a threaded process can hang, outlives a killed parent and holds its descriptors.
    """

    def terminate(self) -> None:
        """End with the process, as daemon threads do."""


def main() -> None:
    """Run the controller until the parent (its pid is the first argument) ends."""
    die_with_parent(int(sys.argv[1]))
    report_fd = int(sys.argv[2])

    from ipyparallel.controller import app
    from IPython.core.profiledir import ProfileDir

    app.Process = HeartThread

    class Controller(app.IPController):  # type: ignore[misc]
        """ipyparallel's controller that reports over a pipe and leaves no file behind."""

        def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
            files["client" if fname == self.client_json_file else "engine"] = cdict

        def cleanup_connection_files(self) -> None:
            """Nothing was written."""

        def init_schedulers(self) -> None:
            super().init_schedulers()
            self.hub.engine_state_file = ""  # the folder is gone when the first engine comes
            # The schedulers' threads start before the loop does: by then all ports are bound.
            self.loop.add_callback(report)

    def report() -> None:
        with os.fdopen(report_fd, "w") as pipe:
            pipe.write(json.dumps(files) + "\n")

    files: dict[str, dict[str, Any]] = {}
    # A profile without a place: one with a folder would be left behind by a kill at this moment.
    controller = Controller(profile_dir=ProfileDir())
    controller.initialize(list(OPTIONS))
    controller.hub.engine_state_file = ""  # else it writes one
    # It notes every message for queries that nobody makes: 4.6 KB a cell of two ranks, for ever.
    for topic in FORGOTTEN:
        controller.hub.monitor_handlers[topic] = forget
    controller.start()


if __name__ == "__main__":
    main()
