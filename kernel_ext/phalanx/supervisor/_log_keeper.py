"""What the ranks of a script that nobody looks at say, in files; and how it all ended.

It knows the messages that a launcher would be told; whose files these are is the user's to say.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import IO

import phalanx
from phalanx.protocol import BootOptions, Notice, RootAddress, WorkspaceRecord
from phalanx.protocol.scripts import (
    AllEnded,
    FromScriptRoot,
    NotStarted,
    Output,
    RankEnded,
    ScriptOptions,
)

from ._process import exit_reason
from ._runtime_folder import RecordFile

__all__ = ["LogKeeper", "script_record"]

JOURNAL = "phalanx.log"


class LogKeeper:
    """Takes a launcher's place: ``rank-0.stdout`` and so on in a folder, and a journal."""

    def __init__(self, folder: str, ranks: int) -> None:
        self._files: dict[tuple[int, str], IO[bytes]] = {}
        for rank in range(ranks):
            for stream in ("stdout", "stderr"):
                path = Path(folder, f"rank-{rank}.{stream}")
                self._files[rank, stream] = path.open("wb", buffering=0)
        self._journal = Path(folder, JOURNAL).open("w", buffering=1)  # noqa: SIM115 - see close

    def take(self, message: FromScriptRoot) -> bool:
        """Write down what is told; whether it was the last word."""
        if isinstance(message, Output):
            # On a full disk output is lost; what is to be done at the end of a rank must not be.
            with contextlib.suppress(OSError):
                self._files[message.rank, message.stream].write(message.data)
        elif isinstance(message, RankEnded):
            self._say(f"rank {message.rank} {exit_reason(message.status)}")
        elif isinstance(message, Notice):
            self._say(message.text)
        elif isinstance(message, NotStarted):
            self._say(f"the ranks could not be started: {message.message}")
            return True
        elif isinstance(message, AllEnded):
            self._say(_verdict(message))
            return True
        return False

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._journal.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def close(self) -> None:
        """Close the files; idempotent."""
        self._journal.close()
        for file in self._files.values():
            file.close()


def _verdict(end: AllEnded) -> str:
    if end.culprit >= 0:
        rest = "; the others were ended" if end.is_forced else ""
        return f"failed: rank {end.culprit} {exit_reason(end.statuses[end.culprit])}{rest}"
    return "stopped" if end.is_forced else "all ranks have ended well"


def script_record(options: ScriptOptions, address: RootAddress, pid: int) -> RecordFile:
    """Write down a script's ranks, so that they can be listed and stopped."""
    boot: BootOptions = options.boot
    file = RecordFile(boot.record_fd, boot.record_path)
    file.write(
        WorkspaceRecord(
            version=phalanx.__version__,
            kind="script",
            name=boot.name,
            size=boot.ranks,
            pid=pid,
            started=time.time(),
            endpoint=address.endpoint,
            public_key=address.public_key,
            client_public_key=boot.client_public_key,
            client_secret_key=boot.client_secret_key,
            log_dir=options.log_dir,
        )
    )
    return file
