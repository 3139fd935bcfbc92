"""Start hosts' supervisors with a new job of Slurm."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.protocol.host import HostUp

from .remote_command import BEGUN, HostStart, HostUnreachable, SharedKeyDirectory, last_output

State = Literal["waits", "runs", "over", "unknown"]

ASK_S = 20.0  # time limit of a state query: a busy scheduler answers late
SUBMIT_S = 60.0
GATHER_S = 0.1  # Hosts of one start or restart arrive within one turn of the event loop.

# The first of them that matches any of the job's states counts.
_STATES: tuple[tuple[State, str], ...] = (
    ("waits", "PENDING|CONFIGURING|REQUEUED|SUSPENDED"),
    ("runs", "RUNNING"),
    ("over", ".*"),
)


class JobStatus(NamedTuple):
    """State of a job; ``text`` is the scheduler's reason."""

    state: State
    text: str = ""


def read_status(out: str) -> JobStatus:
    """Read a job's state from squeue's lines ``STATE|REASON``.

    Examples
    --------
    >>> read_status("PENDING|Resources")
    JobStatus(state='waits', text='PENDING: Resources')
    """
    found = re.findall(r"^(\w+)\|(.*)", out, re.MULTILINE)
    for kind, states in _STATES:
        for state, reason in found:
            if re.fullmatch(states, state):
                text = "" if reason.strip() == "None" else reason.strip()
                text = f"{state}: {text}".removesuffix(": ")
                return JobStatus(kind, "" if kind == "runs" else text)
    return JobStatus("over")


def directives(job: JobOptions) -> list[str]:
    """Return the user's options as lines of the script.

    Examples
    --------
    >>> directives(JobOptions(2, "short", args=("--gres", "gpu:1")))
    ['#SBATCH --partition=short', '#SBATCH --gres gpu:1']
    """
    said = {"partition": job.queue, "account": job.account, "time": job.time}
    words = [f"--{name}={value}" for name, value in said.items() if value]
    if job.args:
        words.append(shlex.join(job.args))
    return [f"#SBATCH {word}" for word in words]


# Intervals between queries of a job's state: short after a change, then longer by this factor.
# Slurm's manual asks users not to loop around squeue.
ASK_AT_FIRST_S, ASK_AT_LAST_S, ASK_SLOWER = 0.5, 30.0, 1.3


class BatchHost:
    """A host's supervisor that a batch job starts."""

    def __init__(self, number: int, plan: HostPlan, on_slow: Callable[[str], None]) -> None:
        self.number = number
        self.plan = plan
        self.on_slow = on_slow
        self.job: BatchJob | None = None
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, and the supervisor with it."""
        return self.over.done()

    async def ended(self) -> str:
        """Wait for the supervisor's end; return the reason."""
        return await asyncio.shield(self.over)

    def end(self, why: str) -> None:
        """Record the end; the first reason is kept."""
        if not self.over.done():
            self.over.set_result(why)

    async def look(self, up: HostUp) -> str:
        """Ask the scheduler for the job's state soon; `ended` has the result."""
        if self.job is not None:
            self.job.nudge.set()
        return ""

    def farewell(self) -> None:
        """Handle the supervisor's stop: the job ends with its last host."""
        self.kill()

    def kill(self) -> None:
        """Give up the supervisor; the job ends with its last host."""
        if self.job is not None:
            self.job.drop(self)


