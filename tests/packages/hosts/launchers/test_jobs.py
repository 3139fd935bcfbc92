"""What is known of schedulers without any: their jobs' environments, and command lines."""

from __future__ import annotations

import argparse

import pytest

from phalanx.hosts import (
    LAUNCHERS,
    add_host_arguments,
    found_job,
    job_hosts,
    job_options,
    launcher_lines,
    recognise_job,
    recognised,
    uses_job,
)
from phalanx.magics.arguments import line_parser, parse
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers.select import start_words
from phalanx.workspace.options import resolve_placement

PBS = "a.site\na.site\nb.site\nb.site\n"
SGE = (
    "a.site 2 all.q@a.site UNDEFINED\nb.site 1 all.q@b.site <NULL>\nb.site 1 big.q@b.site <NULL>\n"
)
NAMES = {"pbs": "PBS", "sge": "Grid Engine", "lsf": "LSF"}
ENVIRONMENTS = {
    "pbs": ({"PBS_NODEFILE": PBS}, {"PBS_JOBID": "12.server"}),
    "sge": ({"PE_HOSTFILE": SGE}, {"JOB_ID": "12"}),
    "lsf": ({"LSB_DJOB_HOSTFILE": PBS}, {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "x 1"}),
}


@pytest.fixture
def environ(tmp_path):
    def make(launcher, text=None):
        files, variables = ENVIRONMENTS[launcher]
        for name, content in files.items():
            (tmp_path / name).write_text(content if text is None else text)
        return {**{name: str(tmp_path / name) for name in files}, **variables}

    return make


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_the_hosts_of_a_job(environ, kind):
    its = environ(kind)
    assert found_job(its) == kind
    assert uses_job("ssh", its)
    found = job_hosts("ssh", its)
    assert [(host.ssh, host.slots) for host in found.hosts] == [("a.site", 2), ("b.site", 2)]
    assert found.source == f"{NAMES[kind]}'s job 12"
    assert [host.slots for host in job_hosts("ssh", its, with_slots=False).hosts] == [-1, -1]
    assert job_hosts("mpi", its) == found


def test_the_hosts_of_a_job_of_lsf_without_a_file():
    found = job_hosts("ssh", {"LSB_MCPU_HOSTS": "a 4 b 2"})
    assert [(host.ssh, host.slots) for host in found.hosts] == [("a", 4), ("b", 2)]


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_what_cannot_be_read_is_a_line(environ, kind):
    with pytest.raises(ValueError, match="hosts"):
        job_hosts("ssh", environ(kind, "\n"))
    gone = {name: f"{value}.gone" for name, value in environ(kind).items()}
    with pytest.raises(ValueError, match="does not say which hosts this job has") as error:
        job_hosts("ssh", gone)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["a", "a x q u", "\0"])
def test_a_host_file_of_another_form_is_a_line(environ, text):
    with pytest.raises(ValueError, match=r"Grid Engine does not say .*PE_HOSTFILE"):
        job_hosts("ssh", environ("sge", text))


def test_no_job_and_no_slurm(monkeypatch, tmp_path):
    assert not uses_job("ssh", {})
    with pytest.raises(ValueError, match="mpi: name the hosts with --hosts"):
        job_hosts("mpi", {})
    with pytest.raises(
        ValueError, match="this is no Slurm job: start it in salloc or sbatch, .*, or say --nodes N"
    ):
        job_hosts("slurm", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="Slurm does not say which hosts this job has"):
        job_hosts("slurm", {"SLURM_JOB_NODELIST": "a[1-2]"})


def test_ssh_starts_ranks_on_the_hosts_of_a_job(environ, monkeypatch):
    for name, value in environ("pbs").items():
        monkeypatch.setenv(name, value)
    found = resolve_placement(None, launcher="ssh")
    assert [(plan.name, plan.ranks) for plan in found.hosts] == [("a.site", 2), ("b.site", 2)]
    assert found.remote.launcher == "ssh"
    found = resolve_placement(3, launcher="ssh")
    assert [plan.ranks for plan in found.hosts] == [3, 3]
    assert resolve_placement(3).hosts == ()


def test_a_job_is_recognised_where_nothing_else_is_said(environ):
    assert recognised(environ("pbs"), None) == (
        "ssh", "PBS's job 12: ranks start on its hosts, a.site, b.site (--hosts localhost: only here)"
    )  # fmt: skip
    assert recognised(environ("pbs"), 4) == (
        None, "PBS's job 12 has 2 hosts; -n 4 alone starts ranks on this one: --launcher ssh starts 4 on each"
    )  # fmt: skip


