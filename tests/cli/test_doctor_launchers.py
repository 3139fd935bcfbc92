"""`phalanx doctor` and `config` with launchers: what they need of this machine, by stand-in commands."""

from __future__ import annotations

import shutil

import pytest

from phalanx.cli import main
from phalanx.cli.launching import places as places_module
from phalanx.cli.launching.places import check_launcher

SLURM = {"srun": "echo slurm 24.05.1", "sbatch": "exit 9", "sinfo": "echo all up"}
PBS = {"pbsdsh": "exit 9", "qsub": "exit 9"}
OF_PBS = {**PBS, "qstat": "echo pbs_version = 23.06.06"}
OF_GRID_ENGINE = {**PBS, "qstat": "echo usage: qstat; exit 1"}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Have these commands, and no others, on the PATH; 9 is the status of one not to be run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "echo", "env"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PHALANX_JOB_DIR", str(tmp_path / "jobs"))
    for name in ("PBS_NODEFILE", "SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)

    def make(scripts):
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder

    return make


def lines(launcher, nodes=0, environ=None, *, has_hosts=False):
    return list(map(str, check_launcher(launcher, nodes, environ or {}, has_hosts=has_hosts)))


def test_slurm_that_is_well(commands):
    folder = commands(SLURM)
    assert lines("slurm", has_hosts=True) == [
        f"ok    launcher   {folder}/srun is Slurm's (slurm 24.05.1)",
        "ok    scheduler  Slurm answers sinfo",
    ]
    assert lines("slurm")[2].startswith("fail  job        this is no Slurm job: start it in salloc")
    assert lines("slurm", 2)[0] == f"ok    launcher   {folder}/sbatch is Slurm's (slurm 24.05.1)"


def test_a_scheduler_that_does_not_answer(commands):
    commands({**SLURM, "sinfo": "echo Unable to contact slurm controller >&2; exit 1"})
    said = "fail  scheduler  Slurm does not answer sinfo --noheader: Unable to contact slurm"
    assert lines("slurm")[1].startswith(said)


def test_the_job_that_this_is_in(commands, tmp_path):
    commands(OF_PBS)
    (tmp_path / "nodes").write_text("a\na\nb\n")
    environ = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12.server"}
    its = lines("pbs", environ=environ)
    assert its[2] == "ok    job        PBS's job 12, its hosts and slots: a 2, b 1"


def test_a_qsub_that_is_another_scheduler_s(commands):
    folder = commands(OF_GRID_ENGINE)
    (said, *_) = lines("pbs", 2)
    assert said == (
        f"fail  launcher   {folder}/qsub is not PBS's, as it seems: qstat --version says usage: "
        "qstat; fix: --launcher sge"
    )
    assert "qsub has no qconf beside it: is it Grid Engine's?" in lines("sge", 2)[0]


def test_a_command_that_is_missing(commands):
    commands({})
    assert lines("lsf") == [
        (
            "fail  launcher   there is no blaunch on the PATH; fix: go to a machine of the LSF "
            "cluster, or load its module"
        )
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("nfs4", "ok    shared     "), ("ext4", "note  shared     "), ("", "note  shared     ")],
)
def test_the_folder_that_nodes_are_to_see(commands, monkeypatch, tmp_path, kind, said):
    commands(SLURM)
    monkeypatch.setattr(
        places_module, "_file_system", lambda path: kind if path == tmp_path else "?"
    )
    line = lines("slurm", 2)[-1]
    assert line.startswith(f"{said}{tmp_path}/jobs is on {kind}")
    assert ("PHALANX_JOB_DIR=" in line) is (kind != "nfs4")


def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount():
    assert places_module._file_system(places_module.Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor", "--launcher", "slrum"], "there is no launcher 'slrum'; there are: ssh, slurm"),
        (["doctor", "--nodes", "2"], "--nodes: which scheduler is asked? say --launcher slurm"),
        (["config", "--launcher", "pbs"], "this is no PBS job: start it in qsub"),
    ],
)
def test_mistakes_are_a_line(commands, words, said, capsys):
    commands({})
    assert main(words) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