class BatchJob:
    """Submit, watch and delete one job.

    The job is deleted when none of its hosts is left.
    """

    def __init__(
        self, remote: RemoteOptions, hosts: Sequence[BatchHost], lines: Sequence[bytes]
    ) -> None:
        self._remote = remote
        self._hosts = list(hosts)
        self._left = set(hosts)
        self._folder = SharedKeyDirectory(lines)
        self._id = ""
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.nudge = asyncio.Event()
        self.status = JobStatus("waits")
        self.changed: asyncio.Future[None] = self._loop.create_future()

    def __str__(self) -> str:
        """Return the job's name for error texts."""
        return f"Slurm's job {self._id}"

    @property
    def waiting(self) -> str:
        """Return a text: the job waits in the queue, and the reason."""
        why = f" ({self.status.text})" if self.status.text else ""
        return f"job {self._id} waits in Slurm's queue{why}"

    async def submit(self) -> None:
        """Submit the job.

        Raises
        ------
        HostUnreachable
            The scheduler refuses the job (with its own message), or does not exist here.
        """
        # Use a thread, which finishes even if this coroutine is cancelled: a job without a known id
        # would stay in the queue.
        try:
            await self._loop.run_in_executor(None, self._submit)
        except ValueError as error:
            raise HostUnreachable(self._hosts[0].plan.name, str(error)) from None
        if self._left:
            self._watching = self._loop.create_task(self._watch())
        else:
            self.end()

    def _submit(self) -> None:
        """Guard the keys and submit the job; `ValueError` says why not."""
        try:
            script = self._written()
            self._folder.guard("scancel")
            job = self._handed_over(script)
            self._folder.name_job(job)
        except BaseException:
            self._folder.remove()
            raise
        self._id = job  # set only now: `end` may delete the job only when the guard knows its id

    def _handed_over(self, script: Path) -> str:
        """Submit the script; return the job's id."""
        try:
            done = subprocess.run(
                ["sbatch", str(script)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SUBMIT_S,
                check=False,
            )
        except FileNotFoundError:
            msg = (
                "there is no sbatch on this machine: start it on a login node of a cluster with "
                "Slurm, or say another --launcher"
            )
            raise ValueError(msg) from None
        except subprocess.TimeoutExpired:
            msg = f"Slurm has not taken the job within {SUBMIT_S:g} s (sbatch)"
            raise ValueError(msg) from None
        job = re.search(r"\d+", done.stdout)
        if done.returncode or job is None:
            said = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
            why = next((line for line in said if line), f"sbatch exits with {done.returncode}")
            why = re.sub(r"^(sbatch: *)?(error: *)?", "", why, flags=re.IGNORECASE)
            msg = (
                f"Slurm refuses the job: {why} "
                "(set what it requires with --queue, --account, --time or --launcher-arg)"
            )
            raise ValueError(msg)
        return job[0]

    def _written(self) -> Path:
        """Write the script: its first node starts a supervisor on each node."""
        folder, python = str(self._folder), self._remote.python or sys.executable
        cores = max(host.plan.ranks for host in self._hosts)
        lines = [
            "#!/bin/sh",
            "#SBATCH --job-name=phalanx",
            f"#SBATCH --output={shlex.quote(f'{folder}/output')}",
            f"#SBATCH --nodes={len(self._hosts)}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --cpus-per-task={cores}",
            *directives(self._remote.job),
            f"exec {shlex.join([python, '-m', 'phalanx.supervisor', 'job', folder])}",
        ]
        script = self._folder.path / "script"
        script.write_text("\n".join([*lines, ""]))
        return script

    async def _watch(self) -> None:
        every_s = ASK_AT_FIRST_S
        over: JobStatus | None = None
        while True:
            for host in self._left:
                if said := self._folder.said(host.number):
                    host.end(said)
            status = await self._ask()
            if status.state != "over":
                over = None
            elif over is None:  # ask again: a busy scheduler may give one wrong answer
                over = status
                await asyncio.sleep(ASK_AT_FIRST_S)
                continue
            elif not status.text:
                status = over
            if status.state != "unknown" and status != self.status:
                every_s = ASK_AT_FIRST_S
                self.status = status
                changed, self.changed = self.changed, self._loop.create_future()
                changed.set_result(None)
            if status.state == "over":
                break
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self.nudge.wait(), every_s)
            self.nudge.clear()
            every_s = min(ASK_AT_LAST_S, every_s * ASK_SLOWER)
        for host in list(self._left):
            why = self._folder.said(host.number) or self._why_over()
            host.end(why)

    def _why_over(self) -> str:
        said = last_output(self._folder.path / "output", but=BEGUN)
        why = f" ({self.status.text})" if self.status.text else ""
        if said or why:
            return f"{self} has ended{why}{f': {said}' if said else ''}"
        base = self._folder.path.parent
        text = f"{self} has ended and said nothing: do its nodes see {base}?"
        return f"{text} (PHALANX_JOB_DIR names another folder)"

    async def _ask(self) -> JobStatus:
        words = ["squeue", "--noheader", "--format=%T|%r", "--jobs", self._id]
        try:
            status, out, err = await asyncio.wait_for(_run(words), ASK_S)
        except (asyncio.TimeoutError, OSError):
            return JobStatus("unknown")
        if status:  # other errors, such as a missing command, say nothing about the job
            is_gone = "invalid job id specified" in (out + err).lower()
            return JobStatus("over" if is_gone else "unknown")
        return read_status(out)

    def drop(self, host: BatchHost) -> None:
        """Give up a host; the last host's end deletes the job."""
        if host not in self._left:
            return
        self._left.discard(host)
        if self._left:
            host.end("its supervisor has ended")
            return
        self.end()
        if self._ending is not None:
            self._ending.add_done_callback(lambda _: host.end(f"{self} was ended"))

    def end(self) -> None:
        """Delete the job in any state; idempotent."""
        if self._watching is not None:
            self._watching.cancel()
        if self._id and self._ending is None:
            self._ending = self._loop.run_in_executor(None, self._folder.remove)


