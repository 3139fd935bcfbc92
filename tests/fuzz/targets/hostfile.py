"""What may stand in a hostfile or in `--hosts`: of MLX, of Open MPI, of MPICH, or nothing of them.

Whatever it is, it is read or refused in one line; what is read can be planned and written again.
"""

from __future__ import annotations

from fuzz.supply import Supply

from phalanx.hosts import Hostfile, HostfileError, parse_hosts, plan, read_hosts_text, to_json

_JSON = (
    b'{"backend": "ring", "envs": ["A=1"], "hosts": [{"ssh": "ssh://me@b:22", "ips": ["10.0.0.2"],'
    b'\n "rdma": [null, "x", ["y"]]}, {"ssh": "fe80::2"}]}'
)
_TEXT = b"a slots=2 max_slots=4 # c\nme@b:3\n[fe80::2]:2\nfe80::3 slots=0\nc user=you\n"
_HOSTS = b"a,b,user@c:2222,[fe80::2]:22,fe80::3,10.0.0.4"
_MOST_TEXT = 20_000


def _check(hostfile: Hostfile, n: int) -> None:
    for host in hostfile.hosts:
        # Never an option of ssh, nor a word for its shell.
        assert host.ssh
        assert not host.ssh.startswith("-")
        assert not set(host.ssh) & set(" '\"$`;&|<>(){}\n\t*?")
        assert 0 <= host.port < 1 << 16
    try:
        hosts = plan(hostfile, n or None, local=())
    except HostfileError as error:
        _check_refused(error)
    else:
        assert sum(host.ranks for host in hosts) >= len(hosts) > 0
    text = to_json(hostfile)
    if any(host.slots for host in hostfile.hosts):
        assert to_json(read_hosts_text(text, "f")) == text


def _check_refused(error: HostfileError) -> None:
    text = str(error)
    assert len(text.splitlines()) == 1, text
    assert len(text) < _MOST_TEXT


def one(data: bytes) -> None:
    """Run one input."""
    supply = Supply(data)
    n = supply.below(4)
    true = supply.choice((_JSON, _TEXT, _HOSTS))
    data = supply.rest() if supply.below(2) else supply.edited(true)
    read = parse_hosts if true is _HOSTS else read_hosts_text
    try:
        hostfile = read(data.decode(errors="surrogateescape"), "f")
    except HostfileError as error:
        _check_refused(error)
    else:
        _check(hostfile, n)
