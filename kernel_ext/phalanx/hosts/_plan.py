"""From a hostfile to the hosts of one start: who runs how many ranks, and which is this machine.

It asks the system for this machine's names and addresses; it reaches no other host.
"""

from __future__ import annotations

import getpass
import ipaddress
import socket
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from phalanx.protocol import HostPlan

from ._host import MOST_RANKS, Fault, Host, Hostfile, HostfileError, bare_name, is_address
from ._interfaces import own_addresses

__all__ = ["local_hosts", "plan"]

# For all names together: a dead name server may keep a look-up for half a minute, and whether a
# name is this machine's only saves an ssh to ourselves.
_LOOK_UP_S = 1.0


@dataclass
class _Planned:
    """A host while its entries are gathered."""

    host: Host
    is_local: bool
    ranks: int = 0
    addresses: dict[str, None] = field(default_factory=dict)


def plan(
    hostfile: Hostfile, n: int | None = None, *, local: Collection[Host] | None = None
) -> tuple[HostPlan, ...]:
    """Say which host runs how many ranks, in the order of their ranks.

    A host that stands several times is one host with the sum of the ranks, at its first place, as
    in Open MPI (so the ranks of a host are always neighbours); entries that are this machine are
    one host too. A host that says no slots has one rank for each time it stands there.

    Parameters
    ----------
    hostfile : Hostfile
        Who takes part.
    n : int, optional
        Ranks for each entry, where the hostfile has no slots.
    local : collection of Host, optional
        Which entries are this machine; by default `local_hosts` finds out.

    Raises
    ------
    HostfileError
        Both ``n`` and slots are said, or a host gets more than it takes, or no rank is left.

    Examples
    --------
    >>> from phalanx.hosts import parse_hosts
    >>> [(host.name, host.ranks) for host in plan(parse_hosts("a,b,a"), 2, local=())]
    [('a', 4), ('b', 2)]
    """
    _check_counts(hostfile, n)
    here = set(local_hosts(hostfile.hosts) if local is None else local)
    planned: dict[tuple[str, int] | None, _Planned] = {}
    for host in hostfile.hosts:
        ranks = n if n is not None else 1 if host.slots < 0 else host.slots
        if not ranks:
            continue
        key = None if host in here else (host.ssh, host.port)
        entry = planned.setdefault(key, _Planned(host, host in here))
        entry.ranks += ranks
        entry.addresses.update(dict.fromkeys(host.ips))
    if not planned:
        raise HostfileError(hostfile.source, [Fault(0, "", "slots=0 leaves out every host")])
    if sum(entry.ranks for entry in planned.values()) > MOST_RANKS:
        raise HostfileError(hostfile.source, [Fault(0, "", f"more than {MOST_RANKS} ranks")])
    has_far = any(not entry.is_local for entry in planned.values())
    return tuple(
        HostPlan(
            entry.host.ssh,
            entry.ranks,
            tuple(ip for ip in entry.addresses if not (has_far and _is_loopback(ip))),
            entry.host.port,
            entry.is_local,
        )
        for entry in planned.values()
    )


def _check_counts(hostfile: Hostfile, n: int | None) -> None:
    if n is None:
        return
    says = next((host for host in hostfile.hosts if host.slots >= 0), None)
    if says is not None:
        text = (
            f"-n is the number of ranks per host, and the file says slots for {says.ssh} already: "
            "leave -n out, or take the slots out of the file"
        )
        raise HostfileError(hostfile.source, [Fault(0, "", text)])
    full = [
        Fault(0, host.ssh, f"-n {n} is more than its max_slots={host.max_slots}")
        for host in hostfile.hosts
        if n > host.max_slots
    ]
    if full:
        raise HostfileError(hostfile.source, full)


def _is_loopback(text: str) -> bool:
    """Others cannot reach it: where there are any, it is no address to listen on."""
    return ipaddress.ip_address(text).is_loopback


def local_hosts(hosts: Iterable[Host]) -> set[Host]:
    """Find the entries that are this machine, to which no ssh is needed.

    They are: localhost, loopback addresses, this machine's name and addresses, and names that
    resolve to these. Not: an entry with a port of its own (a container, a forwarding) or with
    another user. Names are looked up all at once, for a second at most.
    """
    entries = [host for host in dict.fromkeys(hosts) if not host.port and _is_own_user(host.ssh)]
    if not entries:
        return set()
    own = {text for texts in own_addresses().values() for text in texts}
    name = socket.gethostname().lower()
    names = {"localhost", "localhost.localdomain", "ip6-localhost", name, name.partition(".")[0]}
    found, asked = set(), {}
    for host in entries:
        word = bare_name(host.ssh).lower()
        if is_address(word):
            is_here = _is_own(word, own)
        else:
            is_here = word in names
            if not is_here:
                asked[host] = word
        found |= {host} if is_here else set()
    resolved = _resolve(set(asked.values()))
    return found | {
        host
        for host, word in asked.items()
        if resolved.get(word) and all(_is_own(text, own) for text in resolved[word])
    }


def _is_own_user(ssh: str) -> bool:
    user = ssh.rpartition("@")[0]
    if not user:
        return True
    try:
        return user == getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return False


def _is_own(text: str, own: Collection[str]) -> bool:
    return _is_loopback(text) or text in own


def _resolve(names: Collection[str]) -> dict[str, set[str]]:
    """Look names up, each in a thread: a slow answer comes too late and is not waited for."""
    found: dict[str, set[str]] = {}

    def look_up(name: str) -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        found[name] = {str(answer[4][0]) for answer in answers}

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    deadline_s = time.monotonic() + _LOOK_UP_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(found)
