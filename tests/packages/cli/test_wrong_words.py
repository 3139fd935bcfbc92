"""Command lines that make no sense: one line says why, and nothing is started or asked."""

from __future__ import annotations

import shlex
import tempfile

import pytest

import phalanx.workspace
from phalanx.cli import main
from phalanx.cli.config import command as config_command
from phalanx.cli.config.setup import CableSetup
from phalanx.cli.launch import script_root

JOBS = ("PBS_NODEFILE", "SLURM_JOB_NODELIST", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")


@pytest.fixture(autouse=True)
def _idle(monkeypatch, tmp_path):
    """No rank is started and no host asked; there are no programs, jobs and workspaces."""

    def start(*_, **__):
        pytest.fail("something was started")

    monkeypatch.setattr(phalanx.workspace.Workspace, "start", start)
    monkeypatch.setattr(script_root, "ScriptRoot", start)
    monkeypatch.setattr(config_command, "gather", start)
    monkeypatch.setattr(CableSetup, "run", start)
    for name in ("PATH", "XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bnch", "did you mean bench?"),
        ("frobnicate", "there are: lab, launch, list, stop, bench"),
        ("lab --port 70000", "70000 is no port"),
        # -- launch
        ("launch", "no script is given"),
        ("launch -n 0 x.py", "'0'; it must be a whole number, 1 or more"),
        ("launch -m", "-m needs the name of a module"),
        ("launch nowhere.py", "there is no script"),
        ("launch no-such-program", "there is no program 'no-such-program'"),
        ("launch /etc/passwd", "'/etc/passwd' is not executable"),
        ("launch --cwd /nowhere x.py", "--cwd /nowhere: there is no such folder"),
        ("launch --python /nowhere/python -m x", "there is no program '/nowhere/python'"),
        ("launch --env BAD-KEY=1 x.py", "'BAD-KEY' is no name of a variable"),
        ("launch --env NOT_SET_ANYWHERE x.py", "it is not set here"),
        ("launch --hots a,b x.py", "did you mean --hosts?"),
        ("launch --labl rank x.py", "did you mean --label?"),
        ("launch --qqqqq x.py", "there is no option '--qqqqq'; see phalanx launch --help"),
        ("launch --timeout -1 x.py", "'-1' is not a number of seconds"),
        ("launch --silence 0 /bin/true", "heartbeat_timeout is 0.0"),
        ("launch --max-restarts -1 /bin/true", "the number of restarts is '-1'"),
        ("launch --max-restarts many /bin/true", "the number of restarts is 'many'"),
        ("launch --interface lo --ssh-arg=-v /bin/true", "--interface and --ssh-arg: only with --hosts"),
        ("launch --hosts x --hostfile y /bin/true", "not both"),
        ("launch --mpi-arg=-q /bin/true", "--mpi-arg is for --backend mpi"),
        ("launch --backend nccl x.py", "'nccl' is not in this release"),
        ("launch --backend mpi --interface lo x.py", "--interface: not with --backend mpi"),
        ("launch --backend mpi --max-restarts 1 /bin/true", "--max-restarts is for --backend ring"),
        ("launch --backend mpi --transport tcp /bin/true", "--transport is for"),
        ("""launch --backend mpi --mpi-arg "'" /bin/true""", "--mpi-arg: No closing quotation"),
        # -- bench
        ("bench -n 0", "'0'; it must be a whole number, 1 or more"),
        ("bench -n two", "'two'; it must be a whole number"),
        ("bench --op all_som", "did you mean all_sum?"),
        ("bench --op x", "there are: all_sum"),
        ("bench --op recv", "did you mean sendrecv?"),
        ("bench --op sendrecv -n 1", "sendrecv needs 2 ranks or more"),
        ("bench --dtype float33", "there is no dtype 'float33'; did you mean float32?"),
        ("bench --dtype x", "there are: bool, int8"),
        ("bench -b 1Q", "'1Q' is not a size"),
        ("bench -b 64 -e 8", "is empty"),
        ("bench -f 1", "must be 2 or more"),
        ("bench -n 2 -e 900T", "the largest size that fits is"),
        ("bench -n 2 -b 1 -e 1E", "1 EiB on 2 ranks needs 3 EiB of memory per rank"),
        ("bench --frobnicate", "there is no option '--frobnicate'; there are: -h, --help, -n, --repeat-hosts"),
        # -- stop, doctor
        ("stop", "NAME"),
        ("stop a/b", "cannot name a workspace"),
        ("doctor --hosts a --hostfile b", "give --hosts or --hostfile, not both"),
        ("doctor --hosts a,-b", "--hosts: item 2: expected a host's name"),
        ("doctor --hostfile /nowhere", "/nowhere: it cannot be read: No such file"),
        ("doctor --interface nope9", "this machine has no interface 'nope9'"),
        ("""doctor --hosts a --ssh-arg="'" """, "--ssh-arg: No closing quotation"),
        ("doctor --launcher slrum", "there is no launcher 'slrum'; there are: ssh, slurm"),
        ("doctor --nodes 2", "--nodes: which scheduler is asked? say --launcher slurm"),
        ("doctor --launcher pbs", "there is no launcher 'pbs' any more: within a job of PBS,"),
        # -- config
        ("config --launcher lsf", "there is no launcher 'lsf' any more: within a job of LSF,"),
        ("config --launcher slurm", "this is no Slurm job: start it in salloc"),
        ("config --from-saved SAVED --backend mpi", "ring"),
        ("config --from-saved SAVED --over wifi", "thunderbolt"),
        ("config --from-saved SAVED --auto-setup", "leave --from-saved out"),
        ("config --from-saved SAVED --undo-setup", "leave --from-saved out"),
        ("config --from-saved SAVED --ssh-arg=-4", "leave --from-saved out"),
        ("config --from-saved SAVED --hosts mac0,nobody", "nothing is recorded of nobody"),
        ("config --from-saved SAVED --hosts a,,b", "item 2"),
        ("config --from-saved SAVED --hosts a --hostfile b", "not both"),
        ("config --from-saved SAVED --env 'A B=1'", "KEY=VAL"),
        ("config --from-saved SAVED --launcher mpi", "has no jobs with hosts"),
        ("config --from-saved SAVED --timeout soon", "seconds"),
        ("config --from-saved SAVED --hostfil", "--hostfil"),
        ("config --from-saved /nowhere", "--save"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_starts_nothing(line, said, saved, capsys):
    check(2, line.replace("SAVED", str(saved / "broken_mesh")), said, capsys)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch --backend mpi /bin/true", "there is no mpirun on the PATH; pip"),
        ("stop nothing", "there is no workspace 'nothing'; none runs"),
        ("config --from-saved SAVED --backend jaccl --over thunderbolt", "mac0 - mac1, mac2 - mac3"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_one_line(line, said, saved, capsys):
    check(1, line.replace("SAVED", str(saved / "broken_mesh")), said, capsys)


def check(status, line, said, capsys):
    try:
        code = main(shlex.split(line))
    except SystemExit as leaving:
        code = leaving.code
    told = capsys.readouterr()
    assert (code, told.out) == (status, "")
    assert told.err.startswith("phalanx")
    assert said in told.err
    assert told.err.count("see ") <= 1
    assert told.err.count("\n") == 1
