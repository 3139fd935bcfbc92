"""Find addresses at which hosts reach each other.

`reach` tries endpoints over tcp. `addresses_towards` asks the operating system and ssh's
configuration for the root's own addresses. `SilenceWatch` measures how long a supervisor is silent. `diagnose_path` finds
out why: it connects to all known addresses of the host. A refused connection also proves that the host's system answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.errors import DistributedError
from phalanx.hosts import interface_addresses, interface_of, own_addresses
from phalanx.protocol import HostPlan, RemoteOptions

from ..health.frozen_ranks import SilenceTimer

# Delay between the starts of two attempts. It is longer than a round trip in a cluster, so that the
# chosen address does not depend on chance.
LEAD_S = 0.05

_ANY_PORT = 9  # the discard port
# Linux lists all connections here, including half-open ones. Other systems have no such table.
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_SYN_RECV = "03"  # linux/tcp_states.h: a SYN came, the peer has not confirmed our SYN-ACK


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
    reach the host), the result also has all addresses that other machines may reach. It is a
    `DistributedError` if this machine has no address at the interface ``remote.interface``.
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
    names = [*plan.addresses, real_name(plan.name, ssh_args)]
    for name in names:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                name, _ANY_PORT, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)  # no packet is sent: the kernel only chooses the route
                own = str(sock.getsockname()[0])
                # A loopback address means that ssh uses a forwarded port: the host itself is
                # elsewhere.
                return "" if ipaddress.ip_address(own.partition("%")[0]).is_loopback else own
        except (OSError, UnicodeError):
            continue
    return ""


def real_name(name: str, ssh_args: Sequence[str]) -> str:
    """Return the host name that ssh would connect to, after its aliases."""
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


class PathReport(NamedTuple):
    """Result of `diagnose_path`: the end of a sentence about a silent host.

    ``is_cut``: the address at which the host was reached does not answer.
    """

    text: str = ""
    is_cut: bool = False


async def diagnose_path(
    here: str,
    there: str,
    others: Sequence[str] = (),
    *,
    timeout_s: float,
    port: int = _ANY_PORT,
) -> PathReport:
    """Find out why nothing comes from ``there`` to ``here``.

    Both are addresses, of a silent host and of this one; ``others`` are further addresses of that
    host. A host that is up accepts or refuses a connection to ``port``, unless a firewall drops the
    packets. A path over loopback needs no diagnosis.
    """
    if _is_loopback(there):
        return PathReport()
    every = tuple(dict.fromkeys((there, *others)))
    answers = await asyncio.gather(*(_answers(address, timeout_s, port) for address in every))
    answering = [address for address, is_there in zip(every, answers, strict=True) if is_there]
    if there in answering:
        text = "its machine answers there, its supervisor is stopped or far too busy"
        return PathReport(f" at {there}: {text}")
    card = interface_of(here)
    here = f"{here}{f' on {card}' if card else ''}"
    if _tries_to_connect(there):
        here = here or "this machine"
        text = f": nothing comes from {here} to {there}, but its packets do come here"
        return PathReport(text, is_cut=True)
    text = f": nothing comes from {there}{f' to {here}' if here else ''}"
    if answering:
        text += (
            f", while it answers at {', '.join(answering)}: the host lives, "
            "a card, cable or switch of that network does not"
        )
    return PathReport(text, is_cut=True)


async def _answers(address: str, timeout_s: float, port: int = _ANY_PORT) -> bool:
    host = f"[{address}]" if ":" in address else address
    found = await reach([f"tcp://{host}:{port}"], timeout_s)
    return bool(found.endpoint) or found.is_refused


def _tries_to_connect(address: str) -> bool:
    """Whether ``address`` has half-open connections to this machine.

    If so, its packets arrive here, but ours do not reach it: the path is broken in one direction.
    """
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    mapped = bytes(10) + b"\xff\xff" + packed  # form of an IPv4 address on an IPv6 socket
    numbers = {_as_listed(packed), _as_listed(mapped)}
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                remote, state = (*line.split(), "", "", "", "")[2:4]
                if state == _SYN_RECV and remote.partition(":")[0] in numbers:
                    return True
    return False


def _as_listed(packed: bytes) -> str:
    """Return an address as /proc/net/tcp lists it.

    The table has each four bytes as one number in this machine's byte order.

    Examples
    --------
    >>> _as_listed(bytes([1, 1, 1, 1]))
    '01010101'
    """
    return "".join(f"{number:08X}" for (number,) in struct.iter_unpack("=I", packed))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # the address is empty: the host has not connected yet
        return True


class SilenceWatch:
    """Watch for a silence of the supervisor at the other end.

    From half of ``limit_s`` on, the path between both is diagnosed, so that its state is known when
    the limit is over. ``diagnose`` does so within a time limit, and ``spawn`` runs it.
    """

    def __init__(
        self,
        limit_s: float,
        diagnose: Callable[[float], Coroutine[Any, Any, PathReport]],
        spawn: Callable[[Coroutine[Any, Any, PathReport]], asyncio.Task[PathReport]],
    ) -> None:
        self._limit_s = limit_s
        self._diagnose = diagnose
        self._spawn = spawn
        self.reset()

    def reset(self) -> None:
        """Take a sign of life."""
        self._timer = SilenceTimer(self._limit_s, asyncio.get_running_loop().time())
        self._diagnosis: asyncio.Task[PathReport] | None = None  # of this silence

    @property
    def lasts_s(self) -> float:
        return self._timer.lasts_s

    @property
    def path(self) -> PathReport:
        """Return the diagnosis, which is there after the limit."""
        if self._diagnosis is None or not self._diagnosis.done():
            return PathReport()
        return self._diagnosis.result()

    async def look(self) -> bool:
        """Poll; return whether the silence has lasted for the limit."""
        is_over = self._timer.is_over(asyncio.get_running_loop().time())
        if self._diagnosis is None and self.lasts_s >= self._limit_s / 2:
            self._diagnosis = self._spawn(self._diagnose(self._limit_s / 3))
        if is_over and self._diagnosis is not None:
            # on a busy machine the query may end after its timeout
            await asyncio.wait({self._diagnosis})
        return self.lasts_s >= self._limit_s
