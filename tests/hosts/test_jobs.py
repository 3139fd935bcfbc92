"""What is known of schedulers without any: their jobs' environments, words, scripts and keys."""

from __future__ import annotations

import argparse
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from phalanx.hosts import (
    LAUNCHERS,
    TITLES,
    add_host_arguments,
    found_job,
    job_hosts,
    job_options,
    launcher_lines,
    recognise_job,
    recognised,
)
from phalanx.magics.arguments import line_parser, parse
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions
from phalanx.supervisor.launchers.batch import SCHEDULERS, JobStatus, directives
from phalanx.supervisor.launchers.remote_command import (
    HostUnreachable,
    SharedKeyDirectory,
    say_in,
    take_key,
)
from phalanx.supervisor.launchers.scheduler_step import start_words
from phalanx.workspace.options import resolve_placement

PBS = "a.site\na.site\nb.site\nb.site\n"
SGE = (
    "a.site 2 all.q@a.site UNDEFINED\nb.site 1 all.q@b.site <NULL>\nb.site 1 big.q@b.site <NULL>\n"
)
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


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_the_hosts_of_a_job(environ, launcher):
    its = environ(launcher)
    assert found_job(its) == launcher
    found = job_hosts(launcher, its)
    assert [(host.ssh, host.slots) for host in found.hosts] == [("a.site", 2), ("b.site", 2)]
    assert found.source == f"{TITLES[launcher]}'s job 12"
    assert [host.slots for host in job_hosts(launcher, its, with_slots=False).hosts] == [-1, -1]
    assert job_hosts("mpi", its) == found


def test_the_hosts_of_a_job_of_lsf_without_a_file():
    found = job_hosts("lsf", {"LSB_MCPU_HOSTS": "a 4 b 2"})
    assert [(host.ssh, host.slots) for host in found.hosts] == [("a", 4), ("b", 2)]


@pytest.mark.parametrize("launcher", ["pbs", "sge", "lsf"])
def test_what_cannot_be_read_is_a_line(environ, launcher):
    with pytest.raises(ValueError, match="hosts"):
        job_hosts(launcher, environ(launcher, "\n"))
    gone = {name: f"{value}.gone" for name, value in environ(launcher).items()}
    with pytest.raises(ValueError, match="does not say which hosts this job has") as error:
        job_hosts(launcher, gone)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="this is no .* job: start it in .*, or say --nodes N"):
        job_hosts(launcher, {})


@pytest.mark.parametrize("text", ["a", "a x q u", "\0"])
def test_a_host_file_of_another_form_is_a_line(environ, text):
    with pytest.raises(ValueError, match=r"Grid Engine does not say .*PE_HOSTFILE"):
        job_hosts("sge", environ("sge", text))


def test_launchers_that_have_no_job_of_several_hosts():
    with pytest.raises(ValueError, match="htcondor: say how many jobs to submit, --nodes N"):
        job_hosts("htcondor", {})
    with pytest.raises(ValueError, match="mpi: name the hosts with --hosts"):
        job_hosts("mpi", {})


def test_a_job_is_recognised_where_nothing_else_is_said(environ):
    found = recognised(environ("pbs"), None)
    assert found.launcher == "pbs"
    assert found.note == (
        "PBS's job 12: ranks start on its hosts, a.site, b.site (--hosts localhost: only here)"
    )
    found = recognised(environ("pbs"), 4)
    assert found.launcher is None
    assert found.note == (
        "PBS's job 12 has 2 hosts; -n 4 alone starts ranks on this one: --launcher pbs starts 4 on each"
    )


def test_no_job_or_one_of_one_host_or_two_changes_nothing(environ):
    assert recognised({}, None) == (None, "")
    assert recognised(environ("pbs", "a\na\n"), None) == (None, "")
    assert recognised({**environ("pbs"), **environ("sge")}, None) == (None, "")


