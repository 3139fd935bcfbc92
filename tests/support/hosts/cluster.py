"""What the clusters of schedulers in a bed of hosts have in common: daemons, their logs, programs.

It knows processes on hosts; which daemons there are is each scheduler's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from support.hosts.bed import Bed
from support.waiting import wait_until

__all__ = ["Cluster"]

_UP_S = 60.0  # all its daemons, on a busy machine


class Cluster:
    """A scheduler's daemons on the hosts of a bed; they end with it.

    ``folder`` holds all their files, ``env`` is what its programs need; ``logs`` are patterns of the
    files in ``folder`` that say why it does not come up.
    """

    logs: tuple[str, ...] = ("*.log",)

    def __init__(self, bed: Bed, name: str) -> None:
        self._bed = bed
        self.folder = bed.folder / name
        self.folder.mkdir()
        self.env = dict(os.environ)

    def daemon(self, host: int, *command: Any) -> None:
        """Start a program that stays, on a host."""
        with (self.folder / f"{command[0]}-{host}.log").open("wb") as log:
            daemon = self._bed.popen(host, command, env=self.env, stdout=log, stderr=log)
        self._bed.servers.add(daemon)

    def wait(self, is_there: Callable[[], bool]) -> None:
        """Wait until something is there; fails with what the daemons have said."""
        try:
            wait_until(is_there, "the daemons of a scheduler", _UP_S, 0.05)
        except AssertionError as error:
            said = [
                path.read_text()[-2000:]
                for pattern in self.logs
                for path in self.folder.glob(pattern)
            ]
            raise AssertionError("\n".join([str(error), *said])) from error

    def run(self, *command: Any, host: int = 0, **options: Any) -> Any:
        """Run a program that knows this cluster, on a host."""
        return self._bed.run(host, command, env=self.env, check=False, **options)
