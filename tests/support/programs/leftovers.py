"""All that comes of one program that is started for a test, and what of it is still there.

Its processes are recognised by a variable that everything started from the program inherits; its folders for
temporary and runtime files are its own. It knows processes, sockets and files, nothing of phalanx.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
from support.programs.processes import is_gone, wait_gone
from support.promise import PATIENCE_S
from support.waiting import wait_until

VARIABLE = "LEFTOVERS_FAMILY"
LOOK_EVERY_S = 0.02  # who is to start or to end needs the core that reading all of /proc takes


class Family:
    """A program with all its descendants, however detached; a context manager that ends them."""

    def __init__(self, folder: Path, *command: str, python: str | None = None, **env: str) -> None:
        self.name = uuid.uuid4().hex
        self.folder = folder
        self.places = {name: folder / name for name in ("tmp", "run", "home")}
        for place in self.places.values():
            place.mkdir()
        said = {
            VARIABLE: self.name,
            "TMPDIR": str(self.places["tmp"]),
            "XDG_RUNTIME_DIR": str(self.places["run"]),
            "HOME": str(self.places["home"]),
            **env,
        }
        self.ports: set[int] = set()
        words = [sys.executable, "-c", python, *command] if python is not None else [*command]
        self.env = {**os.environ, **said}
        self.popen = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            cwd=self.places["tmp"],
        )
        self.process = psutil.Process(self.popen.pid)

    def wait_line(self, word: str) -> None:
        """Read the program's output until this line has come."""
        while (line := self.popen.stdout.readline()).strip() != word.encode():
            assert line, f"it ended before it said {word!r}"

    def processes(self) -> list[psutil.Process]:
        """Those that live, the program itself included."""
        name = self.name.encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                folder = Path(f"/proc/{pid}")
                # In the command line where the environment was taken away.
                if any(name in (folder / file).read_bytes() for file in ("environ", "cmdline")):
                    found.append(psutil.Process(pid))
        return [process for process in found if not is_gone(process)]

    def find(self, what: str, n: int = 1) -> list[psutil.Process]:
        """Wait for ``n`` processes, but the program, with this in their command line."""

        def found() -> list[psutil.Process]:
            every = [process for process in self.processes() if process != self.process]
            its = [process for process in every if what in " ".join(_command_of(process))]
            return its if len(its) >= n else []

        return wait_until(found, f"{n} of {what!r}", poll_s=LOOK_EVERY_S)

    def note_ports(self) -> None:
        """Remember where its processes listen."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                self.ports |= {c.laddr.port for c in process.net_connections("tcp") if not c.raddr}

    def left(self, timeout_s: float = PATIENCE_S, *, but: tuple[int, ...] = ()) -> list[str]:
        """What is still there of it when the time is over, in words; ``but`` processes may be."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            alive = [process for process in self.processes() if process.pid not in but]
            listening = {
                c.laddr.port for c in psutil.net_connections("tcp") if c.status == "LISTEN"
            }
            ports = sorted(self.ports & listening)
            if not (alive or ports) or time.monotonic() > deadline_s:
                break
            # Those that were found are cheap to watch; all of /proc is read again when they are gone.
            # A process that ends loses its memory, by which it is found, before its sockets.
            wait_gone(alive, deadline_s - time.monotonic())
            time.sleep(LOOK_EVERY_S)
        words = [f"process {p.pid}: {' '.join(_command_of(p))}" for p in alive]
        return [*words, *(f"port {port} is listened on" for port in ports), *self.files()]

    def files(self) -> list[str]:
        """What lies in its folders, but for those that are made once: IPython's and ours."""
        ours = self.places["run"] / "phalanx"
        return [
            f"file {path}"
            for place in self.places.values()
            for path in sorted(place.rglob("*"))
            if path != ours and ".ipython" not in path.parts and ".cache" not in path.parts
        ]

    def named(self) -> list[str]:
        """Files with a name that its processes have open to write, and shared memory with one."""
        names = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                names |= {file.path for file in process.open_files() if file.mode[0] in "aw"}
                names |= {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
        return sorted(names)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while (alive := self.processes()) and time.monotonic() < deadline_s:
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    # A child without the environment is found by its parent only.
                    for each in (*process.children(recursive=True), process):
                        each.kill()
            time.sleep(LOOK_EVERY_S)
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.popen.wait(PATIENCE_S)


class Created:
    """Tells the names of all files that are made in a folder meanwhile, also of those now gone."""

    _IN_CREATE, _IN_MOVED_TO, _IN_NONBLOCK = 0x100, 0x80, os.O_NONBLOCK  # linux/inotify.h

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(self._IN_NONBLOCK)
        mask = self._IN_CREATE | self._IN_MOVED_TO
        assert libc.inotify_add_watch(self._fd, os.fsencode(folder), mask) >= 0

    def names(self) -> list[str]:
        """Those made since the last call; closes nothing."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, 1 << 16):
                while data:
                    (length,) = struct.unpack_from("I", data, 12)
                    found.append(data[16 : 16 + length].rstrip(b"\0").decode())
                    data = data[16 + length :]
        return found

    def close(self) -> None:
        os.close(self._fd)


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ends just now
        return ["?"]
