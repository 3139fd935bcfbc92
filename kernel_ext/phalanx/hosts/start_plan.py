"""Plan a start: the ranks of each host, their environment and program.

Reads arguments, files, and this machine's names, interfaces and addresses (psutil asks the system);
contacts no other host and starts nothing.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from phalanx.errors import did_you_mean
from phalanx.protocol import MOST_RANKS, HostPlan

from .host import Fault, Host, Hostfile, HostfileError, bare_name, is_address

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# For all names together: a dead name server can block a look-up for half a minute, and knowing that
# a name is this machine only saves an ssh to ourselves.
_LOOK_UP_S = 1.0


def environment(settings: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` settings; a bare ``KEY`` takes the value from ``own``.

    Raises `ValueError`: a name is not a valid shell variable, or a bare name is not set.

    Examples
    --------
    >>> environment(["A=1=2", "HOME"], {"HOME": "/root"})
    {'A': '1=2', 'HOME': '/root'}
    """
    env = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not _VARIABLE.fullmatch(name):
            msg = f"--env {setting}: '{name}' is no name of a variable"
            raise ValueError(msg)
        if "\0" in value:
            msg = f"--env {name}: the value holds a null character"
            raise ValueError(msg)
        if name == "PHALANX_CHANNEL":
            msg = "--env PHALANX_CHANNEL: the launcher sets it for each rank"
            raise ValueError(msg)
        if not equals and name not in own:
            msg = f"--env {name}: it is not set here; --env {name}= sets it to nothing"
            raise ValueError(msg)
        env[name] = value if equals else own[name]
    return env


def is_python(command: Sequence[str]) -> bool:
    """Whether a command is a script or a module (``-m``) of Python."""
    return command[0] == "-m" or command[0].endswith((".py", ".pyz"))


def resolve(
    command: Sequence[str],
    python: str,
    cwd: Path,
    path: str | None = None,
    *,
    is_checked: bool = True,
) -> list[str]:
    """Find the program to run; scripts get ``python``, other names use PATH.

    ``is_checked``: require that a script exists.

    Raises `ValueError`: the file or program does not exist, or is not executable.
    """
    if not command:
        msg = "no script is given; for example: phalanx launch -n 4 script.py"
        raise ValueError(msg)
    first, *rest = command
    if first == "-m":
        if not rest:
            msg = "-m needs the name of a module"
            raise ValueError(msg)
    elif is_python(command):
        script = cwd / first
        if is_checked and not script.is_file():
            msg = f"there is no script '{script}'"
            raise ValueError(msg)
    else:
        return [_program(first, cwd, path), *rest]
    return [_program(python, cwd, path), *command]


def _program(name: str, cwd: Path, path: str | None) -> str:
    if os.sep in name:
        file = cwd / name
        if not file.is_file():
            msg = f"there is no program '{file}'"
            raise ValueError(msg)
        if not os.access(file, os.X_OK):
            msg = f"'{file}' is not executable; a Python script's name ends in .py"
            raise ValueError(msg)
        return str(file)
    found = shutil.which(name, path=path)
    if found is None:
        file = cwd / name
        hint = f"; for the one here say ./{name}" if file.is_file() else ""
        msg = f"there is no program '{name}' on the PATH{hint}"
        raise ValueError(msg)
    return found


