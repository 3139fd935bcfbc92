"""Parse a Mac's Thunderbolt sockets, interfaces and RDMA devices.

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

_DEEPEST = 16  # hubs in a row; Thunderbolt allows 6

_MEDIA = re.compile(r"\((\d{1,6})(G?)base", re.IGNORECASE)


def read_macos(name: str, outputs: Outputs) -> Survey:
    """Make a survey of a Mac; failed commands have no output."""
    notes: list[str] = []
    hardware = read_hardware_ports(outputs.get("networksetup", ""))
    interfaces = _read_ifconfig(outputs.get("ifconfig", ""), hardware)
    ports = _read_thunderbolt(outputs.get("system_profiler", ""), hardware, notes)
    rdma = tuple(
        RdmaDevice(device, device.removeprefix("rdma_"))
        for device in _rdma_devices(outputs.get("ibv_devices", ""))
    )
    return Survey(name, "Darwin", interfaces, ports, rdma, "sudo" in outputs, tuple(notes))


def read_hardware_ports(text: str) -> dict[str, str]:
    r"""Parse ``networksetup -listallhardwareports``: the interface of each hardware port.

    Examples
    --------
    >>> read_hardware_ports("Hardware Port: Thunderbolt 1\nDevice: en2\n")
    {'Thunderbolt 1': 'en2'}
    """
    found = {}
    port = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "Hardware Port":
            port = value.strip()
        elif key == "Device" and port:
            if is_device_name(value.strip()):
                found[port] = value.strip()
            port = ""
    return found


def _read_thunderbolt(text: str, hardware: dict[str, str], notes: list[str]) -> tuple[Port, ...]:
    if not text.strip():
        notes.append("system_profiler has said nothing about Thunderbolt")
        return ()
    try:
        data = json.loads(text)
        buses = data["SPThunderboltDataType"]
    except (ValueError, KeyError, TypeError, RecursionError):
        notes.append("what system_profiler says about Thunderbolt cannot be read")
        return ()
    ports = []
    for bus in buses if isinstance(buses, list) else ():
        own = _text(bus, "domain_uuid_key").upper()  # Linux writes UUIDs in lower case
        if not own:
            continue
        socket = f"Thunderbolt {_text(_receptacle(bus), 'receptacle_id_key')}"
        interface = hardware.get(socket, "")
        peers = tuple(dict.fromkeys(peer for peer in _domains(bus) if peer != own))
        if interface:
            ports.append(Port(interface, own, peers))
        elif peers:
            notes.append(f"networksetup knows no interface '{socket}', though a cable is in it")
    return tuple(sorted(ports, key=lambda port: port.interface))


def _receptacle(bus: Any) -> Any:
    """Return the socket of a bus, preferably one with a cable."""
    names = sorted(key for key in bus if re.fullmatch(r"receptacle_\d+_tag", str(key)))
    tags = [bus[name] for name in names if isinstance(bus[name], dict)]
    taken = [tag for tag in tags if _text(tag, "receptacle_status_key") == "receptacle_connected"]
    return next(iter(taken or tags), {})


def _domains(device: Any, depth: int = 0) -> Iterator[str]:
    """Yield the domains behind a bus, including devices of hubs (``_items``)."""
    items = device.get("_items") if isinstance(device, dict) else None
    for item in items if isinstance(items, list) and depth < _DEEPEST else ():
        domain = _text(item, "domain_uuid_key").upper()
        if domain:
            yield domain
        yield from _domains(item, depth + 1)


def _text(record: Any, key: str) -> str:
    value = record.get(key) if isinstance(record, dict) else None
    return value if isinstance(value, str) else ""


def _rdma_devices(text: str) -> list[str]:
    """Parse ``ibv_devices``: the first word of each line below the dashes."""
    words = [line.split() for line in text.splitlines()]
    return [
        line[0]
        for line in words
        if line and line[0].startswith("rdma_") and is_device_name(line[0])
    ]


def _read_ifconfig(text: str, hardware: dict[str, str]) -> tuple[Interface, ...]:
    kinds = {device: _kind(port) for port, device in hardware.items()}
    found: list[Interface] = []
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        head, colon, rest = block.partition(":")
        if not colon or not is_device_name(head):
            continue
        flags = re.search(r"flags=\w+<([^>]*)>", rest)
        names = flags[1].split(",") if flags else []
        is_down = "UP" not in names or "status: inactive" in rest
        kind = "loopback" if "LOOPBACK" in names else kinds.get(head, "virtual")
        media = _MEDIA.search(rest)
        speed = int(media[1]) * (1000 if media[2] else 1) if media else 0
        found.append(Interface(head, kind, not is_down, tuple(_addresses(rest)), speed))
    return tuple(found)


def _kind(hardware_port: str) -> InterfaceKind:
    if hardware_port == "Wi-Fi":
        return "wifi"
    if "Bridge" in hardware_port:
        return "bridge"
    if hardware_port.startswith("Thunderbolt") and "Ethernet" not in hardware_port:
        return "thunderbolt"
    return "ethernet"


def _addresses(block: str) -> Iterator[str]:
    for line in block.splitlines():
        words = line.split()
        try:
            if words[:1] == ["inet"] and "netmask" in words:
                mask = int(words[words.index("netmask") + 1], 16)
                yield str(ipaddress.IPv4Interface((words[1], mask.bit_count())))
            elif words[:1] == ["inet6"] and "prefixlen" in words and "%" not in words[1]:
                length = words[words.index("prefixlen") + 1]
                yield str(ipaddress.IPv6Interface(f"{words[1]}/{length}"))
        except (ValueError, IndexError):
            continue
