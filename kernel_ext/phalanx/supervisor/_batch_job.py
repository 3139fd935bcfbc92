"""A scheduler's job with hosts' supervisors: submitted, watched while it waits and runs, and deleted.

The scheduler's command and the job's number are ipyparallel's launchers' to know, as is the writing
of the script. Not used of them is their `start` and `stop`, which block, lose what the scheduler
says, and do not tell how a job stands.
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
from typing import Any

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan, RemoteOptions

from ._batch_forms import FORMS, Standing, directives, doubled, is_unknown
from ._host_process import BEGUN, HostUnreachable
from ._key_folder import KeyFolder, last_words

__all__ = ["BatchHost", "BatchJob"]

ASK_S = 20.0  # a scheduler that is busy answers late
SUBMIT_S = 60.0
# How often a scheduler is asked: soon after something has changed, then ever less often. (Slurm's
# own manual asks for no loops around squeue.)
ASK_AT_FIRST_S, ASK_AT_LAST_S, ASK_SLOWER = 0.5, 30.0, 1.3
# The job ends with us, whatever ends us: the guard is told so by the end of its input. It is there
# before the job, whose number is its first line: what ends us meanwhile leaves no keys, without
# which a job that is submitted nevertheless ends at once.
_GUARD = (
    'trap "" INT HUP TERM; read -r id; read -r _; '
    '[ -n "$id" ] && "$@" "$id" >/dev/null 2>&1; rm -rf -- "$0"'
)


class BatchHost:
    """A host supervisor that a job has started, or will."""

    def __init__(self, number: int, plan: HostPlan, on_slow: Callable[[str], None]) -> None:
        self.number = number
        self.plan = plan
        self.on_slow = on_slow
        self.job: BatchJob | None = None
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether its job has ended, which takes it along."""
        return self.over.done()

    async def ended(self) -> str:
        """Wait for its end; words for why."""
        return await asyncio.shield(self.over)

    def end(self, why: str) -> None:
        """Learn that it has ended; the first word holds."""
        if not self.over.done():
            self.over.set_result(why)

    def look(self) -> None:
        """Ask the scheduler now."""
        if self.job is not None:
            self.job.nudge.set()

    def farewell(self) -> None:
        """It is done: the job ends with the last of its hosts."""
        self.kill()

    def kill(self) -> None:
        """Do without it; the job ends with the last of its hosts."""
        if self.job is not None:
            self.job.drop(self)


