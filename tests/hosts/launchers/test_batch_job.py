"""A job that is submitted, without Slurm: its script, how it is watched, its guard and its head."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers import batch as batch_module
from phalanx.supervisor.launchers.batch import (
    BatchHost,
    BatchJob,
    JobGathering,
    JobStatus,
    launch_as_job,
)
from phalanx.supervisor.launchers.remote_command import (
    BEGUN,
    HostStart,
    LaunchSpec,
    RemoteCommand,
)

SUBMIT = """
import asyncio
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers.batch import BatchHost, BatchJob

async def submit():
    host = BatchHost(0, HostPlan("node0", 1), print)
    remote = RemoteOptions(launcher="slurm", job=JobOptions(1))
    await BatchJob(remote, [host], [b"key"]).submit()
    print("submitted", flush=True)
    await host.ended()

asyncio.run(submit())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "some jobs' keys"
    monkeypatch.setenv("PHALANX_JOB_DIR", str(folder))
    monkeypatch.setattr(batch_module, "ASK_AT_FIRST_S", 0.0)
    return folder


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Make programs of that name, in front of all others."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def make(name, text):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return make


def _job(n=1, python=""):
    hosts = [BatchHost(number, HostPlan(f"node{number}", 1), print) for number in range(n)]
    remote = RemoteOptions(python, launcher="slurm", job=JobOptions(n))
    job = BatchJob(remote, hosts, [b"key"] * n)
    job._id = "12"
    return job, hosts


# -- its script -----------------------------------------------------------------------------------


def test_a_script_whose_paths_have_spaces_and_quotes(folder, programs):
    python = programs("my python's", 'printf "%s\\n" "$@"')

    async def written():
        job, _ = _job(2, str(python))
        return job._written()

    script = asyncio.run(written())
    line = next(line for line in script.read_text().splitlines() if "/output" in line)
    quoted = f"{script.parent}/output".replace("'", "'\"'\"'")
    assert line.endswith(f"'{quoted}'")
    said = subprocess.run(["/bin/sh", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-m", "phalanx.supervisor", "job", str(script.parent)]


# -- watching -------------------------------------------------------------------------------------


def _watched(standings):
    """Watch a job that stands so; return the reason of its host's end."""
    left = list(standings)

    async def watch():
        job, (host,) = _job()

        async def ask():
            job.nudge.set()
            return left.pop(0)

        job._ask = ask
        (job._folder.path / "output").write_text(f"no such disk\n{BEGUN}\n{BEGUN}\n")
        await job._watch()
        return host.over.result()

    said = asyncio.run(watch())
    assert left == []
    return said


def test_it_is_over_when_that_is_said_twice_in_a_row():
    over, runs = JobStatus("over", "completing: TimeLimit"), JobStatus("runs")
    said = _watched([runs, over, runs, over, JobStatus("unknown"), over, JobStatus("over")])
    assert said == "Slurm's job 12 has ended (completing: TimeLimit): no such disk"


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("slurm_load_jobs error: Invalid job id specified", "over"),
        ("sh: 1: squeue: not found", "unknown"),
        ("host 12 does not exist", "unknown"),
        ("", "unknown"),
    ],
)
def test_an_error_that_is_a_word_on_the_job_or_none(programs, said, state):
    programs("squeue", f"echo '{said}' >&2; exit 1")

    async def ask():
        job, _ = _job()
        return await job._ask()

    assert asyncio.run(ask()) == JobStatus(state)


# -- its beginning and its end --------------------------------------------------------------------


def _submitting(programs, tmp_path, sbatch):
    programs("sbatch", sbatch)
    programs("squeue", "echo 'PENDING|None'")
    programs("scancel", f'echo "$@" >"{tmp_path}/deleted"')
    return subprocess.Popen([sys.executable, "-c", SUBMIT], stdout=subprocess.PIPE)


def test_a_process_killed_while_it_submits_leaves_no_keys(programs, tmp_path, folder):
    told = tmp_path / "told"
    with _submitting(programs, tmp_path, f'echo $$ >"{told}"; exec sleep 600') as root:
        wait_until(lambda: _has_line(told), "sbatch runs")
        try:
            assert len(list(folder.glob("job-*/host-0"))) == 1
            root.kill()
            wait_until(lambda: not list(folder.iterdir()), "the keys are gone")
        finally:
            root.kill()
            os.kill(int(told.read_text()), signal.SIGKILL)
    assert not (tmp_path / "deleted").exists()


