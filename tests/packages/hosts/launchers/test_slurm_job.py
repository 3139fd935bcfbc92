"""A job of Slurm that is asked for, with stand-ins for salloc and squeue: how it begins and ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from support.programs.commands import write_command
from support.promise import PATIENCE_S
from support.ranks.loops import in_asyncio
from support.waiting import wait_until

from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers import slurm_job as slurm_job_module
from phalanx.supervisor.launchers.remote_command import HostStart, HostUnreachable
from phalanx.supervisor.launchers.slurm_job import SlurmJob, SlurmJobs

# As salloc: takes a job, runs the command in it, and gives the job back when told, or when that has
# ended: it cannot report to a root that is gone.
GRANTING = """
echo "salloc: Granted job allocation 12" >&2
trap 'echo released >"$0.ended"; kill $pid; exit 1' HUP
for word; do command="$word"; done
SLURM_JOB_ID=12 SLURM_JOB_NODELIST="n[1-2]" /bin/sh -c "$command" & pid=$!
wait $pid
echo released >"$0.ended"
"""
QUEUED = """
echo "salloc: Pending job allocation 12" >&2
trap 'echo released >"$0.ended"; kill $pid; exit 1' HUP
sleep 600 & pid=$!
wait $pid
"""
# On a busy machine a shell may not run for a while between the two processes that it starts.
SUBMIT = """
import asyncio
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers import slurm_job
from phalanx.supervisor.launchers.remote_command import HostStart
from phalanx.supervisor.launchers.slurm_job import SlurmJob

first, second = slurm_job._HOLD.split("job=$!;")
slurm_job._HOLD = f"{first} job=$!; sleep 0.3; {second}"

async def submit():
    remote = RemoteOptions(launcher="slurm", job=JobOptions(1))
    job = SlurmJob(remote)
    job.add(HostStart(HostPlan("node0", 1), b"", remote, print))
    await job.running

asyncio.run(submit())
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(slurm_job_module, "ASK_AT_FIRST_S", 0.01)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Make programs of that name, in front of all others."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def make(name, text):
        return write_command(tmp_path / "bin" / name, text)

    make("squeue", "echo 'PENDING|Resources'")
    make("scontrol", 'echo "n1 n2"')
    return make


def _start(name, news=None, *, n=2, timeout_s=60.0):
    remote = RemoteOptions(launcher="slurm", job=JobOptions(n), timeout_s=timeout_s)
    on_slow = print if news is None else news.append
    return HostStart(HostPlan(name, 1), b"", remote, on_slow)


async def _run(*starts):
    """Ask for a job of these hosts; return it, and the names of its nodes."""
    job = SlurmJob(starts[0].remote)
    assert [job.add(start) for start in starts] == list(range(len(starts)))
    return job, await job.running


def test_a_job_is_held_until_its_last_host_leaves(programs):
    salloc = programs("salloc", GRANTING)
    ended = salloc.with_name("salloc.ended")

    async def hold():
        job, nodes = await _run(_start("node0"), _start("node1"))
        assert (job.id, nodes) == ("12", ["n1", "n2"])
        job.leave()
        assert job._ending is None
        assert not ended.exists()
        job.leave()
        await job._ending

    asyncio.run(hold())
    assert ended.read_text() == "released\n"


@pytest.mark.parametrize(("text", "when"), [(QUEUED, "in the queue"), (GRANTING, "as it runs")])
def test_a_killed_root_leaves_no_job(programs, text, when):
    salloc = programs("salloc", f"{text.replace('wait $pid', 'echo begun >$0.begun; wait $pid')}")
    with subprocess.Popen([sys.executable, "-c", SUBMIT]) as root:
        try:
            wait_until(salloc.with_name("salloc.begun").exists, f"salloc is {when}")
        finally:
            root.kill()
        root.wait(PATIENCE_S)
    wait_until(salloc.with_name("salloc.ended").exists, "salloc has released the job")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("salloc: error: Unknown partition", "Slurm refuses the job: Unknown partition (set what"),
        ("No luck", "Slurm refuses the job: No luck (set what"),
        ("", "Slurm refuses the job: salloc exits with 1 (set what"),
    ],
)
def test_a_job_that_is_refused(programs, says, why):
    programs("salloc", f"echo '{says}' >&2; exit 1")
    with pytest.raises(HostUnreachable) as refused:
        asyncio.run(_run(_start("node0", n=1)))
    assert refused.value.text.startswith(why)


def test_no_slurm_on_this_machine(monkeypatch, tmp_path):
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostUnreachable, match="there is no salloc on this machine: start it on"):
        asyncio.run(_run(_start("node0", n=1)))


def test_a_job_that_waits_too_long_is_given_back(programs):
    salloc, news = programs("salloc", QUEUED), []

    async def wait_in_vain():
        job = SlurmJob((start := _start("node0", news, n=1, timeout_s=2.0)).remote)
        job.add(start)
        with pytest.raises(HostUnreachable) as given_up:
            await job.running
        job.leave()
        await job._ending
        return given_up.value.text

    text = asyncio.run(wait_in_vain())
    waits = "job 12 waits in Slurm's queue (PENDING: Resources)"
    assert text.startswith(f"{waits} after 2 s, and was cancelled: wait longer with --boot-timeout")
    assert news[-1] == waits
    assert salloc.with_name("salloc.ended").exists()


@in_asyncio
async def test_the_nodes_cannot_be_read(programs):
    programs("salloc", GRANTING)
    programs("scontrol", "exit 1")
    job = SlurmJob((start := _start("node0", n=1)).remote)
    job.add(start)
    with pytest.raises(HostUnreachable, match="Slurm does not say which hosts this job has"):
        await job.running
    job.leave()
    await job._ending


@pytest.mark.parametrize(
    ("squeue", "why"),
    [
        ("echo 'COMPLETING|TimeLimit'", "Slurm's job 12 has ended (COMPLETING: TimeLimit)"),
        ("echo 'RUNNING|None'", ""),
        (
            "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
            "Slurm's job 12 has ended",
        ),
        ("echo 'squeue: error: no route to host' >&2; exit 1", ""),
        ("exec sleep 600", ""),
    ],
)
@in_asyncio
async def test_why_a_job_is_over(programs, monkeypatch, squeue, why):
    monkeypatch.setattr(slurm_job_module, "ASK_S", 0.2)
    programs("salloc", GRANTING)
    job, _ = await _run(_start("node0", n=1))
    programs("squeue", squeue)
    said = await asyncio.gather(job.why_over(), job.why_over())
    job.leave()
    await job._ending
    assert said == [why, why]


@in_asyncio
async def test_hosts_start_in_one_job_with_those_of_the_same_start_only(programs):
    programs("salloc", QUEUED)
    sets = {"a": SlurmJobs(), "b": SlurmJobs()}
    joined = {f"{name}{n}": sets[name].join(_start(f"{name}{n}")) for n in (0, 1) for name in sets}
    assert joined["a0"][0] is joined["a1"][0] is not joined["b0"][0] is joined["b1"][0]
    assert [place for _, place in joined.values()] == [0, 0, 1, 1]
    first = joined["a0"][0]
    while not first.is_submitted:
        await asyncio.sleep(0.01)
    later, place = sets["a"].join(_start("a2"))
    assert (later is first, place) == (False, 0)
    for job, _ in [*joined.values(), (later, 0)]:
        job.leave()
    for job in {its[0] for its in joined.values()} | {later}:
        if job._ending is not None:
            await job._ending
