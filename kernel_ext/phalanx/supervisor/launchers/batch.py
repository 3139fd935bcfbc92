"""Start hosts' supervisors with a new batch job.

ipyparallel's launchers write the script, and know the commands to submit and delete a job. Their
`start` and `stop` are not used: both block and hide the scheduler's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.protocol.host import HostUp

from .remote_command import BEGUN, HostStart, HostUnreachable, SharedKeyDirectory, last_output

State = Literal["waits", "runs", "held", "over", "unknown"]
_KINDS: tuple[State, ...] = ("held", "waits", "runs", "over")

ASK_S = 20.0  # time limit of a state query: a busy scheduler answers late
SUBMIT_S = 60.0
NEVER = r"(?!)"  # matches nothing
GATHER_S = 0.1  # Hosts of one start or restart arrive within one turn of the event loop.


class JobStatus(NamedTuple):
    """State of a job; ``text`` is the scheduler's reason.

    ``held``: the job will not start without an operator.
    """

    state: State
    text: str = ""


class SchedulerSpec(NamedTuple):
    """Description of a scheduler.

    Attributes
    ----------
    sign : str
        Begins each line of options in the script.
    options : tuple of str
        Our options. ipyparallel fills in {n} (nodes), {cores}, {output_file} and {folder}; `quote`
        and `doubled` protect text with spaces.
    user : tuple of str
        Forms of the user's queue, account and time; "": the scheduler has no such option.
    ask : tuple of str
        Command that asks for the state of {job}.
    answer : str
        Pattern of one state in the output of ``ask``, with the groups ``state`` and ``text``.
    held, waits, runs, over : str
        Patterns of states. The first of them that matches any state counts.
    shown : str
        Form of the text about a state.
    otherwise : str
        State if the output has none.
    gone : str
        Pattern of the error of ``ask`` for a {job} that does not exist.
    first, last : str
        First and last line of the script.
    is_array : bool
        Whether the script starts {n} jobs with one supervisor each. Otherwise it starts one job,
        and the job's first node starts a supervisor on each node.
    has_stdin : bool
        Whether the submit command reads the script from its standard input.
    """

    sign: str
    options: tuple[str, ...]
    user: tuple[str, str, str]
    ask: tuple[str, ...]
    answer: str
    held: str = NEVER
    waits: str = NEVER
    runs: str = NEVER
    over: str = ".*"
    shown: str = "{text}"
    otherwise: State = "over"
    gone: str = NEVER
    first: str = "#!/bin/sh"
    last: str = "exec {program_and_args}"
    is_array: bool = False
    has_stdin: bool = False

    @property
    def script(self) -> str:
        """Return the template of the script."""
        ours = [f"{self.sign}{option}" for option in self.options]
        return "\n".join([self.first, *ours, "{directives}", self.last, ""])

    def read(self, job: str, out: str) -> JobStatus:
        """Read a job's state from the output of ``ask``."""
        found = list(re.finditer(self.answer.replace("{job}", job), out, re.MULTILINE))
        for kind in _KINDS:
            for match in found:
                if re.fullmatch(getattr(self, kind), match["state"]):
                    text = (match.groupdict().get("text") or "").replace("\n\t", "").strip()
                    text = "" if text in {"None", "undefined"} else text
                    text_of_state = self.shown.format(state=match["state"], text=text).removesuffix(
                        ": "
                    )
                    return JobStatus(kind, "" if kind == "runs" else text_of_state)
        return JobStatus("unknown" if found else self.otherwise)


_PROGRAM_OF_HTCONDOR = "{doubled(program_and_args)} {doubled(quote(folder))}/host-$(Process)"

