"""Define the records of a host's survey."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

InterfaceKind = Literal[
    "ethernet", "wifi", "thunderbolt", "infiniband", "bridge", "virtual", "loopback"
]

# Names of interfaces and devices are used in shell commands and file names, so only these
# characters are accepted (IFNAMSIZ is 16; names of RDMA devices have up to 64).
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", re.ASCII)

Outputs = Mapping[str, str]  # output of each command, by the command's short name


@dataclass(frozen=True)
class Interface:
    """One network interface; addresses have a prefix length, ``10.0.0.1/24``.

    ``speed_mbps`` is 0 if the system does not report it.
    """

    name: str
    kind: InterfaceKind
    is_up: bool
    addresses: tuple[str, ...] = ()
    speed_mbps: int = 0


@dataclass(frozen=True)
class Port:
    """One Thunderbolt socket: interface, own domain and the peers' domains.

    Through a hub there are several peers.
    """

    interface: str
    domain: str
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device; ``fabric`` is the InfiniBand subnet prefix, or empty.

    Hosts of one fabric have the same prefix. For RoCE and Thunderbolt the interface identifies the
    network instead.
    """

    name: str
    interface: str = ""
    is_active: bool = True
    fabric: str = ""
    speed_mbps: int = 0


@dataclass(frozen=True)
class Survey:
    """Survey of one host; ``notes`` tell what could not be read.

    ``has_sudo``: commands can run as root without a password. False if that was not checked.
    """

    name: str
    system: str
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    has_sudo: bool = False
    notes: tuple[str, ...] = ()


def is_device_name(text: str) -> bool:
    """Whether the text is a valid name of an interface or device."""
    return _DEVICE_NAME.fullmatch(text) is not None