class BatchJob:
    """A job in a scheduler's hands: submitted once, watched, and deleted when no host is left.

    `ValueError` where its scheduler has no such option.
    """

    def __init__(
        self, remote: RemoteOptions, hosts: Sequence[BatchHost], lines: Sequence[bytes]
    ) -> None:
        self._form = FORMS[remote.launcher]
        self._remote = remote
        self._title = TITLES[remote.launcher]
        self._asked = directives(self._form, remote.job)
        self._hosts = list(hosts)
        self._left = set(hosts)
        self._folder = KeyFolder(lines)
        self._id = ""
        self._loop = asyncio.get_running_loop()
        self._guard: subprocess.Popen[bytes] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.nudge = asyncio.Event()
        self.standing = Standing("waits")
        self.changed: asyncio.Future[None] = self._loop.create_future()

    def __str__(self) -> str:
        """What an error text calls it."""
        return f"{self._title}'s job {self._id}"

    @property
    def waiting(self) -> str:
        """That it waits, and for what."""
        why = f" ({self.standing.text})" if self.standing.text else ""
        return f"job {self._id} waits in {self._title}'s queue{why}"

    # -- its beginning ------------------------------------------------------------------------

    async def submit(self) -> None:
        """Hand it to the scheduler.

        Raises
        ------
        HostUnreachable
            It is refused, or there is no such scheduler; in its own words.
        """
        # A thread, which goes on to the end when this is cancelled: a job whose number nobody has
        # read would stay in the queue.
        try:
            await self._loop.run_in_executor(None, self._submit)
        except ValueError as error:
            raise HostUnreachable(self._hosts[0].plan.name, str(error)) from None
        if self._left:
            self._watching = self._loop.create_task(self._watch())
        else:
            self.end()

    def _submit(self) -> None:
        """Set its guard, and submit it; `ValueError` says why it cannot be."""
        try:
            launcher = self._written()
            guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, str(self._folder), *launcher.delete_command],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            self._folder.remove()
            raise
        assert guard.stdin is not None
        try:
            self._id = launcher.parse_job_id(self._handed_over(launcher))
            guard.stdin.write(f"{self._id}\n".encode())
            guard.stdin.flush()
        except BaseException:
            guard.communicate()  # it removes the folder
            raise
        self._guard = guard  # not before: it is ended only when it knows the job

    def _handed_over(self, launcher: Any) -> str:
        """Run the command that submits it; what that says has the job's number in it."""
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
                "(--queue, --account, --time and --launcher-arg say what it asks for)"
            )
            raise ValueError(msg)
        return done.stdout

    def _written(self) -> Any:
        """Have ipyparallel's launcher write the script; return the launcher."""
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

    # -- watching -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        every_s = ASK_AT_FIRST_S
        over: Standing | None = None
        while True:
            for host in self._left:
                if said := self._folder.said(host.number):
                    host.end(said)
            standing = await self._ask()
            if standing.state != "over":
                over = None
            elif over is None:  # one answer may be a busy scheduler's mistake
                over = standing
                await asyncio.sleep(ASK_AT_FIRST_S)
                continue
            elif not standing.text:
                standing = over
            if standing.state != "unknown" and standing != self.standing:
                every_s = ASK_AT_FIRST_S
                self.standing = standing
                changed, self.changed = self.changed, self._loop.create_future()
                changed.set_result(None)
            if standing.state == "over":
                break
            if standing.state == "held":  # maybe one of many, or long after its start
                for host in self._left:
                    if self._folder.key(host.number).exists():
                        host.end(f"{self} is held and will not start: {standing.text}")
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self.nudge.wait(), every_s)
            self.nudge.clear()
            every_s = min(ASK_AT_LAST_S, every_s * ASK_SLOWER)
        for host in list(self._left):
            why = self._folder.said(host.number) or self._why_over()
            host.end(why)

    def _why_over(self) -> str:
        said = last_words(self._folder.path / "output", but=BEGUN)
        why = f" ({self.standing.text})" if self.standing.text else ""
        if said or why:
            return f"{self} has ended{why}{f': {said}' if said else ''}"
        base = self._folder.path.parent
        text = f"{self} has ended and said nothing: do its nodes see {base}?"
        return f"{text} (PHALANX_JOB_DIR names another folder)"

    async def _ask(self) -> Standing:
        words = list(self._form.ask)
        if self._form.ask[-1:] != ("qstat",):
            words.append(self._id)
        if self._form.ask[0] == "condor_q":  # its options stand behind
            words = [words[0], self._id, *words[1:-1]]
        try:
            status, out, err = await asyncio.wait_for(_run(words), ASK_S)
        except (asyncio.TimeoutError, OSError):
            return Standing("unknown")
        if status:
            is_gone = is_unknown(self._form, self._id, out + err)
            return Standing("over" if is_gone else "unknown")
        return self._form.read(self._id, out)

    # -- its end ------------------------------------------------------------------------------

    def drop(self, host: BatchHost) -> None:
        """Do without a host; the last one's end is the job's."""
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
        """Have it deleted, wherever it is; idempotent."""
        if self._watching is not None:
            self._watching.cancel()
        if self._guard is not None and self._ending is None:
            self._ending = self._loop.create_task(self._wait_guard(self._guard))

    async def _wait_guard(self, guard: subprocess.Popen[bytes]) -> None:
        assert guard.stdin is not None
        guard.stdin.close()
        await self._loop.run_in_executor(None, guard.wait)


async def _run(words: Sequence[str]) -> tuple[int, str, str]:
    """Ask the scheduler something: exit status, output, errors."""
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
