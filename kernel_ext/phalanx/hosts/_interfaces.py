"""This machine's network interfaces by name, and their addresses.

psutil asks the system (getifaddrs), on Linux and macOS alike; nothing is started for it.
"""

from __future__ import annotations

import difflib
import ipaddress
import socket

import psutil

__all__ = ["interface_addresses", "interface_of", "own_addresses"]


def own_addresses() -> dict[str, tuple[str, ...]]:
    """Return the addresses of each interface of this machine that is up.

    Returns
    -------
    dict of str to tuple of str
        By the interface's name: IPv4 first, then IPv6, link-local ones with their scope.
    """
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
    """Return the name of the network card of this machine that has an address; "" if none has.

    Examples
    --------
    >>> interface_of("127.0.0.1"), interface_of("192.0.2.1")
    ('', '')
    """
    try:
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return ""  # no card
    except ValueError:  # a name
        return ""
    return next((name for name, found in own_addresses().items() if address in found), "")


def interface_addresses(interface: str) -> tuple[str, ...]:
    """Return the addresses that ranks can use on an interface.

    Parameters
    ----------
    interface : str
        Its name, such as ``eth0``.

    Returns
    -------
    tuple of str
        IPv4 first. Link-local IPv6 addresses only where there are no others: they need a scope,
        which differs from host to host.

    Raises
    ------
    ValueError
        There is none of that name here (names the nearest), or it is down or has no address.
    """
    found = own_addresses()
    if interface not in found:
        if interface in psutil.net_if_addrs():
            msg = f"the interface {interface} of this machine is down"
            raise ValueError(msg)
        near = difflib.get_close_matches(interface, found, n=1)
        known = ", ".join(sorted(found)) or "none"
        hint = f"did you mean {near[0]}?" if near else f"there are: {known}"
        msg = f"this machine has no interface {interface!r}; {hint}"
        raise ValueError(msg)
    far = [text for text in found[interface] if not ipaddress.ip_address(text).is_link_local]
    if not found[interface]:
        msg = f"the interface {interface} of this machine has no address"
        raise ValueError(msg)
    return tuple(far) or found[interface]
