"""Start hosts' supervisors on the nodes of a new job of Slurm.

salloc holds the job until this process ends or no host is left. On each node srun starts a supervisor, as in a job that
the user has made: the keys go over srun's standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from phalanx.hosts import job_hosts
from phalanx.protocol import JobOptions, RemoteOptions

from .remote_command import (
    CommandOutcome,
    HostStart,
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
    launch_by,
)
from .select import job_words, step_launch

ASK_S = 20.0  # time limit of a state query: a busy scheduler answers late
END_S = 20.0  # for salloc to give the job back
GATHER_S = 0.1  # Hosts of one start or restart arrive within one turn of the event loop.
# Intervals between queries of a waiting job's state: short at first, then longer by this factor.
# Slurm's manual asks users not to loop around squeue.
ASK_AT_FIRST_S, ASK_AT_LAST_S, ASK_SLOWER = 0.5, 30.0, 1.3

_GRANTED = "phalanx-job: "
# The command that salloc runs in the job.
_REPORT = f'echo "{_GRANTED}$SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec sleep infinity'
# Run salloc, and end it when the standard input ends: this process has closed it or is gone. At
# SIGHUP salloc takes the job out of the queue, or ends it; in a job that runs it ignores SIGTERM.
# The outer shell is killed with this process, maybe when salloc runs and nobody waits for the end
# of the input yet; so an inner one, which is not, starts both.
_HOLD = (
    'exec 3<&0; { "$@" 3<&- & job=$!; { cat <&3 >/dev/null; kill -HUP "$job"; } & wait "$job"; } & '
    'wait "$!"'
)
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"}


class SlurmJob:
    """Submit a job and hold it until its last host leaves."""

    def __init__(self, remote: RemoteOptions) -> None:
        self._remote = remote
        self._hosts: list[HostStart] = []
        self._n_left = 0
        self.id = ""
        self._salloc: RemoteCommand | None = None
        self._ending: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[str | None] | None = None
        self._granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_submitted = False
        self.running = asyncio.ensure_future(self._run())  # the result: the names of the nodes

    def __str__(self) -> str:
        return f"Slurm's job {self.id}"

    def add(self, host: HostStart) -> int:
        """Add a host; return the place of its node."""
        self._hosts.append(host)
        self._n_left += 1
        return len(self._hosts) - 1

    def leave(self) -> None:
        """Give up a host; the last one ends the job."""
        self._n_left -= 1
        if not self._n_left:
            self.running.cancel()
            if self._salloc is not None:
                self._ending = asyncio.ensure_future(self._salloc.end(END_S))

    async def _run(self) -> Sequence[str]:
        seen = 0
        # until no more hosts arrive, or all are there
        while seen < len(self._hosts) < self._remote.job.nodes:
            seen = len(self._hosts)
            await asyncio.sleep(GATHER_S)
        self.is_submitted = True
        plans = [host.plan for host in self._hosts]
        command = salloc_words(self._remote.job, len(plans), max(plan.ranks for plan in plans))
        way = LaunchSpec(
            plans[0],
            "",
            ["/bin/sh", "-c", _HOLD, "salloc", *command],
            missing="there is no /bin/sh on this machine",
            waiting="",
            why=_why_refused,
        )
        self._salloc = RemoteCommand(way, b"", self._on_line)
        await self._wait_in_queue(self._salloc)
        environ = {"SLURM_JOB_NODELIST": self._granted.result()}
        try:
            found = await asyncio.to_thread(job_hosts, "slurm", environ)
        except ValueError as error:
            raise HostUnreachable(plans[0].name, str(error)) from None
        return [host.ssh for host in found.hosts]

    def _on_line(self, line: bytes) -> None:
        """Take the job's id and its nodes: the job runs."""
        text = line.decode(errors="replace")
        if text.startswith(_GRANTED):
            self.id, _, nodes = text.removeprefix(_GRANTED).partition(" ")
            if not self._granted.done():
                self._granted.set_result(nodes)

    async def _wait_in_queue(self, salloc: RemoteCommand) -> None:
        """Wait until the job runs, and report why it waits."""
        first, loop = self._hosts[0], asyncio.get_running_loop()
        until_s, every_s, text = loop.time() + self._remote.timeout_s, ASK_AT_FIRST_S, ""
        ended = asyncio.ensure_future(salloc.ended())
        try:
            while not self._granted.done():
                wait_s = max(0.0, min(every_s, until_s - loop.time()))
                news: set[asyncio.Future[Any]] = {self._granted, ended}
                await asyncio.wait(news, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                every_s = min(ASK_AT_LAST_S, every_s * ASK_SLOWER)
                if self._granted.done():
                    break
                if ended.done():
                    raise HostUnreachable(first.plan.name, ended.result())
                before, text = text, await self._waiting(salloc)
                if loop.time() >= until_s:
                    why = (
                        f"{text} after {self._remote.timeout_s:g} s, and was cancelled: wait "
                        "longer with --boot-timeout S, or ask for less, or another --queue"
                    )
                    raise HostUnreachable(first.plan.name, why)
                if text != before and not self._granted.done():
                    first.on_slow(text)
        finally:
            ended.cancel()
        if text:
            first.on_slow(f"{self} runs; its supervisors have not answered yet")

    async def _waiting(self, salloc: RemoteCommand) -> str:
        """Return a text: the job waits in the queue, and the reason."""
        found = re.search(r"job allocation (\d+)", salloc.stderr)
        if found is None:
            return "Slurm has not taken the job"
        self.id = found[1]
        said = await self._ask()
        return f"job {self.id} waits in Slurm's queue{f' ({said})' if said else ''}"

    async def why_over(self) -> str:
        """Return how the job has ended; "": it has not."""
        if self._asking is None or self._asking.done():  # else another host has just asked
            self._asking = asyncio.ensure_future(self._ask())
        said = await asyncio.shield(self._asking)
        if said is None or said.partition(":")[0] in {"RUNNING", *_WAITING}:
            return ""
        return f"{self} has ended{f' ({said})' if said else ''}"

    async def _ask(self) -> str | None:
        """Return the job's state and the reason.

        "": the job is gone. None: no answer.
        """
        words = ["squeue", "--noheader", "--format=%T|%r", "--jobs", self.id]
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError:
            return None
        try:
            out, err = await asyncio.wait_for(child.communicate(), ASK_S)
        except (asyncio.TimeoutError, TimeoutError):
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        if child.returncode:  # other errors, such as a missing command, say nothing about the job
            return "" if b"invalid job id specified" in (out + err).lower() else None
        return read_state(out.decode(errors="replace"))


def read_state(out: str) -> str:
    """Read a job's state and the reason from squeue's line ``STATE|REASON``.

    Examples
    --------
    >>> read_state("PENDING|Resources"), read_state("RUNNING|None"), read_state("")
    ('PENDING: Resources', 'RUNNING', '')
    """
    state, _, reason = out.partition("\n")[0].strip().partition("|")
    return state if reason in {"", "None"} else f"{state}: {reason}"


def salloc_words(job: JobOptions, n_nodes: int, cores: int) -> list[str]:
    """Return the command that asks for a job.

    It reports when the job runs.

    Examples
    --------
    >>> salloc_words(JobOptions(2, "short", args=("--gres", "gpu:1")), 2, 4)[2:7]
    ['--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4', '--partition=short', '--gres']
    """
    place = [f"--nodes={n_nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cores}"]
    asked = [*place, *job_words(job), *job.args]
    return ["salloc", "--job-name=phalanx", *asked, "/bin/sh", "-c", _REPORT]


def _why_refused(outcome: CommandOutcome) -> str:
    if outcome.status == 127:  # the shell has not found it
        return (
            "there is no salloc on this machine: start it on a login node of a cluster with Slurm, "
            "or say another --launcher"
        )
    said = [line.strip() for line in outcome.stderr.splitlines()]
    said = [line for line in said if "error:" in line] or [line for line in said[-1:] if line]
    why = said[0] if said else f"salloc exits with {outcome.status}"
    why = re.sub(r"^(salloc: *)?(error: *)?", "", why, flags=re.IGNORECASE)
    return (
        f"Slurm refuses the job: {why} "
        "(set what it requires with --queue, --account, --time or --launcher-arg)"
    )


class SlurmJobs:
    """Collect hosts that start together into one job."""

    def __init__(self) -> None:
        self._newest: SlurmJob | None = None

    def join(self, asked: HostStart) -> tuple[SlurmJob, int]:
        """Add a host; return its job, and its node's place there."""
        if self._newest is None or self._newest.is_submitted:
            self._newest = SlurmJob(asked.remote)
        return self._newest, self._newest.add(asked)


async def launch_in_new_job(asked: HostStart, jobs: SlurmJobs) -> RemoteCommand:
    """Submit a job for a host and start its supervisor there."""
    job, place = jobs.join(asked)
    once = contextlib.ExitStack()
    once.callback(job.leave)
    try:
        try:
            nodes = await asyncio.shield(job.running)
        except HostUnreachable as error:
            # the first host's error tells the reason; the others refer to it
            raise HostUnreachable(
                asked.plan.name, "the same job" if place else error.text
            ) from None
        plan = msgspec.structs.replace(asked.plan, name=nodes[place])
        # what the user asks of the job is said to salloc
        remote = msgspec.structs.replace(asked.remote, job=JobOptions())
        way = step_launch(plan, remote, job.id)
        return await launch_by(way._replace(leave=once.close, why_over=job.why_over), asked)
    except BaseException:
        once.close()
        raise
