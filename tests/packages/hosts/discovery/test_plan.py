"""From a hostfile to hosts with ranks: counts, repetitions, and which of them is this machine."""

from __future__ import annotations

import getpass
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.hosts import (
    Host,
    HostfileError,
    interface_addresses,
    own_addresses,
    parse_hosts,
    plan,
    read_hosts_text,
    start_plan,
)


def _counts(text: str, n: int | None = None) -> list[tuple[str, int]]:
    return [(host.name, host.ranks) for host in plan(read_hosts_text(text, "f"), n, local=())]


def test_slots_are_ranks_and_none_leaves_a_host_out():
    assert _counts("a slots=2\nb slots=0\nc\n") == [("a", 2), ("c", 1)]


def test_n_is_per_host():
    assert _counts("a\nb\n", 3) == [("a", 3), ("b", 3)]


def test_a_host_that_stands_twice_has_the_sum_at_its_first_place():
    assert _counts("a slots=2\nb\na\n") == [("a", 3), ("b", 1)]
    twice = plan(parse_hosts("a:22,a:23,me@a:22"), local=())
    assert [(host.name, host.port) for host in twice] == [("a", 22), ("a", 23), ("me@a", 22)]


def test_its_addresses_are_all_it_says():
    text = '[{"ssh":"a","ips":["10.0.0.1","127.0.0.1"]},{"ssh":"b"},{"ssh":"a","ips":["10.0.1.1"]}]'
    hosts = plan(read_hosts_text(text, "f"), local=())
    # Nobody reaches a loopback address of another host.
    assert [host.addresses for host in hosts] == [("10.0.0.1", "10.0.1.1"), ()]


@pytest.mark.parametrize(
    ("text", "n", "said"),
    [
        (
            "a slots=2\nb\n",
            2,
            "f: -n is the number of ranks per host, and the file says slots for a",
        ),
        ("a slots=0\n", None, "f: slots=0 leaves out every host"),
        ("a\nb max_slots=2\n", 3, "f: b: -n 3 is more than its max_slots=2"),
        ("a\nb\n", 20_000, "more than 32768 ranks"),
    ],
)
def test_counts_that_cannot_be(text, n, said):
    with pytest.raises(HostfileError) as error:
        _counts(text, n)
    assert said in str(error.value)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, max_size=8))
def test_no_rank_is_lost_and_no_host_stands_twice(entries):
    text = "\n".join(f"{name} slots={n}" for name, n in entries)
    if not any(n for _, n in entries):
        with pytest.raises(HostfileError):
            _counts(text)
        return
    counts = _counts(text)
    assert len(dict(counts)) == len(counts)
    assert all(dict(counts).get(name, 0) == sum(m for other, m in entries if other == name)
               for name, _ in entries)  # fmt: skip


def _local(words: str) -> list[str]:
    return [host.name for host in plan(parse_hosts(words)) if host.is_local]


@pytest.mark.parametrize("word", ["localhost", "LOCALHOST", "127.0.0.1", "127.0.3.4", "::1"])
def test_this_machine_needs_no_ssh(word):
    assert _local(word) == [word]


def test_its_own_names_and_addresses_are_this_machine():
    name = socket.gethostname()
    addresses = [text for texts in own_addresses().values() for text in texts if "%" not in text]
    assert addresses
    words = [name, f"{getpass.getuser()}@{name}", *addresses]
    assert [_local(word) for word in words] == [[word] for word in words]
    merged = plan(parse_hosts(",".join(words)), 2)
    assert [(host.name, host.ranks) for host in merged] == [(name, 2 * len(words))]


def test_another_port_or_user_is_another_host():
    # A container or a forwarded port; 192.0.2.0/24 is nobody's (RFC 5737), but may be this machine's.
    assert _local("127.0.0.1:2222") == []
    assert _local("somebody-else@localhost") == []
    assert _local("203.0.113.7") == []


def test_names_that_nobody_answers_for_are_not_waited_for(monkeypatch):
    is_over = threading.Event()

    def look_up(*_, **__):
        assert is_over.wait(30)
        return []

    monkeypatch.setattr(start_plan, "_LOOK_UP_S", 0.05)
    monkeypatch.setattr(start_plan.socket, "getaddrinfo", look_up)
    try:
        assert _local("a,b,c") == []
    finally:
        is_over.set()


def test_a_name_that_resolves_to_this_machine_is_this_machine(monkeypatch):
    answers = {"here": ["127.0.1.1"], "both": ["127.0.0.1", "203.0.113.7"]}

    def look_up(name, *_, **__):
        return [(0, 0, 0, "", (text, 0)) for text in answers[name]]

    monkeypatch.setattr(start_plan.socket, "getaddrinfo", look_up)
    assert _local("here,both") == ["here"]


def test_a_set_of_local_hosts_can_be_said():
    hosts = plan(parse_hosts("a,b"), local={Host("b")})
    assert [host.is_local for host in hosts] == [False, True]


def test_an_interface_has_addresses_by_its_name():
    loopback = next(name for name, texts in own_addresses().items() if "127.0.0.1" in texts)
    assert "127.0.0.1" in interface_addresses(loopback)
    with pytest.raises(ValueError, match=f"did you mean {loopback}"):
        interface_addresses(f"{loopback}x")
    with pytest.raises(ValueError, match="there are: "):
        interface_addresses("QQQQ9")
