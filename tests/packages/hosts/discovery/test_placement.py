"""What a user says of hosts, on its way to the root: the plan, the options, and each mistake in a line."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
from IPython.core.error import UsageError

from phalanx.errors import NotSupported
from phalanx.hosts import own_addresses
from phalanx.magics.arguments import line_parser, parse, start_options
from phalanx.protocol import BootOptions, HostPlan, JobOptions, RemoteOptions
from phalanx.workspace import Workspace
from phalanx.workspace import workspace as workspace_module
from phalanx.workspace.options import Placement, checked_options, checked_whole, resolve_placement


def test_without_hosts_it_is_this_machine():
    assert resolve_placement(None) == Placement(4)
    assert resolve_placement(2) == Placement(2)
    at = resolve_placement(2, env={"A": "1"}, cwd="/tmp", ssh_args=())
    assert at == Placement(2, (), RemoteOptions(cwd="/tmp", env={"A": "1"}))


def test_whole_numbers_may_be_numpys():
    at = resolve_placement(np.int64(3), hosts="a.invalid,b.invalid", connections_per_ip=np.int32(2))
    remote = at.remote
    numbers = [at.ranks, at.hosts[1].ranks, remote.connections_per_ip]
    numbers.append(checked_options(np.int64(2), None, 0.0, 1.0, "any").world.size)
    asked = resolve_placement(None, launcher="slurm", job=JobOptions(nodes=np.uint8(4)))
    numbers.append(asked.remote.job.nodes)
    assert [(number, type(number)) for number in numbers] == [(n, int) for n in (6, 3, 2, 2, 4)]


@pytest.mark.parametrize("value", [True, np.True_, 2.0, np.float64(2), "2", None, 0, np.int64(0)])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^n is .*; it must be a whole number, 1 or more$"):
        checked_whole("n", value, 1)


def test_n_is_per_host_and_one_without():
    assert [host.ranks for host in resolve_placement(None, hosts="a.invalid,b.invalid").hosts] == [
        1,
        1,
    ]
    at = resolve_placement(3, hosts=["a.invalid", "me@b.invalid:2222"])
    assert at.ranks == 6
    assert at.hosts == (HostPlan("a.invalid", 3), HostPlan("me@b.invalid", 3, port=2222))


def test_a_hostfile_says_slots_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    path = tmp_path / "hosts.json"
    path.write_text(
        '{"envs": ["A=1", "B=2"], "hosts": [{"ssh": "a.invalid", "ips": ["10.9.9.9"]}]}'
    )
    at = resolve_placement(None, hostfile=path, env=["B=3", "OMP_NUM_THREADS=1"])
    assert at.hosts == (HostPlan("a.invalid", 1, ("10.9.9.9",)),)
    assert at.remote.env.items() >= {
        "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "A": "1", "B": "3"
    }.items()  # fmt: skip
    path.write_text("a.invalid slots=3\n")
    assert resolve_placement(None, hostfile=str(path)).ranks == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hosts": "a", "hostfile": "b"}, "give --hosts or --hostfile, not both"),
        (
            {"python": "x", "launcher": "ssh"},
            "--python and --launcher: only with --hosts or --hostfile",
        ),
        ({"cwd": "/nowhere"}, "--cwd /nowhere: there is no such folder on this machine"),
        ({"n": 0, "hosts": "a"}, "the number of ranks per host is 0"),
        ({"hosts": "a", "boot_timeout": 0.0}, "the boot timeout is 0.0"),
        ({"hosts": "a", "launcher": "shh"}, "there is no launcher 'shh'; there are: ssh"),
        ({"connections_per_ip": 2}, "--connections-per-ip: only with --hosts or --hostfile"),
        ({"hosts": "a", "connections_per_ip": 0}, "0 connections per address; it must be from 1"),
        ({"hosts": "a", "interface": "nope9"}, "this machine has no interface 'nope9'"),
        ({"hosts": "a", "env": ["2=3"]}, "--env 2=3: '2' is no name of a variable"),
        ({"hosts": "a", "env": ["NOT_SET_HERE"]}, "--env NOT_SET_HERE: it is not set here"),
        ({"hosts": "a,-b"}, "--hosts: item 2: expected a host's name"),
        ({"hostfile": "/nowhere/hosts"}, "/nowhere/hosts: it cannot be read: No such file"),
    ],
)
def test_a_mistake_is_a_line_and_starts_nothing(options, said, monkeypatch):
    monkeypatch.setattr(workspace_module, "launch_root", None)
    with pytest.raises(ValueError) as error:
        Workspace.start(**options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("jaccl", "RDMA between Macs is not in this release"),
        ("jaccl-ring", "RDMA between Macs is not in this release"),
        ("nccl", "NCCL, between NVIDIA's GPUs, is not in this release"),
        ("mpi", "mpirun starts scripts (phalanx launch --backend mpi script.py)"),
    ],
)
def test_a_backend_that_cells_have_not_is_refused_and_what_to_do_is_said(tmp_path, backend, why):
    path = tmp_path / "hosts.json"
    path.write_text(f'{{"backend": "{backend}", "hosts": [{{"ssh": "a"}}]}}')
    with pytest.raises(NotSupported) as refused:
        resolve_placement(None, hostfile=path)
    assert str(refused.value) == (
        f"{path}: backend '{backend}' is not for cells: {why}; "
        'with "backend": "ring" in that file its hosts are joined by this engine, over tcp'
    )
    path.write_text(path.read_text().replace(f'"{backend}"', '"ring"'))  # as it says
    assert resolve_placement(None, hostfile=path).hosts[0].name == "a"


class _Seen(Exception):
    """What the root would have been told."""


def _booted(line: str, monkeypatch: pytest.MonkeyPatch) -> BootOptions:
    def launch_root(boot: BootOptions) -> None:
        raise _Seen(boot)

    monkeypatch.setattr(workspace_module, "launch_root", launch_root)
    options = start_options(parse(line_parser(), f"start {line}"))
    with pytest.raises(_Seen) as seen:
        Workspace.start(**options)
    return seen.value.args[0]


def test_the_magics_words_reach_the_root(monkeypatch, tmp_path):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    loopback = next(name for name, texts in own_addresses().items() if "127.0.0.1" in texts)
    boot = _booted(
        f"--hosts a.invalid,{socket.gethostname()} -n 2 --python /opt/p --cwd {tmp_path} --env A=1 "
        f"--env B= --ssh-arg='-i \"my key\"' --ssh-arg=-4 --interface {loopback} --launcher local "
        "--boot-timeout 7 --connections-per-ip 3",
        monkeypatch,
    )
    assert boot.world.size == 4
    assert boot.hosts == (
        HostPlan("a.invalid", 2),
        HostPlan(socket.gethostname(), 2, is_local=True),
    )
    env = {name: value for name, value in boot.remote.env.items() if not name.endswith("_THREADS")}
    assert env == {"A": "1", "B": ""}
    assert boot.remote == RemoteOptions(
        "/opt/p", str(tmp_path), boot.remote.env, ("-i", "my key", "-4"), loopback, "local", 7.0, 3
    )


def test_without_hosts_the_root_is_told_of_none(monkeypatch):
    boot = _booted("-n 3", monkeypatch)
    assert (boot.world.size, boot.hosts, boot.remote) == (3, (), RemoteOptions())
    assert boot.cwd == str(Path.cwd())


def test_words_that_are_no_options_are_named():
    with pytest.raises(UsageError, match=r"start has no --pyhton; did you mean --python\?"):
        parse(line_parser(), "start --hosts a --pyhton y")
    with pytest.raises(ValueError, match="--ssh-arg: No closing quotation"):
        start_options(parse(line_parser(), 'start --hosts a "--ssh-arg=\'x"'))
