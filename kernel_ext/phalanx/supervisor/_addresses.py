"""This machine's addresses through which other hosts reach it.

It asks the system and ssh's configuration; it connects to nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import subprocess
from collections.abc import Sequence

from phalanx.errors import DistributedError
from phalanx.hosts import interface_addresses, own_addresses
from phalanx.protocol import HostPlan, RemoteOptions

__all__ = ["addresses_towards"]

_ANY_PORT = 9  # discard: nothing is sent, the kernel only says which way it would go


async def addresses_towards(plans: Sequence[HostPlan], remote: RemoteOptions) -> tuple[str, ...]:
    """Return the addresses of this machine through which it reaches the hosts; each once.

    Where a host's name says nothing here (ssh may know more of it), all addresses that others can
    reach.

    Raises
    ------
    DistributedError
        There is no such interface here, or no address at all.
    """
    if remote.interface:
        try:
            return interface_addresses(remote.interface)
        except ValueError as error:
            raise DistributedError(str(error)) from None
    if remote.launcher == "local":
        return ("127.0.0.1",)
    if remote.job.nodes:  # nobody knows yet which they are
        return tuple(_all_addresses()) or ("127.0.0.1",)
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(
        *(loop.run_in_executor(None, _towards, plan, remote.ssh_args) for plan in plans)
    )
    if "" in found:
        found += _all_addresses()
    # Without any network an sshd of this very machine is all that can be meant.
    return tuple(dict.fromkeys(address for address in found if address)) or ("127.0.0.1",)


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
                own = str(sock.getsockname()[0])
                # Through a forwarded port ssh is reached here, and its far end is elsewhere.
                return "" if ipaddress.ip_address(own.partition("%")[0]).is_loopback else own
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
    """Return what others may reach this machine at."""
    every = [address for addresses in own_addresses().values() for address in addresses]
    found = [(address, ipaddress.ip_address(address)) for address in every]
    return [text for text, its in found if not (its.is_loopback or its.is_link_local)]
