"""What a job is to schedulers: its script, and the words in which they tell how it stands.

Pure data and parsing. How a job is submitted and deleted, and where its number stands, is taken
from ipyparallel's launchers (`_batch`); their scripts start engines, one a process, without a
word on nodes, and none of them can tell how a job stands: that is here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple

from phalanx.protocol import JobOptions

__all__ = ["FORMS", "Form", "Standing", "directives", "doubled", "is_unknown"]

State = Literal["waits", "runs", "held", "over", "unknown"]


class Standing(NamedTuple):
    """How a job stands; ``text`` is the scheduler's reason. ``held``: it will not go on."""

    state: State
    text: str = ""


class Form(NamedTuple):
    """A scheduler's jobs.

    ``script`` has the places {n} (nodes), {cores}, {output_file}, {folder}, {directives} and
    {program_and_args} of ipyparallel's templates, and `quote` and `doubled` for what has spaces in
    it. ``is_array``: it starts {n} jobs, each of which
    is one supervisor; else one job, whose first node starts one on each. ``line`` is one more
    directive, ``queue``, ``account`` and ``time`` such a word ("": there is none). ``ask`` is the
    command, before the job's number, whose output (with its exit status and errors) `read` takes;
    ``gone`` is what it says where it fails because there is no such job, with {0} for the number.
    """

    script: str
    line: str
    queue: str
    account: str
    time: str
    ask: tuple[str, ...]
    read: Callable[[str, str], Standing]
    is_array: bool = False
    has_stdin: bool = False
    gone: str = r"(?!)"  # without a word of its own: `read` sees it


def directives(form: Form, job: JobOptions) -> str:
    """Write what a user asks of the scheduler as lines of the script.

    Raises
    ------
    ValueError
        The scheduler has no such thing.

    Examples
    --------
    >>> print(directives(FORMS["pbs"], JobOptions(2, "short", time="1:00:00", args=("-V",))))
    #PBS -q short
    #PBS -l walltime=1:00:00
    #PBS -V
    >>> print(directives(FORMS["pbs"], JobOptions(2, args=("-l", "mem=2 gb"))))
    #PBS -l 'mem=2 gb'
    """
    words = []
    for name, text in (("queue", form.queue), ("account", form.account), ("time", form.time)):
        value = getattr(job, name)
        if value and not text:
            msg = f"--{name}: there is none here; say it with --launcher-arg"
            raise ValueError(msg)
        if value:
            words.append(text.format(value))
    if job.args:
        words += job.args if form.line == "{}" else [shlex.join(job.args)]
    return "\n".join(form.line.format(word) for word in words)


def is_unknown(form: Form, job: str, said: str) -> bool:
    """Whether a scheduler says that it has no such job, and not that something else is missing.

    Examples
    --------
    >>> is_unknown(FORMS["lsf"], "12", "Job <12> is not found")
    True
    >>> is_unknown(FORMS["lsf"], "12", "bjobs: command not found")
    False
    """
    return re.search(form.gone.format(job), said, re.IGNORECASE) is not None


def doubled(words: str) -> str:
    """Write a shell's words as HTCondor wants them between its own quotes, single in double ones."""
    return words.replace("'", "''").replace('"', '""')


def _read_slurm(_: str, out: str) -> Standing:
    lines = [line.split("|") for line in out.splitlines() if "|" in line]
    if not lines:
        return Standing("over")
    state, reason = lines[0][0], lines[0][1].strip()
    text = f"{state.lower()}{f': {reason}' if reason not in {'None', ''} else ''}"
    if state in {"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"}:
        return Standing("waits", text)
    return Standing("runs") if state == "RUNNING" else Standing("over", text)


def _read_pbs(_: str, out: str) -> Standing:
    state = re.search(r"job_state = (\w)", out)
    comment = re.search(r"comment = (.+(?:\n\t.+)*)", out)
    text = comment[1].replace("\n\t", "") if comment else ""
    if state is None:
        return Standing("unknown")
    if state[1] in "CFX":
        return Standing("over", text)
    return Standing("runs" if state[1] in "REB" else "waits", text)


