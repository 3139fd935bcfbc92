"""`phalanx doctor` and `config` with launchers: what they need of this machine, by stand-in commands."""

from __future__ import annotations

import shutil

import pytest
from support.programs.commands import make_commands

from phalanx.cli.doctor.launchers import check_job_hosts, check_launcher

SLURM = {"srun": "echo slurm 24.05.1", "salloc": "exit 9", "sinfo": "echo all up"}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Have these commands, and no others, on the PATH; 9 is the status of one not to be run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "echo", "env"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    for name in ("PBS_NODEFILE", "SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)

    def make(scripts):
        make_commands(folder, **scripts)
        return folder

    return make


def lines(launcher, nodes=0, *, has_hosts=False):
    return list(map(str, check_launcher(launcher, nodes, {}, has_hosts=has_hosts)))


def test_slurm_that_is_well(commands):
    folder = commands(SLURM)
    assert lines("slurm", has_hosts=True) == [
        f"ok    launcher   {folder}/srun is Slurm's (slurm 24.05.1)",
        "ok    scheduler  Slurm answers sinfo",
    ]
    assert lines("slurm")[2].startswith("fail  job        this is no Slurm job: start it in salloc")
    assert lines("slurm", 2)[0] == f"ok    launcher   {folder}/salloc is Slurm's (slurm 24.05.1)"


def test_a_scheduler_that_does_not_answer(commands):
    commands({**SLURM, "sinfo": "echo Unable to contact slurm controller >&2; exit 1"})
    said = "fail  scheduler  Slurm does not answer sinfo --noheader: Unable to contact slurm"
    assert lines("slurm")[1].startswith(said)


def test_the_job_that_this_is_in(tmp_path):
    (tmp_path / "nodes").write_text("a\na\nb\n")
    environ = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12.server"}
    said = str(check_job_hosts("ssh", environ))
    assert said == "ok    job        PBS's job 12, its hosts and slots: a 2, b 1"


def test_an_srun_that_is_another_program(commands):
    folder = commands({**SLURM, "srun": "echo usage: srun; exit 1"})
    (said, *_) = lines("slurm")
    assert said == (
        f"fail  launcher   {folder}/srun is not Slurm's, as it seems: srun --version says usage: "
        "srun; fix: Slurm's folder first on the PATH"
    )


def test_a_command_that_is_missing(commands):
    commands({})
    assert lines("slurm") == [
        (
            "fail  launcher   there is no srun on the PATH; fix: go to a machine of the Slurm "
            "cluster, or load its module"
        )
    ]
