"""Find addresses at which hosts reach each other.

`reach` tries endpoints over tcp. `addresses_towards` asks the operating system and ssh's
configuration for the root's own addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.errors import DistributedError
from phalanx.hosts import interface_addresses, own_addresses
from phalanx.protocol import HostPlan, RemoteOptions

# Delay between the starts of two attempts. It is longer than a round trip in a cluster, so that the
# chosen address does not depend on chance.
LEAD_S = 0.05

_ANY_PORT = 9  # The discard port. No packet is sent: the kernel only chooses the route.


class ReachResult(NamedTuple):
    """Result of `reach`: the first endpoint that answered, or ``why_not``.

    ``own`` is the local address of the connection to ``endpoint``. ``is_refused``: the endpoint
    tried first refused the connection, so nobody listens there.
    """

    endpoint: str
    own: str
    why_not: str
    is_refused: bool


async def reach(
    endpoints: Sequence[str], timeout_s: float, *, is_refusal_final: bool = False
) -> ReachResult:
    """Try all endpoints, staggered by `LEAD_S`, and return the first that answers.

    ``is_refusal_final``: if the first endpoint refuses the connection, do not wait for the others.
    """
    tries = [
        asyncio.ensure_future(_try(endpoint, place * LEAD_S, timeout_s))
        for place, endpoint in enumerate(endpoints)
    ]
    pending = set(tries)
    is_refused = False
    try:
        while pending and not (is_refused and is_refusal_final):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            over = [each.result() for each in tries if each.done()]
            for found in over:
                if found.endpoint:
                    return found
            is_refused = tries[0].done() and tries[0].result().is_refused
        why_not = ", ".join(each.result().why_not for each in tries if each.done())
        return ReachResult("", "", why_not, is_refused)
    finally:
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _try(endpoint: str, wait_s: float, timeout_s: float) -> ReachResult:
    await asyncio.sleep(wait_s)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
        )
    except asyncio.TimeoutError:
        why_not = f"{host}:{port} (no answer: blocked by a firewall?)"
        return ReachResult("", "", why_not, is_refused=False)
    except OSError as error:
        is_refused = isinstance(error, ConnectionRefusedError)
        return ReachResult("", "", f"{host}:{port} ({_words(error)})", is_refused)
    own = str(writer.get_extra_info("sockname")[0])
    writer.close()
    return ReachResult(endpoint, own, "", is_refused=False)


def _words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return (
        error.strerror or str(error) if not isinstance(error, socket.gaierror) else "no such name"
    )


async def addresses_towards(plans: Sequence[HostPlan], remote: RemoteOptions) -> tuple[str, ...]:
    """Return the addresses of this machine through which it reaches the hosts.

    Each address is returned once. If a host's name cannot be resolved here (ssh may know how to
    reach the host), the result also has all addresses that other machines may reach.

    Raises
    ------
    DistributedError
        This machine has no interface of the name ``remote.interface``, or the interface has no
        address.
    """
    if remote.interface:
        try:
            return interface_addresses(remote.interface)
        except ValueError as error:
            raise DistributedError(str(error)) from None
    if remote.launcher == "local":
        return ("127.0.0.1",)
    if remote.job.nodes:  # The scheduler has not chosen the hosts yet.
        return tuple(_all_addresses()) or ("127.0.0.1",)
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(
        *(loop.run_in_executor(None, _towards, plan, remote.ssh_args) for plan in plans)
    )
    if "" in found:
        found += _all_addresses()
    # Without any network the only reachable sshd is the one of this machine.
    return tuple(dict.fromkeys(address for address in found if address)) or ("127.0.0.1",)


def _towards(plan: HostPlan, ssh_args: Sequence[str]) -> str:
    """Return the source address of packets to a host.

    The result is "" if no name of the host resolves, or if only loopback leads there.
    """
    names = [*plan.addresses, _real_name(plan.name, ssh_args)]
    for name in names:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                name, _ANY_PORT, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                own = str(sock.getsockname()[0])
                # A loopback address means that ssh uses a forwarded port: the host itself is
                # elsewhere.
                return "" if ipaddress.ip_address(own.partition("%")[0]).is_loopback else own
        except (OSError, UnicodeError):
            continue
    return ""


def _real_name(name: str, ssh_args: Sequence[str]) -> str:
    """Return the host name that ssh would connect to."""
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
    """Return the addresses at which other machines may reach this one."""
    every = [address for addresses in own_addresses().values() for address in addresses]
    found = [(address, ipaddress.ip_address(address)) for address in every]
    return [text for text, its in found if not (its.is_loopback or its.is_link_local)]
