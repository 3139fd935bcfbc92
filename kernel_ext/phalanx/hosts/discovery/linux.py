"""Parse a Linux host's interfaces, Thunderbolt cables and RDMA devices.

Pure functions of command output. The output may be cut or of another version: what cannot be
parsed becomes a note, never an exception.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

from .records import Interface, InterfaceKind, Outputs, Port, RdmaDevice, Survey, is_device_name

# /sys/class/net/*/type: ARPHRD_INFINIBAND and ARPHRD_LOOPBACK of linux/if_arp.h
_INFINIBAND, _LOOPBACK = "32", "772"


def read_linux(name: str, outputs: Outputs) -> Survey:
    """Make a survey of a Linux host; failed commands have no output."""
    notes: list[str] = []
    addresses = _read_ip(outputs.get("ip_addr", ""), notes)
    links = [
        line
        for line in _records(outputs.get("sys_net", ""))
        if is_device_name(line.get("name", ""))
    ]
    interfaces = tuple(
        Interface(
            link["name"],
            _kind(link),
            link.get("operstate") in {"up", "unknown"},
            addresses.get(link["name"], ()),
            max(0, _number(link.get("speed", ""))),
        )
        for link in links
    )
    ports = _read_thunderbolt(outputs.get("sys_thunderbolt", ""))
    rdma = _read_infiniband(outputs.get("sys_infiniband", ""))
    return Survey(name, "Linux", interfaces, ports, rdma, "sudo" in outputs, tuple(notes))


def _records(text: str) -> Iterator[dict[str, str]]:
    r"""Yield the ``key=value`` parts of each line, which tabs separate."""
    for line in text.splitlines():
        parts = (part.partition("=") for part in line.split("\t"))
        yield {key: value.strip() for key, equals, value in parts if equals}


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else 0


def _kind(link: dict[str, str]) -> InterfaceKind:
    if link.get("type") == _LOOPBACK:
        return "loopback"
    if link.get("type") == _INFINIBAND:
        return "infiniband"
    if link.get("driver", "").replace("_", "-") == "thunderbolt-net":
        return "thunderbolt"
    if link.get("bridge"):
        return "bridge"
    if link.get("wireless"):
        return "wifi"
    return "ethernet" if link.get("physical") else "virtual"


def _read_ip(text: str, notes: list[str]) -> dict[str, tuple[str, ...]]:
    """Return each interface's addresses, without link-local ones, which need a scope."""
    if not text.strip():
        notes.append("the command ip (of iproute2) is missing: its addresses are not known")
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, list):
        notes.append("what ip says of its addresses cannot be read")
        return {}
    found = {}
    for link in data:
        if isinstance(link, dict) and isinstance(link.get("ifname"), str):
            infos = link.get("addr_info")
            found[link["ifname"]] = tuple(
                address
                for info in (infos if isinstance(infos, list) else ())
                if (address := _address(info))
            )
    return found


def _address(info: Any) -> str:
    if not isinstance(info, dict) or info.get("scope") == "link":
        return ""
    try:
        return str(ipaddress.ip_interface(f"{info.get('local')}/{info.get('prefixlen')}"))
    except ValueError:
        return ""


def _read_thunderbolt(text: str) -> tuple[Port, ...]:
    """Return one cable end per network service of another host (an XDomain).

    ``0-0`` is this host in domain 0; its ``unique_id`` is the domain's. ``0-3`` is a device on one
    of its ports. ``0-3.1`` is a service of that device; the networking service has an interface.
    """
    devices = {line.get("name", ""): line for line in _records(text)}
    ports = []
    for name, line in sorted(devices.items()):
        interface = line.get("net", "")
        peer, dot, _ = name.partition(".")
        own = devices.get(f"{peer.partition('-')[0]}-0", {}).get("unique_id", "").upper()
        other = devices.get(peer, {}).get("unique_id", "").upper()
        if dot and own and is_device_name(interface):
            ports.append(Port(interface, own, (other,) if other else ()))
    return tuple(sorted(ports, key=lambda port: port.interface))


def _gigabits(text: str) -> int:
    """Convert '100 Gb/sec (4X EDR)' to Mbit/s."""
    found = re.match(r"(\d{1,5})(?:\.\d+)? Gb/s", text)
    return int(found[1]) * 1000 if found else 0


def _read_infiniband(text: str) -> tuple[RdmaDevice, ...]:
    found: dict[str, RdmaDevice] = {}
    for line in _records(text):
        name = line.get("name", "")
        is_active = line.get("state", "").endswith(": ACTIVE")
        # A device with several ports is represented by an active port.
        if is_device_name(name) and (
            name not in found or (is_active and not found[name].is_active)
        ):
            fabric = ""
            if line.get("link_layer") == "InfiniBand":
                fabric = ":".join(line.get("gid", "").split(":")[:4])
            speed = _gigabits(line.get("rate", ""))
            found[name] = RdmaDevice(name, line.get("net", ""), is_active, fabric, speed)
    return tuple(found.values())
