"""Survey hosts, and keep surveys in a file.

A survey only reads; `probe_main` makes it on the host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from phalanx.errors import naming

from ..probe.talk import HostProbes

InterfaceKind = Literal[
    "ethernet", "wifi", "thunderbolt", "infiniband", "bridge", "virtual", "loopback"
]

# Names of interfaces and devices are used in shell commands, so only these characters are accepted
# (IFNAMSIZ is 16; names of RDMA devices have up to 64).
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", re.ASCII)
_FILE = "surveys.json"


class Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network interface; addresses have a prefix length, ``10.0.0.1/24``.

    ``speed_mbps`` is 0 if the system does not report it.
    """

    name: str
    kind: InterfaceKind
    is_up: bool
    addresses: tuple[str, ...] = ()
    speed_mbps: int = 0


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Thunderbolt socket: interface, own domain and the peers' domains.

    Through a hub there are several peers.
    """

    interface: str
    domain: str
    peers: tuple[str, ...] = ()


class RdmaDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One RDMA device; ``fabric`` is the InfiniBand subnet prefix, or empty.

    Hosts of one fabric have the same prefix. For RoCE and Thunderbolt the interface identifies the
    network instead.
    """

    name: str
    interface: str = ""
    is_active: bool = True
    fabric: str = ""
    speed_mbps: int = 0


class Survey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def read_survey(name: str, answer: Any) -> Survey:
    """Check a host's answer; leave out malformed names and addresses.

    Raises
    ------
    ValueError
        The answer is not a survey.

    Examples
    --------
    >>> lo = {"name": "lo", "kind": "loopback", "is_up": True, "addresses": ["?", "127.0.0.1/8"]}
    >>> read_survey("b", {"system": "Linux", "interfaces": [lo]}).interfaces[0].addresses
    ('127.0.0.1/8',)
    """
    fields = answer if isinstance(answer, dict) else {}
    its = msgspec.convert({**fields, "name": name}, Survey)
    replace = msgspec.structs.replace
    return replace(
        its,
        interfaces=tuple(
            replace(interface, addresses=tuple(filter(_is_address, interface.addresses)))
            for interface in its.interfaces
            if _is_device_name(interface.name)
        ),
        ports=tuple(port for port in its.ports if _is_device_name(port.interface)),
        rdma=tuple(device for device in its.rdma if _is_device_name(device.name)),
        notes=tuple(" ".join(note.split()) for note in its.notes),
    )


def _is_device_name(text: str) -> bool:
    return _DEVICE_NAME.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return "%" not in text


def gather(
    probes: HostProbes, *, timeout_s: float = 20.0, asks_sudo: bool = False
) -> tuple[dict[int, Survey], dict[int, str]]:
    """Survey all hosts in parallel; return surveys and failures by host index.

    ``asks_sudo``: test if commands can run as root, for `CableSetup`.
    """
    surveys, failures = {}, {}
    question = "survey", {"asks_sudo": asks_sudo}
    answers = probes.ask(dict.fromkeys(range(len(probes.plans)), question), timeout_s)
    for place, answer in answers.items():
        try:
            if not answer.failure:
                surveys[place] = read_survey(probes.plans[place].name, answer.value)
            else:
                failures[place] = answer.failure
        except ValueError as error:
            failures[place] = f"its answer cannot be read: {error}"
    return surveys, failures


def save_surveys(folder: Path, surveys: Sequence[Survey]) -> Path:
    """Write the surveys of hosts, in order; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    with naming(path):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(surveys), indent=1) + b"\n")
    return path


def load_surveys(folder: Path, names: Sequence[str] = ()) -> list[Survey]:
    """Read the surveys of the hosts ``names``; by default all, in order.

    Raises
    ------
    ValueError
        The file is missing or invalid, or has no survey of one of the hosts.
    """
    path = folder / _FILE
    if not path.is_file():
        msg = f"there is no {path}; --save {folder} makes it"
        raise ValueError(msg)
    try:
        answers = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        surveys = [read_survey(answer.get("name", ""), answer) for answer in answers]
    except ValueError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from None
    known = {survey.name: survey for survey in surveys}
    if missing := [name for name in names if name not in known]:
        msg = f"nothing is recorded of {', '.join(missing)} in {path}"
        raise ValueError(msg)
    if not surveys:
        msg = f"{path} has no hosts"
        raise ValueError(msg)
    return [known[name] for name in names] or surveys