SCHEDULERS = {
    "slurm": SchedulerSpec(
        "#SBATCH ",
        (
            "--job-name=phalanx", "--output={quote(output_file)}", "--nodes={n}",
            "--ntasks-per-node=1", "--cpus-per-task={cores}",
        ),
        ("--partition={}", "--account={}", "--time={}"),
        ("squeue", "--noheader", "--format=%T|%r", "--jobs", "{job}"),
        r"^(?P<state>\w+)\|(?P<text>.*)",
        waits="PENDING|CONFIGURING|REQUEUED|SUSPENDED",
        runs="RUNNING",
        shown="{state}: {text}",
        gone="invalid job id specified",
    ),
    # Torque's directives, which OpenPBS and PBS Pro accept too.
    "pbs": SchedulerSpec(
        "#PBS ",
        ("-N phalanx", "-j oe", "-o {quote(output_file)}", "-l nodes={n}:ppn={cores}"),
        ("-q {}", "-A {}", "-l walltime={}"),
        ("qstat", "-f", "{job}"),
        r"job_state = (?P<state>\w)(?:(?s:.)*?comment = (?P<text>.+(?:\n\t.+)*))?",
        waits="[^CFXREB]",
        runs="[REB]",
        otherwise="unknown",
        gone=r"unknown job id (?:error )?{job}\b|\b{job}\b\S* job has finished",
    ),
    # A job of several hosts needs a parallel environment, and each site has its own names for
    # these. An array needs none. (--launcher-arg='-pe smp 8' asks for eight slots for each task.)
    "sge": SchedulerSpec(
        "#$ ",
        ("-S /bin/sh", "-N phalanx", "-j y", "-o {quote(output_file)}", "-t 1-{n}"),
        ("-q {}", "-A {}", "-l h_rt={}"),
        ("qstat",),
        r"^ *{job} +\S+ +\S+ +\S+ +(?P<state>\S+)",
        held=".*E.*",
        waits=".*q.*",
        runs=".*",
        shown="{state}",
        last="exec {program_and_args} {quote(folder)}/host-$((SGE_TASK_ID - 1))",
        is_array=True,
    ),
    "lsf": SchedulerSpec(
        "#BSUB ",
        ("-J phalanx", "-oo {quote(output_file)}", "-n {n * cores}", '-R "span[ptile={cores}]"'),
        ("-q {}", "-P {}", "-W {}"),
        ("bjobs", "-noheader", "-o", "stat", "{job}"),
        r"\A\s*(?P<state>\S+)",
        waits="PEND|PSUSP|WAIT|PROV",
        runs="RUN|USUSP|SSUSP",
        over="DONE|EXIT|ZOMBI",
        shown="{state}",
        otherwise="unknown",
        gone="job <{job}> is not found",
        has_stdin=True,
    ),
    # Run a shell: HTCondor starts Python so that Python does not find its modules, as a comment in
    # ipyparallel's launcher says.
    "htcondor": SchedulerSpec(
        "",
        (
            "executable = /bin/sh", "transfer_executable = False", "should_transfer_files = NO",
            f"arguments = \"-c 'exec {_PROGRAM_OF_HTCONDOR}'\"",
            "output = {output_file}", "error = {output_file}", "log = {folder}/log",
            "request_cpus = {cores}",
        ),
        ("", "accounting_group = {}", "allowed_job_duration = {}"),
        ("condor_q", "{job}", "-af", "JobStatus", "HoldReason"),
        r"^(?P<state>\d+)(?: (?P<text>.*))?$",
        held="5",
        waits="1",
        runs="[^34]",
        first="universe = vanilla",
        last="queue {n}",
        is_array=True,
    ),
}  # fmt: skip


def directives(form: SchedulerSpec, job: JobOptions) -> str:
    """Return the user's scheduler options as lines of the script.

    Raises
    ------
    ValueError
        The scheduler has no such option.

    Examples
    --------
    >>> print(directives(SCHEDULERS["pbs"], JobOptions(2, "short", args=("-l", "mem=2 gb"))))
    #PBS -q short
    #PBS -l 'mem=2 gb'
    """
    words = []
    for name, text in zip(("queue", "account", "time"), form.user, strict=True):
        if value := getattr(job, name):
            if not text:
                msg = f"--{name}: there is none here; say it with --launcher-arg"
                raise ValueError(msg)
            words.append(text.format(value))
    if job.args:
        words += [shlex.join(job.args)] if form.sign else job.args
    return "\n".join(f"{form.sign}{word}" for word in words)


def is_unknown(form: SchedulerSpec, job: str, said: str) -> bool:
    """Whether the scheduler says that the job does not exist.

    Other errors, such as a missing command, are no such answer.

    Examples
    --------
    >>> is_unknown(SCHEDULERS["lsf"], "12", "Job <12> is not found")
    True
    >>> is_unknown(SCHEDULERS["lsf"], "12", "bjobs: command not found")
    False
    """
    return re.search(form.gone.replace("{job}", job), said, re.IGNORECASE) is not None


