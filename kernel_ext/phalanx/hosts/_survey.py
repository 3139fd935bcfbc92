"""What is known of one host: its interfaces, its ends of Thunderbolt cables, its RDMA devices.

Records only, and how to read a survey from what commands have put out on the host; who runs them,
and what is planned with it, is other files' business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Interface",
    "InterfaceKind",
    "Outputs",
    "Port",
    "RdmaDevice",
    "Survey",
    "is_device_name",
]

InterfaceKind = Literal[
    "ethernet", "wifi", "thunderbolt", "infiniband", "bridge", "virtual", "loopback"
]


@dataclass(frozen=True)
class Interface:
    """One network interface; ``addresses`` with the length of their network, ``10.0.0.1/24``.

    ``speed_mbps`` is 0 where the system does not know it.
    """

    name: str
    kind: InterfaceKind
    is_up: bool
    addresses: tuple[str, ...] = ()
    speed_mbps: int = 0


@dataclass(frozen=True)
class Port:
    """One Thunderbolt socket: its interface, its domain, and the domains seen at the other end.

    There are several peers where a hub is between.
    """

    interface: str
    domain: str
    peers: tuple[str, ...] = ()
    speed_mbps: int = 0


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device; ``fabric`` is what all hosts of its network have in common, or empty.

    That is an InfiniBand subnet's prefix. For RoCE and Thunderbolt the interface tells.
    """

    name: str
    interface: str = ""
    is_active: bool = True
    fabric: str = ""
    speed_mbps: int = 0


@dataclass(frozen=True)
class Survey:
    """What one host has; ``notes`` are lines about what could not be read there.

    ``has_sudo``: commands can be run as root there without a password, as far as that was asked.
    """

    name: str
    system: str
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    has_sudo: bool = False
    notes: tuple[str, ...] = ()


# Interfaces and devices come to stand in commands for a shell and in file names: of no more than
# these characters are they ever made (IFNAMSIZ is 16; RDMA devices have up to 64).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", re.ASCII)


def is_device_name(text: str) -> bool:
    """Tell whether an interface or device can be called so."""
    return _NAME.fullmatch(text) is not None


Outputs = Mapping[str, str]  # a command's short name, and what it has put out