def test_a_process_killed_after_it_submitted_leaves_no_job(programs, tmp_path, folder):
    with _submitting(programs, tmp_path, "echo Submitted batch job 12") as root:
        assert root.stdout.readline() == b"submitted\n"
        assert len(list(folder.glob("job-*/host-0"))) == 1
        root.kill()
        wait_until(lambda: not list(folder.iterdir()), "the keys are gone")
    wait_until(lambda: _has_line(tmp_path / "deleted"), "the job is deleted")
    assert (tmp_path / "deleted").read_text() == "12\n"


def test_a_job_that_is_refused_leaves_no_keys(programs, folder):
    programs("sbatch", "echo 'sbatch: error: Unknown partition' >&2; exit 1")

    async def submit():
        job, _ = _job()
        with pytest.raises(
            batch_module.HostUnreachable, match="Slurm refuses the job: Unknown partition"
        ):
            await job.submit()

    asyncio.run(submit())
    assert list(folder.iterdir()) == []


# The head of a job that gets SIGTERM when its srun runs, before it has noted that.
EARLY = """
import os, signal, subprocess, sys, time
from phalanx.supervisor.launchers import scheduler_step

class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        if words[0][0] != "srun":
            return
        while not (os.path.exists(sys.argv[2]) and open(sys.argv[2]).read().endswith("\\n")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
scheduler_step.run_job(sys.argv[1])
"""


@pytest.mark.parametrize("when", ["while it starts", "later"])
def test_the_first_process_of_a_job_ends_by_sigterm_and_its_commands_with_it(
    programs, tmp_path, monkeypatch, when
):
    told, key = tmp_path / "told", tmp_path / "host-0"
    programs("srun", f'echo $$ >"{told}"; exec sleep 600')
    programs("scontrol", "echo some-other-host")
    key.write_text("key\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "some-other-host")
    words = [sys.executable, "-m", "phalanx.supervisor", "job", str(tmp_path)]
    if when == "while it starts":
        words = [sys.executable, "-c", EARLY, str(tmp_path), str(told)]
    with subprocess.Popen(words) as head:
        wait_until(lambda: _has_line(told), "srun runs")
        pid = int(told.read_text())
        try:
            if when == "later":
                head.terminate()
            assert head.wait(PATIENCE_S) == 143
            wait_until(lambda: _is_dead(pid), "srun has ended")
        finally:
            head.kill()
            if not _is_dead(pid):
                os.kill(pid, signal.SIGKILL)


def _has_line(path):
    return path.exists() and path.read_text().endswith("\n")


def _is_dead(pid):
    """Whether it is gone, or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b""
    except OSError:
        return True


def test_a_command_that_cannot_be_started_is_over(programs):
    """Its keys are removed, whatever it is that hinders."""
    path, ended = programs("srun", ""), []
    path.chmod(0o644)

    async def start():
        def on_end():
            ended.append(True)

        RemoteCommand(
            LaunchSpec(HostPlan("a", 1), "python", [str(path)], "", "", str, on_end=on_end), b"key"
        )

    with pytest.raises(PermissionError):
        asyncio.run(start())
    assert ended == [True]


# -- which hosts start in one job -----------------------------------------------------------------


def test_hosts_start_in_one_job_with_those_of_the_same_gathering_only(monkeypatch):
    """Also on one loop."""
    jobs = []

    class Job:
        status = JobStatus("runs")

        def __init__(self, remote, hosts, lines):
            jobs.append(sorted(host.plan.name for host in hosts))

        async def submit(self):
            pass

    async def start():
        remote = RemoteOptions(launcher="slurm", job=JobOptions(2))
        gatherings = {"a": JobGathering(), "b": JobGathering()}
        starts = [
            launch_as_job(HostStart(HostPlan(f"{name}{n}", 1), b"", remote, print, its), its)
            for n in range(2)
            for name, its in gatherings.items()
        ]
        await asyncio.gather(*starts)

    monkeypatch.setattr(batch_module, "BatchJob", Job)
    asyncio.run(start())
    assert sorted(jobs) == [["a0", "a1"], ["b0", "b1"]]
