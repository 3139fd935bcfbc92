"""`phalanx doctor`: real hosts that are well, each way in which one is not, and how to fix it."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.promise import BOUND_S, PATIENCE_S, ROOM_S
from support.waiting import wait_until

from phalanx.cli import main
from phalanx.cli.doctor.checks import find
from phalanx.cli.doctor.probing import Probe, ProbeQuestion
from phalanx.cli.probe import probe_main
from phalanx.protocol import HostPlan, RemoteOptions

DOCTOR = [sys.executable, "-m", "phalanx", "doctor"]
FACTS = {
    "hostname": "a", "python": "3.11.7", "executable": "/p", "phalanx": "0.1.0", "numpy": "2.4.6",
    "mpi4py": "4.1", "mpirun": "Open MPI 5.0", "rdma": [], "nccl": False, "has_ssh": True,
    "cores": 4, "files_soft": 1024, "files_hard": None, "memory_nbytes": 8 << 30, "no_memory": "",
    "has_folder": True, "script": "", "names": {}, "came_by": [], "interface": [],
    "no_loopback": "",
}  # fmt: skip


def _probe(name, ranks=2, *, is_local=False, port=0, **facts):
    probe = Probe(HostPlan(name, ranks, port=port, is_local=is_local))
    probe.facts = {**FACTS, "hostname": name, **facts}
    return probe


def _question(backend="any", **fields):
    return ProbeQuestion(RemoteOptions(), backend, **fields)


def _bad(*probes, question=None):
    found = find([_probe("a", is_local=True), *probes], question or _question())
    return [str(finding) for finding in found if finding.status != "ok"]


# -- what answers mean ----------------------------------------------------------------------------


def test_hosts_that_are_alike_are_well():
    assert _bad(_probe("b"), _probe("c", python="3.11.2")) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"python": "3.10.2"}, "fail  python     b: Python 3.10, and 3.11 on this machine; fix: "),
        (
            {"phalanx": "0.0.9"},
            "fail  phalanx    b: phalanx 0.0.9, and 0.1.0 on this machine; fix: ssh -p 22 b '/p -m pip",
        ),
        ({"phalanx": ""}, "fail  phalanx    b: phalanx is not installed; fix: ssh -p 22 b "),
        ({"numpy": "1.26.4"}, "fail  numpy      b: numpy 1.26.4, and 2.4.6 on this machine"),
        ({"numpy": "2.3.0"}, "note  numpy      b: numpy 2.3.0, and 2.4.6 on this machine"),
        (
            {"has_folder": False},
            "note  folder     b: there is no /w, ranks begin in the home folder",
        ),
        ({"memory_nbytes": 100 << 20}, "fail  memory     b: 0.1 GiB are free for 2 ranks"),
        ({"no_memory": "memfd_create: no"}, "fail  memory     b: ranks cannot share memory (memfd"),
        ({"files_hard": 64}, "fail  files      b: 64 open files are allowed, 4 ranks need 168"),
        ({"cores": 1}, "note  cores      b: 2 ranks take turns on 1 core; fix: at most 1 there"),
        ({"mpirun": ""}, "note  mpi        b: no MPI, and Open MPI 5.0 on this machine"),
        ({"rdma": ["mlx5_0"]}, "note  rdma       b: mlx5_0, and none on this machine"),
        ({"script": "2"}, "fail  script     b: /w/x.py is another than on this machine; fix: scp"),
    ],
)
def test_what_differs_is_named_with_what_mends_it(facts, said):
    (line,) = _bad(_probe("b", port=22, **facts), question=_question(folder="/w", script="/w/x.py"))
    assert line.startswith(said)


def _silent(name):
    probe = Probe(HostPlan(name, 2))
    probe.why_not = "it does not answer ssh"
    return probe


def test_what_is_well_is_said_only_of_hosts_that_have_answered():
    here = _probe("a", 0, is_local=True)
    lines = list(map(str, find([here, _probe("b"), _silent("c")], _question())))
    assert lines[:2] == [
        "fail  ssh        c: it does not answer ssh",
        "ok    ssh        without a prompt to b",
    ]
    assert len(lines) > 8
    assert all(line[17:].startswith("this machine, b: ") for line in lines[2:])


def test_where_no_host_has_answered_only_this_machine_is_spoken_of():
    lines = list(map(str, find([_probe("a", 0, is_local=True), _silent("b")], _question())))
    assert lines[0] == "fail  ssh        b: it does not answer ssh"
    assert all(
        line.startswith("ok  ") and line[17:].startswith("this machine: ") for line in lines[1:]
    )
    # It has no ranks: what they would need of it is of no interest.
    assert not any("cores" in line or "memory" in line for line in lines)


def test_a_script_that_is_missing_here_is_said_once():
    here = _probe("a", is_local=True, script="! No such file or directory")
    found = find([here, _probe("b", script="1")], _question(script="/x.py"))
    assert [str(f) for f in found if f.status == "fail"] == [
        "fail  script     a: /x.py: No such file or directory"
    ]


def test_clocks_may_differ_by_a_second_and_what_the_way_takes():
    early, slow, unsure = _probe("b"), _probe("c"), _probe("d")
    early.clock_s, slow.clock_s, unsure.clock_s, unsure.clock_error_s = 2.5, -1.5, 1.5, 0.6
    lines = _bad(early, slow, unsure)
    assert [line.partition(";")[0] for line in lines] == [
        "fail  clocks     b: its clock is 2.5 s fast",
        "fail  clocks     c: its clock is 1.5 s slow",
    ]


def test_names_count_for_mpi_and_a_host_s_own_does_not():
    b = _probe("b", names={"b": ["127.0.1.1"], "c": ["10.0.0.9"]})
    here = _probe("a", is_local=True, names={"b": ["10.0.0.2"], "c": ["10.0.0.3"]})
    for backend, status in (("any", "note"), ("mpi", "fail")):
        (line,) = [str(f) for f in find([here, b], _question(backend)) if f.check == "names"]
        assert line.startswith(
            f"{status}  names      b: c is 10.0.0.9, and 10.0.0.3 on this machine"
        )


def test_mpi_must_be_there_for_its_backend():
    (line,) = _bad(_probe("b", mpirun="", mpi4py=""), question=_question("mpi"))
    assert line.startswith("fail  mpi        b: there is no mpirun and no mpi4py; fix: ssh b ")


# -- real hosts -----------------------------------------------------------------------------------


def _doctor(bed, *words):
    said = bed.run(0, [*DOCTOR, *words], check=False)
    assert "Traceback" not in said.stderr, said.stderr
    assert bed.left(BOUND_S) == []
    return said.returncode, said.stdout


@pytest.mark.slow
def test_a_bed_of_hosts_is_well(bed):
    status, said = _doctor(bed, "--hosts", "a,b,c", "-n", "1", "--interface", "eth0")
    assert status == 0, said
    for line in (
        "without a prompt to b, c",
        "each host reaches each other (6 ways)",
        "for 3 ranks",
    ):
        assert line in said
    status, said = _doctor(bed, "--hosts", "b,c", "--json")
    told = json.loads(said)
    assert (status, told["ok"]) == (0, True)
    assert [(host["name"], host["hostname"]) for host in told["hosts"]] == [
        ("a", "a"), ("b", "b"), ("c", "c")
    ]  # fmt: skip
    assert {check["status"] for check in told["checks"]} <= {"ok", "note"}


@pytest.mark.slow
def test_what_is_wrong_with_hosts_is_told_of_all_at_once(bed, tmp_path):
    (tmp_path / "x.py").write_text("")
    bed.block(1, 2)
    try:
        words = ["--python", bed.bare_python, "--script", tmp_path / "x.py", "--backend", "mpi"]
        status, said = _doctor(bed, "--hosts", "b,c,nobody", *words, "--timeout", "20")
    finally:
        bed.unblock(2)
    assert status == 1
    assert "fail  ssh        nobody: the name nobody does not resolve" in said
    assert "fail  ports      c: b does not reach it at 10.77.0.13 port " in said
    assert "ssh c 'sudo ufw allow proto tcp from 10.77.0.12'" in said
    for name in "bc":
        assert f"fail  phalanx    {name}: phalanx is not installed; fix: ssh {name} " in said
        assert f"fail  numpy      {name}: numpy is missing" in said
    assert "fail  script" not in said  # the files are shared


@pytest.mark.slow
def test_logins_between_hosts_are_what_mpi_needs(bed):
    key = (bed.hosts[2].folder / "authorized_keys").read_text()
    with bed.changed(2, "authorized_keys", f'from="{bed.hosts[0].address}" {key}'):
        status, said = _doctor(bed, "--hosts", "b,c", "--backend", "mpi")
    assert status == 1
    assert "ok    ssh        without a prompt to b, c" in said
    assert "fail  logins     b: ssh c: " in said
    assert "fix: ssh b 'ssh-copy-id c'" in said
    with bed.changed(2, "authorized_keys", ""):
        status, said = _doctor(bed, "--hosts", "b,c")
    assert status == 1
    assert "fail  ssh        c: it lets nobody in without a password: ssh-copy-id c" in said


@pytest.mark.slow
def test_a_host_that_does_not_answer_has_its_time(bed):
    server = bed.hosts[1].sshd
    server.send_signal(signal.SIGSTOP)  # its kernel takes the connection, and nobody answers
    try:
        words = ["--hosts", "b,c", "--timeout", str(ROOM_S)]
        status, said = _doctor(bed, *words, f"--ssh-arg=-oConnectTimeout={PATIENCE_S:.0f}")
    finally:
        server.send_signal(signal.SIGCONT)
    assert status == 1
    assert f"fail  ssh        b: ssh has not got in, after {ROOM_S:g} s" in said
    assert "ok    ssh        without a prompt to c" in said


@pytest.mark.slow
@pytest.mark.promise
def test_ctrl_c_ends_it_everywhere(bed):
    bed.cut(1)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        doctor = bed.popen(0, [*DOCTOR, "--hosts", "b,c", "--timeout", "60"], **pipes)
        wait_until(lambda: any(" b" in line for line in _ssh_lines(bed)), "b is asked")
        doctor.send_signal(signal.SIGINT)
        _, said = doctor.communicate(timeout=PATIENCE_S)
        assert doctor.returncode == 130
        assert said == "phalanx doctor: interrupted\n"
        assert bed.left(BOUND_S) == []
    finally:
        bed.mend(1)


def _ssh_lines(bed):
    lines = []
    for process in bed.processes(0):
        with contextlib.suppress(psutil.Error):
            lines += [shlex.join(process.cmdline())] if process.name() == "ssh" else []
    return lines


# -- this machine, and words ----------------------------------------------------------------------


@pytest.mark.slow
def test_without_hosts_it_checks_this_machine(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ok    python")
    assert "ssh" not in said
    assert "ports" not in said


def test_a_machine_without_ssh_says_so(monkeypatch, tmp_path, capsys):
    for name in ("sh", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--hosts", "b.invalid"]) == 1
    assert "fail  ssh        b.invalid: there is no ssh on this machine" in capsys.readouterr().out


def test_the_script_of_the_far_side_needs_no_package(tmp_path):
    source = Path(probe_main.__file__).read_text(encoding="utf-8")
    asked = {"names": ["localhost"], "folder": "/", "script": "", "interface": "lo"}
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source], input=json.dumps(["facts", asked]) + "\n",
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    facts = json.loads(said.stdout.partition(": ")[2])
    assert facts["phalanx"] == facts["numpy"] == ""
    assert facts["cores"] >= 1
    assert "127.0.0.1" in facts["names"]["localhost"]