def doubled(words: str) -> str:
    """Double the quotes of a shell command for HTCondor's arguments."""
    return words.replace("'", "''").replace('"', '""')


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
    """Submit, watch and delete one job of a scheduler.

    The job is deleted when none of its hosts is left.

    Raises
    ------
    ValueError
        The scheduler does not have a requested option.
    """

    def __init__(
        self, remote: RemoteOptions, hosts: Sequence[BatchHost], lines: Sequence[bytes]
    ) -> None:
        self._form = SCHEDULERS[remote.launcher]
        self._remote = remote
        self._title = TITLES[remote.launcher]
        self._asked = directives(self._form, remote.job)
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
        return f"{self._title}'s job {self._id}"

    @property
    def waiting(self) -> str:
        """Return a text: the job waits in the queue, and the reason."""
        why = f" ({self.status.text})" if self.status.text else ""
        return f"job {self._id} waits in {self._title}'s queue{why}"

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
            launcher = self._written()
            self._folder.guard(*launcher.delete_command)
            job = launcher.parse_job_id(self._handed_over(launcher))
            self._folder.name_job(job)
        except BaseException:
            self._folder.remove()
            raise
        self._id = job  # set only now: `end` may delete the job only when the guard knows its id

    def _handed_over(self, launcher: Any) -> str:
        """Run the submit command, for Slurm ``sbatch SCRIPT``.

        Returns its output, with the job's id.
        """
        words, script = launcher.args, os.devnull
        if self._form.has_stdin:
            words, script = launcher.submit_command, launcher.batch_file
        try:
            with Path(script).open("rb") as file:
                done = subprocess.run(
                    words, stdin=file, capture_output=True, text=True, timeout=SUBMIT_S, check=False
                )
        except FileNotFoundError:
            msg = (
                f"there is no {words[0]} on this machine: start it on a login node of a cluster "
                f"with {self._title}, or say another --launcher"
            )
            raise ValueError(msg) from None
        except subprocess.TimeoutExpired:
            msg = f"{self._title} has not taken the job within {SUBMIT_S:g} s ({words[0]})"
            raise ValueError(msg) from None
        if done.returncode or not launcher.job_id_regexp.search(done.stdout):
            said = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
            why = next((line for line in said if line), f"{words[0]} exits with {done.returncode}")
            why = re.sub(rf"^({words[0]}: *)?(error: *)?", "", why, flags=re.IGNORECASE)
            msg = (
                f"{self._title} refuses the job: {why} "
                "(set what it requires with --queue, --account, --time or --launcher-arg)"
            )
            raise ValueError(msg)
        return done.stdout

    def _written(self) -> Any:
        """Write the script with ipyparallel's launcher; return the launcher."""
        from ipyparallel.cluster.launcher import find_launcher_class

        folder, python = str(self._folder), self._remote.python or sys.executable
        role = ["host"] if self._form.is_array else ["job", folder, self._remote.launcher]
        launcher = find_launcher_class(self._remote.launcher, "engine")(
            work_dir=folder,
            profile_dir=folder,
            output_file=f"{folder}/output",
            batch_template=self._form.script,
            program=[python, "-m", "phalanx.supervisor", *role],
            program_args=[],
            namespace={
                "folder": folder,
                "quote": shlex.quote,
                "doubled": doubled,
                "cores": max(host.plan.ranks for host in self._hosts),
                "directives": self._asked,
            },
        )
        launcher.write_batch_script(len(self._hosts))
        return launcher

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
            # one job of an array may be held, even long after others have started
            if status.state == "held":
                for host in self._left:
                    if self._folder.key(host.number).exists():
                        host.end(f"{self} is held and will not start: {status.text}")
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
        words = [word.format(job=self._id) if word == "{job}" else word for word in self._form.ask]
        try:
            status, out, err = await asyncio.wait_for(_run(words), ASK_S)
        except (asyncio.TimeoutError, OSError):
            return JobStatus("unknown")
        if status:
            is_gone = is_unknown(self._form, self._id, out + err)
            return JobStatus("over" if is_gone else "unknown")
        return self._form.read(self._id, out)

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
        try:
            job = BatchJob(remote, hosts, [line for _, line in wanted])
        except ValueError as error:
            raise HostUnreachable(hosts[0].plan.name, str(error)) from None
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