async def _run(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and errors."""
    child = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await child.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        raise
    return child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


class JobGathering:
    """Collect hosts that start together into one job."""

    def __init__(self) -> None:
        self._wanted: list[tuple[BatchHost, bytes]] = []
        self._submitting: asyncio.Future[None] | None = None

    async def join(self, host: BatchHost, first_line: bytes, remote: RemoteOptions) -> BatchJob:
        """Add a host and wait until its job is submitted."""
        host.number = len(self._wanted)
        self._wanted.append((host, first_line))
        if self._submitting is None:
            self._submitting = asyncio.ensure_future(self._submit(remote))
        await asyncio.shield(self._submitting)
        assert host.job is not None
        return host.job

    async def _submit(self, remote: RemoteOptions) -> None:
        seen = 0
        # until no more hosts arrive, or all are there
        while seen < len(self._wanted) < remote.job.nodes:
            seen = len(self._wanted)
            await asyncio.sleep(GATHER_S)
        wanted, self._wanted, self._submitting = self._wanted, [], None
        hosts = [host for host, _ in wanted]
        job = BatchJob(remote, hosts, [line for _, line in wanted])
        for host in hosts:
            host.job = job
        await job.submit()


async def launch_as_job(asked: HostStart, gathering: JobGathering) -> BatchHost:
    """Start a node's supervisor by a batch job.

    Returns when the job runs.

    Raises
    ------
    HostUnreachable
        The job does not run; the text says why, and what to do next.
    """
    host = BatchHost(0, asked.plan, asked.on_slow)
    try:
        job = await gathering.join(host, asked.first_line, asked.remote)
        await _wait_running(host, job, asked.remote.timeout_s)
    except HostUnreachable as error:
        host.kill()
        if host.number:  # the first host's error tells the reason; the others refer to it
            raise HostUnreachable(asked.plan.name, "the same job") from None
        raise HostUnreachable(asked.plan.name, error.text) from None
    except BaseException:
        host.kill()
        raise
    return host


async def _wait_running(host: BatchHost, job: BatchJob, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    reported = ""
    while job.status.state == "waits" and not host.over.done():
        text = job.waiting
        if text != reported and not host.number:
            reported = text
            host.on_slow(text)
        news: set[asyncio.Future[Any]] = {job.changed, host.over}
        left_s = max(0.0, until_s - loop.time())
        await asyncio.wait(news, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if loop.time() >= until_s and not host.over.done():
            why = (
                f"{text} after {timeout_s:g} s, and was cancelled: wait longer with --boot-timeout S, "
                "or ask for less, or another --queue"
            )
            raise HostUnreachable(host.plan.name, why)
    if host.over.done():
        raise HostUnreachable(host.plan.name, host.over.result())
    if reported:
        host.on_slow(f"{job} runs; its supervisors have not answered yet")