def _read_sge(job: str, out: str) -> Standing:
    found = [line.split() for line in out.splitlines() if line.split()[:1] == [job]]
    states = [words[4] for words in found if len(words) > 4]
    if any("E" in state for state in states):
        return Standing("held", f"qstat says {next(state for state in states if 'E' in state)}")
    waits = [state for state in states if "q" in state]
    if waits:
        return Standing("waits", waits[0])
    return Standing("runs" if states else "over")


def _read_lsf(_: str, out: str) -> Standing:
    line = next((line.strip() for line in out.splitlines() if line.strip()), "")
    state = line.partition(" ")[0]
    if state in {"PEND", "PSUSP", "WAIT", "PROV"}:
        return Standing("waits", state)
    if state in {"DONE", "EXIT", "ZOMBI"}:
        return Standing("over", state)
    return Standing("runs" if state in {"RUN", "USUSP", "SSUSP"} else "unknown", state)


def _read_htcondor(_: str, out: str) -> Standing:
    lines = [line.split(None, 1) for line in out.splitlines() if line.strip()]
    if not lines:
        return Standing("over")
    held = [words for words in lines if words[0] == "5"]
    if held:
        return Standing("held", held[0][1].strip() if len(held[0]) > 1 else "")
    if any(words[0] == "1" for words in lines):
        return Standing("waits", "idle")
    is_over = all(words[0] in {"3", "4"} for words in lines)
    return Standing("over" if is_over else "runs")


FORMS = {
    "slurm": Form(
        """#!/bin/sh
#SBATCH --job-name=phalanx
#SBATCH --output={quote(output_file)}
#SBATCH --nodes={n}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cores}
{directives}
exec {program_and_args}
""",
        "#SBATCH {}",
        "--partition={}",
        "--account={}",
        "--time={}",
        ("squeue", "--noheader", "--format=%T|%r", "--jobs"),
        _read_slurm,
        gone="invalid job id specified",
    ),
    # Torque's words, which OpenPBS and PBS Pro know, too.
    "pbs": Form(
        """#!/bin/sh
#PBS -N phalanx
#PBS -j oe
#PBS -o {quote(output_file)}
#PBS -l nodes={n}:ppn={cores}
{directives}
exec {program_and_args}
""",
        "#PBS {}",
        "-q {}",
        "-A {}",
        "-l walltime={}",
        ("qstat", "-f"),
        _read_pbs,
        gone=r"unknown job id (?:error )?{0}\b|\b{0}\b\S* job has finished",
    ),
    # A job of several hosts needs a parallel environment, whose name is each site's own; an array
    # needs nothing. (--launcher-arg='-pe smp 8' asks for eight slots for each of its tasks.)
    "sge": Form(
        """#!/bin/sh
#$ -S /bin/sh
#$ -N phalanx
#$ -j y
#$ -o {quote(output_file)}
#$ -t 1-{n}
{directives}
exec {program_and_args} {quote(folder)}/host-$((SGE_TASK_ID - 1))
""",
        "#$ {}",
        "-q {}",
        "-A {}",
        "-l h_rt={}",
        ("qstat",),
        _read_sge,
        is_array=True,
    ),
    "lsf": Form(
        """#!/bin/sh
#BSUB -J phalanx
#BSUB -oo {quote(output_file)}
#BSUB -n {n * cores}
#BSUB -R "span[ptile={cores}]"
{directives}
exec {program_and_args}
""",
        "#BSUB {}",
        "-q {}",
        "-P {}",
        "-W {}",
        ("bjobs", "-noheader", "-o", "stat"),
        _read_lsf,
        has_stdin=True,
        gone="job <{0}> is not found",
    ),
    # A shell, as ipyparallel's own words on its launcher say: HTCondor starts Python so that it does
    # not find its modules.
    "htcondor": Form(
        """universe = vanilla
executable = /bin/sh
transfer_executable = False
should_transfer_files = NO
arguments = "-c 'exec {doubled(program_and_args)} {doubled(quote(folder))}/host-$(Process)'"
output = {output_file}
error = {output_file}
log = {folder}/log
request_cpus = {cores}
{directives}
queue {n}
""",
        "{}",
        "",
        "accounting_group = {}",
        "allowed_job_duration = {}",
        ("condor_q", "-af", "JobStatus", "HoldReason"),
        _read_htcondor,
        is_array=True,
    ),
}