def test_the_magic_takes_it_from_the_environment_and_nothing_that_is_said(environ, monkeypatch):
    for name, value in environ("sge").items():
        monkeypatch.setenv(name, value)
    options = parse(line_parser(), "start")
    assert "Grid Engine's job 12: ranks start on its hosts" in recognise_job(options, options.n)
    assert options.launcher == "sge"
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
    line = ["--launcher", "pbs", "--nodes", "3", "--partition", "q", "--launcher-arg=-l mem='2 gb'"]
    assert _options(line) == JobOptions(3, "q", args=("-l", "mem=2 gb"))
    line = ["--launcher", "htcondor", "--nodes", "3", "--launcher-arg", "request_memory = 2GB"]
    assert _options([*line, "--launcher-arg", '+What = "it\'s"']) == JobOptions(
        3, args=("request_memory = 2GB", '+What = "it\'s"')
    )
    assert _options([]) == JobOptions()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--nodes", "3"], "--nodes: which scheduler is asked? say --launcher slurm|pbs|sge|lsf|htcondor"),
        (["--nodes", "3", "--launcher", "mpi"], "--nodes: which scheduler is asked?"),
        (["--launcher", "ssh", "--launcher-arg=x"], "--launcher-arg: which scheduler is asked?"),
        (["--launcher", "pbs", "--queue", "q"], "--queue: only with --nodes N"),
        (["--launcher", "pbs", "--launcher-arg=\"x"], "--launcher-arg: No closing quotation"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_a_line(line, said):
    with pytest.raises(ValueError) as error:
        _options(line)
    assert str(error.value).startswith(said)


def test_every_launcher_has_a_line():
    assert [line.split()[0] for line in launcher_lines().splitlines()[1:]] == list(LAUNCHERS)
    with pytest.raises(
        ValueError, match="there is no launcher 'shh'; there are: ssh, slurm, pbs, sge"
    ):
        resolve_placement(1, launcher="shh")


def test_a_job_to_come_is_planned_without_names():
    found = resolve_placement(2, launcher="lsf", job={"nodes": 2, "queue": "q"})
    assert found.hosts == (HostPlan("node0", 2), HostPlan("node1", 2))
    assert (found.remote.job, found.remote.timeout_s) == (JobOptions(2, "q"), 600.0)
    with pytest.raises(ValueError, match="--nodes asks a scheduler for nodes of its choice"):
        resolve_placement(1, launcher="lsf", hosts="a", job={"nodes": 2})


# -- command lines --------------------------------------------------------------------------------


def test_the_command_lines_of_starts_within_a_job(environ, monkeypatch):
    monkeypatch.setenv("PATH", "")
    remote = {name: RemoteOptions(launcher=name, job=JobOptions(args=("-x",))) for name in TITLES}
    plan = HostPlan("b", 2)
    assert start_words(plan, remote["pbs"], environ("pbs")) == ["pbsdsh", "-n", "2", "-x", "--"]
    assert start_words(plan, remote["sge"], {"SGE_BINARY_PATH": "/sge"}) == [
        "/sge/qrsh", "-inherit", "-x", "b",
    ]  # fmt: skip
    assert start_words(plan, remote["mpi"], {}) == ["mpirun", "-n", "1", "-x", "--host", "b"]
    with pytest.raises(HostUnreachable, match="c: it is no node of this PBS job"):
        start_words(HostPlan("c", 2), remote["pbs"], environ("pbs"))


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


@pytest.mark.parametrize("launcher", SCHEDULERS)
def test_directives(launcher):
    job = JobOptions(2, "" if launcher == "htcondor" else "q", "lab", "30", ("-a", "b [c]"))
    lines = directives(SCHEDULERS[launcher], job).splitlines()
    assert any("lab" in line for line in lines)
    assert any("30" in line for line in lines)
    one = f"{SCHEDULERS[launcher].sign}-a 'b [c]'"
    more = ["-a", "b [c]"] if launcher == "htcondor" else [one]
    assert lines[-len(more) :] == more


def test_a_word_that_a_scheduler_has_not_is_a_line():
    with pytest.raises(ValueError, match="--queue: there is none here; say it with --launcher-arg"):
        directives(SCHEDULERS["htcondor"], JobOptions(1, "q"))


@pytest.mark.parametrize(
    ("launcher", "said", "status"),
    [
        ("slurm", "PENDING|Resources\n", JobStatus("waits", "PENDING: Resources")),
        ("slurm", "PENDING|None\n", JobStatus("waits", "PENDING")),
        ("slurm", "RUNNING|None\n", JobStatus("runs")),
        ("slurm", "COMPLETING|TimeLimit\n", JobStatus("over", "COMPLETING: TimeLimit")),
        ("slurm", "", JobStatus("over")),
        ("pbs", "    job_state = Q\n    comment = Not Running: no\n\t nodes\n", JobStatus("waits", "Not Running: no nodes")),
        ("pbs", "    job_state = R\n", JobStatus("runs")),
        ("pbs", "    job_state = C\n", JobStatus("over")),
        ("pbs", "qstat: what?", JobStatus("unknown")),
        ("sge", "job-ID ...\n---\n 12 0.5 phalanx me qw 11/21/2026\n 13 0.5 x me r 11/21\n", JobStatus("waits", "qw")),
        ("sge", " 12 0.5 phalanx me Eqw 11/21/2026\n", JobStatus("held", "Eqw")),
        ("sge", " 12 0.5 phalanx me r 11/21/2026 all.q@a 1 1\n", JobStatus("runs")),
        ("sge", " 13 0.5 phalanx me r 11/21/2026 all.q@a 1 1\n", JobStatus("over")),
        ("lsf", "PEND\n", JobStatus("waits", "PEND")),
        ("lsf", "RUN\n", JobStatus("runs")),
        ("lsf", "EXIT\n", JobStatus("over", "EXIT")),
        ("htcondor", "2 undefined\n1 undefined\n", JobStatus("waits")),
        ("htcondor", "2 undefined\n5 no such file\n", JobStatus("held", "no such file")),
        ("htcondor", "2 undefined\n", JobStatus("runs")),
        ("htcondor", "", JobStatus("over")),
    ],
)  # fmt: skip
def test_how_a_job_stands(launcher, said, status):
    assert SCHEDULERS[launcher].read("12", said) == status


# -- keys -----------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_JOB_DIR", str(tmp_path / "jobs"))
    return SharedKeyDirectory([b"one", b"two\n"])


def test_keys_are_their_owners_alone_and_are_taken_once(keys):
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(keys.key(1).stat().st_mode) == 0o600
    assert take_key(keys.key(1)) == b"two\n"
    assert not keys.key(1).exists()
    assert take_key(keys.key(1)) == b""
    keys.remove()
    keys.remove()
    assert not keys.path.exists()


KEPT = """
import sys
from phalanx.supervisor.launchers.remote_command import SharedKeyDirectory
print(SharedKeyDirectory([b"one"]).guard(), flush=True)
sys.stdin.read()
"""


def test_keys_go_with_the_killed_process_that_wrote_them(keys):
    words = [sys.executable, "-c", KEPT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        folder = Path(popen.stdout.readline().strip())
        assert (folder / "host-0").exists()
        popen.kill()
    wait_until(lambda: not folder.exists(), "the keys have been removed")
    guarded = SharedKeyDirectory([b"one"]).guard()
    guarded.remove()
    guarded.remove()
    assert not guarded.path.exists()


def test_a_key_that_others_may_read_is_refused(keys):
    keys.key(0).chmod(0o644)
    with pytest.raises(SystemExit, match="is not its owner's alone"):
        take_key(keys.key(0))


def test_a_link_is_no_key(keys):
    keys.key(0).rename(keys.path / "elsewhere")
    keys.key(0).symlink_to(keys.path / "elsewhere")
    with pytest.raises(OSError):
        take_key(keys.key(0))


def test_the_first_word_on_a_failure_holds(keys):
    say_in(keys.key(0), "no such folder")
    say_in(keys.key(0), "killed")
    assert (keys.said(0), keys.said(1)) == ("no such folder", "")
    keys.remove()
    say_in(keys.key(1), "nobody is there any more")


def test_the_users_cache_is_where_keys_are(tmp_path, monkeypatch):
    monkeypatch.delenv("PHALANX_JOB_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = SharedKeyDirectory([])
    assert found.path.parent == tmp_path / "phalanx" / "jobs"
    assert list(found.path.iterdir()) == []
