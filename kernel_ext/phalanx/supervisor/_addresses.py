"""This machine's addresses: those of a network card, and those through which others are reached.

It asks the system and ssh's configuration; it connects to nobody.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import DistributedError
from phalanx.protocol import HostPlan, RemoteOptions

__all__ = ["addresses_of", "addresses_towards"]

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_ANY_PORT = 9  # discard: nothing is sent, the kernel only says which way it would go


def addresses_of(interface: str) -> tuple[str, ...]:
    """Return the addresses of a network card.

    Raises
    ------
    DistributedError
        There is none of this name, or it has no address.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        msg = f"it has no network interface {interface!r} (it has {', '.join(names)})"
        raise DistributedError(msg)
    found = [*_ipv4_of(interface), *_ipv6_of(interface)]
    if not found:
        msg = f"its network interface {interface!r} has no address"
        raise DistributedError(msg)
    return tuple(found)


def _ipv4_of(interface: str) -> list[str]:
    packed = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, packed)
        except OSError:  # it has none
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6_of(interface: str) -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    found = [ipaddress.IPv6Address(int(row[0], 16)) for row in rows if row[5] == interface]
    return [str(address) for address in found if not address.is_link_local]


async def addresses_towards(plans: Sequence[HostPlan], remote: RemoteOptions) -> tuple[str, ...]:
    """Return the addresses of this machine through which it reaches the hosts; each once.

    Where a host's name says nothing here (ssh may know more of it), all addresses that others can
    reach.
    """
    if remote.interface:
        return addresses_of(remote.interface)
    if remote.launcher == "local":
        return ("127.0.0.1",)
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(
        *(loop.run_in_executor(None, _towards, plan, remote.ssh_args) for plan in plans)
    )
    if "" in found:
        found += _all_addresses()
    return tuple(dict.fromkeys(address for address in found if address))


def _towards(plan: HostPlan, ssh_args: Sequence[str]) -> str:
    """Return the address that packets to a host come from; "" if that cannot be told."""
    names = [*plan.addresses, _real_name(plan.name, ssh_args)]
    for name in names:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                name, _ANY_PORT, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                return str(sock.getsockname()[0])
        except (OSError, UnicodeError):
            continue
    return ""


def _real_name(name: str, ssh_args: Sequence[str]) -> str:
    """Return the name that ssh would connect to."""
    try:
        said = subprocess.run(
            ["ssh", *ssh_args, "-G", "--", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return name.rpartition("@")[2]
    words = dict(line.split(" ", 1) for line in said.stdout.splitlines() if " " in line)
    return words.get("hostname", name.rpartition("@")[2])


def _all_addresses() -> list[str]:
    found = []
    for _, name in socket.if_nameindex():
        found += [*_ipv4_of(name), *_ipv6_of(name)]
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]