def test_no_job_or_one_of_one_host_or_two_changes_nothing(environ):
    assert recognised({}, None) == (None, "")
    assert recognised(environ("pbs", "a\na\n"), None) == (None, "")
    assert recognised({**environ("pbs"), **environ("sge")}, None) == (None, "")


def test_the_magic_takes_it_from_the_environment_and_nothing_that_is_said(environ, monkeypatch):
    for name, value in environ("sge").items():
        monkeypatch.setenv(name, value)
    options = parse(line_parser(), "start")
    assert "Grid Engine's job 12: ranks start on its hosts" in recognise_job(options, options.n)
    assert options.launcher == "ssh"
    for line in ("--hosts a", "--launcher ssh", "--launcher slurm --nodes 2"):
        options = parse(line_parser(), f"start {line}")
        said = options.launcher
        assert recognise_job(options, options.n) == ""
        assert options.launcher == said


# -- options --------------------------------------------------------------------------------------


def _options(line):
    parser = argparse.ArgumentParser()
    add_host_arguments(parser.add_argument)
    return job_options(parser.parse_args(line))


def test_what_a_scheduler_is_asked_for():
    words = ["--nodes", "3", "--partition", "q", "--launcher-arg=--comment 'a b'"]
    assert _options(["--launcher", "slurm", *words]) == JobOptions(
        3, "q", args=("--comment", "a b")
    )
    assert _options([]) == JobOptions()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--nodes", "3"], "--nodes: which scheduler is asked? say --launcher slurm"),
        (["--nodes", "3", "--launcher", "mpi"], "--nodes: which scheduler is asked?"),
        (["--launcher", "ssh", "--launcher-arg=x"], "--launcher-arg: which scheduler is asked?"),
        (["--launcher", "mpi", "--queue", "q"], "--queue: only with --nodes N"),
        (["--launcher", "pbs", "--nodes", "3"], "there is no launcher 'pbs' any more: within a job of PBS, "),
        (["--launcher", "sge"], "there is no launcher 'sge' any more: within a job of Grid Engine, "),
        (["--launcher", "htcondor"], "there is no launcher 'htcondor'; there are: ssh, slurm, mpi"),
        (["--launcher", "slurm", "--launcher-arg=\"x"], "--launcher-arg: No closing quotation"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_a_line(line, said):
    with pytest.raises(ValueError) as error:
        _options(line)
    assert str(error.value).startswith(said)


def test_every_launcher_has_a_line():
    assert [line.split()[0] for line in launcher_lines().splitlines()[1:]] == list(LAUNCHERS)
    with pytest.raises(ValueError, match="there is no launcher 'shh'; there are: ssh, slurm, mpi"):
        resolve_placement(1, launcher="shh")


def test_a_job_to_come_is_planned_without_names():
    found = resolve_placement(2, launcher="slurm", job={"nodes": 2, "queue": "q"})
    assert found.hosts == (HostPlan("node0", 2), HostPlan("node1", 2))
    assert (found.remote.job, found.remote.timeout_s) == (JobOptions(2, "q"), 600.0)
    with pytest.raises(ValueError, match="--nodes asks a scheduler for nodes of its choice"):
        resolve_placement(1, launcher="slurm", hosts="a", job={"nodes": 2})


# -- command lines --------------------------------------------------------------------------------


def test_the_command_line_of_mpirun():
    remote = RemoteOptions(launcher="mpi", job=JobOptions(args=("-x",)))
    words = ["mpirun", "-n", "1", "-x", "--host", "b"]
    assert start_words(HostPlan("b", 2), remote, {}) == words


def test_srun_outside_of_a_job_asks_for_what_the_user_does():
    job = JobOptions(0, "short", "lab", "30", ("--gres", "gpu:1"))
    words = start_words(HostPlan("b", 2), RemoteOptions(launcher="slurm", job=job), {})
    asked = ["--cpus-per-task=2", "--partition=short", "--account=lab", "--time=30"]
    assert words[-7:] == [*asked, "--gres", "gpu:1", "--nodelist=b"]
    within = start_words(
        HostPlan("b", 2), RemoteOptions(launcher="slurm", job=job), {"SLURM_JOB_ID": "1"}
    )
    assert "--overlap" in within
    assert "--time=30" not in within
