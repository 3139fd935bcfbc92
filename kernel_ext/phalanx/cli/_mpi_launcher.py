"""One launch through mpirun, from start to exit status.

mpirun merges what ranks write, and reads for one only; so each rank has pipes of this process
instead, if it runs on this machine. It finds them through /proc, as mpirun hands on no
descriptors; elsewhere its lines come through mpirun, without labels. Whatever mpirun leaves behind is adopted and ended here.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from phalanx.supervisor import open_pidfd

from ._launcher import SIGNALS, TIMED_OUT
from ._mpirun import find_mpirun, mpi_arguments
from ._places import host_names
from ._rank_input import RankInput
from ._screen import LAUNCHER, STREAMS, Screen, exit_code, how_ended
from ._stdin import InputThread

if TYPE_CHECKING:
    from phalanx.workspace import Job

__all__ = ["MpiLauncher"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_CHUNK = 1 << 16
_ROOM = 64  # descriptors that are in use already, or will be
_DRAIN_S = 0.5  # for what is on its way when mpirun has ended

# Run by sh in place of each rank: take our pipes for the streams, then become the command.
# That /proc/PID/fd/N is ours the pipe's inode number proves: elsewhere PID is somebody else.
_RANK = """\
place=/proc/$1/fd first=$2
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$(readlink $place/$first 2>/dev/null)" = "$3" ] && [ -n "$rank" ]; then
    first=$((first + 3 * rank))
    exec <$place/$first >$place/$((first + 1)) 2>$place/$((first + 2))
fi
shift 3
exec "$@"
"""


class MpiLauncher:
    """Runs a command on ranks of mpirun and shows what they say."""

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
        # The ranks' ends lie in a row, beyond our own: so a rank knows where its are.
        self._first_fd = _ROOM + 3 * self._size
        self._process: subprocess.Popen[bytes] | None = None
        self._line_typed = False
        self._cut: deque[str] = deque()  # said by the input's thread
        self._signal = 0  # the first that we were sent
        self._kill_at: float | None = None
        self._timed_out = False

    def run(self) -> int:
        """Start, show, wait; the exit status."""
        with ExitStack() as stack:
            self._screen.open_logs(self._options.log_dir, stack)
            stack.callback(self._selector.close)
            inode = self._open_pipes(stack)
            started = self._start(
                [
                    *self._mpirun.command(self._size, self._words, hosts=self._job.at.hosts),
                    *self._mpirun.places(self._job.at.hosts, self._job.env),
                    *("sh", "-c", _RANK, "sh", str(os.getpid()), str(self._first_fd), inode),
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
        """Make three pipes for each rank; the proof of the first."""
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
        except OSError:  # no /proc: all comes through mpirun
            return "none"

    def _keep(self, fd: int, place: int, stack: ExitStack) -> None:
        """Put the rank's end where it looks for it."""
        kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)
        os.close(fd)
        stack.callback(os.close, kept)
        if kept != place:
            msg = f"descriptor {place} is in use already"
            raise OSError(msg)

    def _watch(self, fd: int, source: object, stack: ExitStack) -> None:
        os.set_blocking(fd, False)
        stack.callback(os.close, fd)
        self._selector.register(fd, selectors.EVENT_READ, source)

    def _start(self, words: Sequence[str], stack: ExitStack) -> subprocess.Popen[bytes]:
        prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A group of its own: what a terminal sends to ours comes to it from us, once.
        self._process = process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
            # If we are killed it ends its ranks.
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
        stack.callback(InputThread(given.give, self._on_line).close)
        return process

    def _on_line(self) -> None:
        self._line_typed = True

    def _on_cut(self, rank: int, nbytes: int) -> None:
        self._cut.append(
            f"rank {rank} left {nbytes >> 20} MiB of input unread; its input ends here"
        )

    # -- while it runs ------------------------------------------------------------------------

    def _follow(self, process: subprocess.Popen[bytes]) -> int:
        """Show what happens until mpirun has ended; its status."""
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
        """Take in and show what there is; whether there was anything."""
        ready = self._selector.select(timeout_s)
        if self._line_typed:
            self._line_typed = False
            self._screen.lines.line_was_typed()
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
                self._screen.feed(rank, stream, data, time.monotonic())
            elif data == b"":
                self._selector.unregister(key.fd)
        self._screen.write(self._screen.lines.due(time.monotonic()))
        return has_shown

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        if self._signal and number == signal.SIGINT:
            process.kill()  # the user insists
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
        """Show all that was written; our own ends keep the pipes from ending."""
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
            self._screen.say(f"{self._mpirun.path.name} {how_ended(status)}")
        return exit_code(status)


def _read(fd: int) -> bytes | None:
    """Return what is there, b"" at the end, None if nothing is there now."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None


@contextmanager
def _handling_signals(handler: signal._HANDLER) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:  # else nohup or a shell's & wants us to stay
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _end_orphans() -> None:
    """Kill what mpirun has not ended: such processes have become our children."""
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