def plan(
    hostfile: Hostfile, n: int | None = None, *, local: Collection[Host] | None = None
) -> tuple[HostPlan, ...]:
    """Decide how many ranks each host runs, in rank order.

    A host that is listed several times is one host with the sum of the ranks, at its first place,
    as in Open MPI (so the ranks of a host are always neighbours). All entries that are this machine
    (``local``; by default `local_hosts` finds them) are merged too. A host without slots has ``n``
    ranks, by default one, for each time it is listed.

    Raises `HostfileError`: both ``n`` and slots are given, or a host gets more than ``max_slots``,
    or no rank is left.

    Examples
    --------
    >>> from phalanx.hosts import parse_hosts
    >>> [(host.name, host.ranks) for host in plan(parse_hosts("a,b,a"), 2, local=())]
    [('a', 4), ('b', 2)]
    """
    _check_counts(hostfile, n)
    here = set(local_hosts(hostfile.hosts) if local is None else local)
    planned: dict[tuple[str, int] | None, HostPlan] = {}
    for host in hostfile.hosts:
        ranks = n if n is not None else 1 if host.slots < 0 else host.slots
        if not ranks:
            continue
        key = None if host in here else (host.ssh, host.port)
        its = planned.get(key) or HostPlan(host.ssh, 0, (), host.port, is_local=host in here)
        ips = tuple(dict.fromkeys((*its.addresses, *host.ips)))
        planned[key] = msgspec.structs.replace(its, ranks=its.ranks + ranks, addresses=ips)
    if not planned:
        raise HostfileError(hostfile.source, [Fault(0, "", "slots=0 leaves out every host")])
    if sum(its.ranks for its in planned.values()) > MOST_RANKS:
        raise HostfileError(hostfile.source, [Fault(0, "", f"more than {MOST_RANKS} ranks")])
    if set(planned) <= {None}:
        return tuple(planned.values())
    return tuple(
        msgspec.structs.replace(
            its, addresses=tuple(ip for ip in its.addresses if not _is_loopback(ip))
        )
        for its in planned.values()
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
    """Whether an address is loopback; other hosts cannot reach it."""
    return ipaddress.ip_address(text).is_loopback


def local_hosts(hosts: Iterable[Host]) -> set[Host]:
    """Find the entries that are this machine, which need no ssh.

    These are localhost, loopback addresses, this machine's name and addresses, and names that
    resolve to these. Entries with a port (a container, a forwarding) or another user do not count.
    All names are looked up in parallel, for one second at most.
    """
    entries = [host for host in dict.fromkeys(hosts) if not host.port and _is_own_user(host.ssh)]
    if not entries:
        return set()
    own = {text for texts in own_addresses().values() for text in texts}
    name = socket.gethostname().lower()
    names = {"localhost", "localhost.localdomain", "ip6-localhost", name, name.partition(".")[0]}
    words = {host: bare_name(host.ssh).lower() for host in entries}
    unknown = {word for word in words.values() if word not in names and not is_address(word)}
    # By word: its addresses; the machine's own names need none.
    known = {word: {word} for word in words.values() if is_address(word)} | _resolve(unknown)

    def is_own(text: str) -> bool:
        return _is_loopback(text) or text in own

    return {
        host
        for host, word in words.items()
        if word in names or (known.get(word) and all(map(is_own, known[word])))
    }


def _is_own_user(ssh: str) -> bool:
    user = ssh.rpartition("@")[0]
    if not user:
        return True
    try:
        return user == getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        return False


def _resolve(names: Collection[str]) -> dict[str, set[str]]:
    """Resolve names in parallel threads; slow answers are dropped."""
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


def own_addresses() -> dict[str, tuple[str, ...]]:
    """Return the addresses of this machine's interfaces that are up.

    Returns
    -------
    dict of str to tuple of str
        By interface name: IPv4 first, then IPv6; link-local addresses include their scope.
    """
    import psutil  # loads slowly, and most starts need no addresses

    is_up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    found = {}
    for name, entries in psutil.net_if_addrs().items():
        by_family = {
            family: [entry.address for entry in entries if entry.family == family]
            for family in (socket.AF_INET, socket.AF_INET6)
        }
        if is_up.get(name, True):
            found[name] = (*by_family[socket.AF_INET], *by_family[socket.AF_INET6])
    return found


def interface_of(address: str) -> str:
    """Return the network interface that has an address; "" if none has.

    Examples
    --------
    >>> interface_of("127.0.0.1"), interface_of("192.0.2.1")
    ('', '')
    """
    try:
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return ""  # loopback is not a network card
    except ValueError:  # a name
        return ""
    return next((name for name, found in own_addresses().items() if address in found), "")


def interface_addresses(interface: str) -> tuple[str, ...]:
    """Return the addresses that ranks can use on an interface, IPv4 first.

    Link-local IPv6 addresses are used only if there are no others: they need a scope, which differs
    from host to host.

    Raises `ValueError`: no interface has that name (the text names the nearest), or it is down or
    has no address.
    """
    import psutil

    found = own_addresses()
    if interface not in found:
        if interface in psutil.net_if_addrs():
            msg = f"the interface {interface} of this machine is down"
            raise ValueError(msg)
        hint = did_you_mean(interface, sorted(found) or ["none"])
        msg = f"this machine has no interface {interface!r}; {hint}"
        raise ValueError(msg)
    far = [text for text in found[interface] if not ipaddress.ip_address(text).is_link_local]
    if not found[interface]:
        msg = f"the interface {interface} of this machine has no address"
        raise ValueError(msg)
    return tuple(far) or found[interface]
