"""Start, watch, read and end a child process of a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .pipes import ChildInput, ChildOutput
from .system import end_with_parent, open_pidfd

log = logging.getLogger(__name__)

# (arguments, environment, its number of each descriptor -> ours) -> the child
Fork = Callable[[Sequence[str], Mapping[str, str], Mapping[int, int]], "ForkedProcess"]

# After a successful program has ended, another process may still write to its pipes (`> >(tee
# log)`). Such output is read for at most this long. Only the end of the launch waits for it.
LAST_OUTPUT_S = 0.5

OUT_OF_MEMORY = "was killed by the kernel: out of memory"


def exit_reason(status: int) -> str:
    """Describe an exit status as `subprocess` gives it.

    Examples
    --------
    >>> exit_reason(-11), exit_reason(3)
    ('killed by signal 11 (SIGSEGV)', 'exited with status 3')
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"killed by signal {-status} ({name})"


class ForkedProcess:
    """A child that `ForkServer` has made, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        """Wait for the child's end; return its status as `subprocess` gives it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class ChildProcess:
    """A child process with its own session, reaped by the event loop.

    ``on_exit`` is called once with the exit status. The pipes are closed with the child; ``stdout``
    and ``stderr`` may be the same one. With ``fork``, which is `ForkServer.fork`, ``command`` has
    the arguments only. A ``tied`` child is killed when this process dies: say so for programs that
    do not call `die_with_parent` themselves.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        pass_fds: Sequence[int],
        stdout: ChildOutput,
        stderr: ChildOutput,
        on_exit: Callable[[int], None],
        stdin: ChildInput | None = None,
        tied: bool = False,
        fork: Fork | None = None,
    ) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()
        self.status: int | None = None
        self._stdin = stdin
        self._is_tied = tied
        self._pipes = (stdout,) if stdout is stderr else (stdout, stderr)
        self._popen: subprocess.Popen[bytes] | ForkedProcess
        try:
            if fork is not None:
                fds = {**{fd: fd for fd in pass_fds}, 1: stdout.write_fd, 2: stderr.write_fd}
                self._popen = fork(command, env, fds)
            else:
                # start_new_session: Ctrl-C in the terminal must not reach the ranks, and the whole
                # process group (with a rank's children) can be killed at once.
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL if stdin is None else stdin.read_fd,
                    stdout=stdout.write_fd,
                    stderr=stderr.write_fd,
                    env=dict(env),
                    cwd=cwd,
                    pass_fds=pass_fds,
                    start_new_session=True,
                    # Other threads of this process (zmq's, executors') may hold locks at the fork.
                    # The function needs none of them: it makes two system calls, with a library
                    # that was loaded before. A wrapper process would cost 20 ms per rank. Ranks
                    # that run cells are our own program and call `die_with_parent` themselves.
                    preexec_fn=end_with_parent(os.getpid()) if tied else None,  # noqa: PLW1509
                )
        except BaseException:
            self._close_pipes()
            raise
        if stdin is not None:
            stdin.child_started()
        for pipe in self._pipes:
            pipe.child_started()
        self.pid = self._popen.pid
        try:
            self._pidfd = open_pidfd(self.pid)
        except OSError:  # No descriptor is left: kill a child that cannot be watched.
            self._popen.kill()
            self._popen.wait()
            self._close_pipes()
            raise
        self._loop.add_reader(self._pidfd, self._on_end)

    def _close_pipes(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        for pipe in self._pipes:
            pipe.finish()

    @property
    def tail(self) -> str:
        return "".join(pipe.tail for pipe in self._pipes)

    def release_output(self) -> None:
        """Leave the child's output to the child itself until it dies."""
        for pipe in self._pipes:
            pipe.release()

    def _on_end(self) -> None:
        """Take the status of the child that has ended.

        The child stays a zombie until `_forget_child` has signalled its process group: until then
        no other group can get the same number.
        """
        self.status = self._status()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._stdin is not None:
            self._stdin.close()
        waits = self._is_tied and self.status == 0
        self._forget_child(self._loop.time() + LAST_OUTPUT_S if waits else 0.0)

    def _status(self) -> int:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._popen.wait()
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status: int = ended.si_status  # typed only where the system has waitid
        return status if ended.si_code == os.CLD_EXITED else -status

    def _forget_child(self, until: float) -> None:
        """Read the child's remaining output, kill its process group, report the end."""
        if self._loop.time() < until and not all(pipe.is_over for pipe in self._pipes):
            self._loop.call_later(0.005, self._forget_child, until)
            return
        for pipe in self._pipes:
            try:
                pipe.finish()
            except Exception:  # an error while reading must not hide the end
                log.exception("the last output of process %d is lost", self.pid)
        # Kill descendants that the child left in its process group.
        self._signal_group(signal.SIGKILL)
        self._popen.wait()
        self.exited.set()
        self._on_exit(self.status or 0)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def signal_child(self, number: signal.Signals) -> None:
        """Send a signal to the child only."""
        if self.status is None:
            os.kill(self.pid, number)  # Popen's own method might reap the child

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the child and its process group."""
        if self.status is None:
            self._signal_group(number)

    def kill(self) -> None:
        if self.status is None:
            self._signal_group(signal.SIGKILL)


class OutOfMemory:
    """Tell whether the kernel killed a rank because memory ran out.

    A control group of version 2 counts such kills but does not name the processes. All ranks are in
    the group of their supervisor. The count is read at the death of a rank: each kill since the
    supervisor's start explains one death by SIGKILL, also a kill of another process of the group.
    Without such a group nothing is found.
    """

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = _kill_counts(proc, groups)
        self._n_explained = self._count()

    def explains(self) -> bool:
        """Whether lack of memory ended a process that SIGKILL ended.

        Call this once for each such process.
        """
        if self._count() <= self._n_explained:
            return False
        self._n_explained += 1
        return True

    def _count(self) -> int:
        """Return the number of the group's line "oom_kill N"; else 0."""
        try:
            lines = self._file.read_text().splitlines() if self._file else []
        except OSError:
            return 0
        words = (line.split() for line in lines)
        return next((int(word[1]) for word in words if word[:1] == ["oom_kill"]), 0)


def _kill_counts(proc: Path, groups: Path) -> Path | None:
    """Return the file with the kill count of this process's group.

    Returns None without such a file; the root group of the machine has none.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    inside = next((line[4:] for line in lines if line.startswith("0::/")), None)
    if inside is None:
        return None
    # In a container the path may be the host's, and only its end exists here.
    files = groups / inside / "memory.events", groups / "memory.events"
    return next((file for file in files if file.is_file()), None)
