"""Hostfiles: each form reads as its own program reads it, and what is wrong is named where it is."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.hosts import (
    Host,
    Hostfile,
    HostfileError,
    is_address,
    parse_hosts,
    read_hostfile,
    read_hosts_text,
    to_json,
)

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
ADDRESSES = st.ip_addresses().map(str)
USERS = st.sampled_from(["", "me@", "me@corp.com@", "DOM\\me@"])
SSH = st.builds(lambda user, name: user + name, USERS, NAMES | ADDRESSES)
RDMA = st.none() | NAMES | st.lists(NAMES, min_size=1, max_size=3).map(tuple)
HOSTS = st.builds(
    Host,
    SSH,
    st.lists(ADDRESSES, max_size=3).map(tuple),
    st.lists(RDMA, max_size=3).map(tuple),
    port=st.just(0) | st.integers(1, 65535),
)
ENVS = st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}=[^\x00]{0,5}", fullmatch=True)
FILES = st.builds(
    Hostfile,
    st.lists(HOSTS, min_size=1, max_size=5).map(tuple),
    st.sampled_from(["", "ring", "jaccl-ring"]),
    st.lists(ENVS, max_size=3).map(tuple),
)


def _said(error: pytest.ExceptionInfo[HostfileError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.slow
@given(FILES)
def test_what_is_written_is_read_again(hostfile):
    text = to_json(hostfile)
    again = read_hosts_text(text, hostfile.source)
    assert list(json.loads(text)) == ["backend", "envs", "hosts"]
    assert {tuple(host) for host in json.loads(text)["hosts"]} == {("ssh", "ips", "rdma")}
    assert to_json(again) == text
    assert [host.ssh for host in again.hosts] == [host.ssh for host in hostfile.hosts]
    assert [host.port for host in again.hosts] == [host.port for host in hostfile.hosts]
    assert [host.rdma for host in again.hosts] == [host.rdma for host in hostfile.hosts]
    assert again.backend == hostfile.backend
    assert again.envs == hostfile.envs
    for old, new in zip(hostfile.hosts, again.hosts, strict=True):
        assert new.ips == old.ips or (not old.ips and new.ips == (old.ssh.rpartition("@")[2],))


@given(st.lists(st.tuples(SSH, st.integers(0, 9)), min_size=1, max_size=5))
def test_the_two_text_forms_say_the_same(entries):
    slots = "\n".join(f"{ssh} slots={n} # {ssh}" for ssh, n in entries)
    counts = "\n\n".join(
        (f"{ssh.rpartition('@')[0]}@" if "@" in ssh else "")
        + (f"[{name}]" if ":" in (name := ssh.rpartition("@")[2]) else name)
        + f":{n}"
        for ssh, n in entries
    )
    hosts = [(host.ssh, host.slots) for host in read_hosts_text(slots, "f").hosts]
    assert hosts == entries
    assert [(host.ssh, host.slots) for host in read_hosts_text(counts, "f").hosts] == entries


@given(st.text(max_size=80) | st.text("[]{}:,\"'@#=\n \tab1-", max_size=80))
def test_whatever_it_is_it_is_read_or_refused_in_one_line(text):
    for read in (read_hosts_text, parse_hosts):
        try:
            hostfile = read(text, "f")
        except HostfileError as error:
            said = str(error)
        else:
            assert all(not host.ssh.startswith("-") for host in hostfile.hosts)
            continue
        assert len(said.splitlines()) == 1


def test_a_file_of_open_mpi():
    text = (
        "# nodes\na slots=2 max_slots = 4\n\nme@b\t slots\t=0 # not today\n"
        "c max-slots= 8 user=you\nfe80::2\n"
    )
    assert read_hosts_text(text, "f").hosts == (
        Host("a", slots=2, max_slots=4),
        Host("me@b", slots=0),
        Host("you@c", max_slots=8),
        Host("fe80::2"),
    )


def test_a_file_of_mpich_may_begin_with_a_bracket():
    hosts = read_hosts_text("[fe80::2]:3\nb:2\n", "f").hosts
    assert hosts == (Host("fe80::2", slots=3), Host("b", slots=2))


def test_a_list_of_mlx_and_its_dict_are_the_same():
    text = '[{"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5", ["x", "y"]]}]'
    listed = read_hosts_text(text, "f")
    assert listed.hosts == (Host("a", ("10.0.0.1",), (None, "rdma_en5", ("x", "y"))),)
    whole = read_hosts_text(f'{{"backend": "jaccl", "envs": ["A=1=2"], "hosts": {text}}}', "f")
    assert whole == Hostfile(listed.hosts, "jaccl", ("A=1=2",), "f")


def test_slots_and_ports_become_what_mlx_reads():
    text = to_json(Hostfile((Host("a", slots=2), Host("b", slots=0), Host("me@fe80::2", port=22))))
    assert [host["ssh"] for host in json.loads(text)["hosts"]] == [
        "a",
        "a",
        "ssh://me@[fe80::2]:22",
    ]


def test_a_number_in_hosts_is_the_port_of_ssh():
    assert parse_hosts("a, b,me@c:2222,[fe80::2]:22,fe80::3").hosts == (
        Host("a"),
        Host("b"),
        Host("me@c", port=2222),
        Host("fe80::2", port=22),
        Host("fe80::3"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,,b", "--hosts: item 2: expected a host's name, found nothing"),
        ("a:0", "item 1: expected a port between 1 and 65535, found '0'"),
        ("-oProxyCommand=x", "item 1: expected a host's name or address, found '-oProxyCommand=x'"),
        ("fe80::2:zz", "(before a number in brackets: [fe80::2]:N)"),
        ("[b]:2", "expected an IPv6 address in the brackets"),
        ("-l@b", "expected user@host"),
    ],
)
def test_what_is_wrong_with_hosts(text, said):
    with pytest.raises(HostfileError) as error:
        parse_hosts(text)
    assert said in _said(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb slot=2", "f: line 2, slot: no field of a hostfile; did you mean slots?"),
        ("a slots=many", "line 1, slots: expected a whole number from 0 to 32768, found 'many'"),
        ("a slots=4 max_slots=2", "line 1, slots: expected max_slots=2 at most, found 4"),
        ("a:2 slots=2", "line 1, slots: the field is given twice"),
        ("a slots=-1\n-x\n", "line 2, host: expected a host's name or address, found '-x'"),
        ("# nobody\n", "expected one host per line, such as 'b slots=2', found none"),
        ("a slots=32768\nb", "expected 32768 ranks at most"),
        ('[{"ssh": "a",\n}]', "line 2: JSON is malformed: "),
        ('[{"ssh": "a"},\n{"ips": []}]', "f: hosts[1]: object missing required field ssh"),
        ('[{"shh": "a"}]', "hosts[0].shh: no field of a hostfile; did you mean ssh?"),
        ('[{"ssh": "a",\n"ips": ["b:1"]}]', "f: hosts[0].ips[0]: expected an IP address"),
        ('[{"ssh": "a:22"}]', 'for the port of ssh write "ssh://a:22"'),
        ('[{"ssh": 3}]', "hosts[0].ssh: expected str, got int"),
        ('[["10.0.0.1:5000"]]', "hosts[0]: expected object, got array"),
        ('{"hosts": {}}', "hosts: expected array, got object"),
        ('{"hots": []}', "hots: no field of a hostfile; did you mean hosts?"),
        ('{"hosts": [{"ssh": "a"}], "backend": "rign"}', "did you mean ring?"),
        ('{"hosts": [{"ssh": "a"}], "envs": ["2=3"]}', "envs[0]: expected KEY=VALUE, found '2=3'"),
        ("[]", "hosts: expected from 1 to 32768 hosts, found 0"),
        ("[" * 20_000, "hosts[0]: expected object, got array"),
        (f"[{'9' * 5000}]", "hosts[0]: number out of range"),
    ],
)
def test_what_is_wrong_is_named_where_it_is(text, said):
    with pytest.raises(HostfileError) as error:
        read_hosts_text(text, "f")
    assert said in _said(error)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(HostfileError) as error:
        read_hosts_text("a slots=x\nb\nc slot=1 slots=y\n" + "-d\n" * 20, "f")
    assert [fault.line for fault in error.value.faults][:3] == [1, 3, 3]
    assert len(error.value.faults) == 23
    assert _said(error).endswith("; and 15 more")


def test_a_file_is_read_by_its_path(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfa slots=2\r\nb\r\n")
    assert [host.ssh for host in read_hostfile(path).hosts] == ["a", "b"]
    assert read_hostfile(path).source == str(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [(None, "it cannot be read: No such file"), (b"a\n\xff\n", "line 2: it is no text (UTF-8)")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, data, said):
    path = tmp_path / "hosts"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(HostfileError) as error:
        read_hostfile(path)
    assert f"{path}: {said}" in _said(error)
    with pytest.raises(HostfileError, match="Is a directory"):
        read_hostfile(tmp_path)
    with pytest.raises(HostfileError, match="too large"):
        read_hostfile(os.devnull.replace("null", "zero"))


@pytest.mark.parametrize("scope", [";reboot;", "$(reboot)", "a b", "a\nb", ""])
def test_an_address_with_a_shell_in_its_scope_is_none(scope):
    assert not is_address(f"fe80::1%{scope}")
    assert is_address("fe80::1%eth0")
