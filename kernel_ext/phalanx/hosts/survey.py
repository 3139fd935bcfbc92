"""Make the survey script for a shell; parse the output of Linux.

The script only reads. Random marks delimit each command's output, so that login messages cannot be
mistaken for it. The output may be cut or of another version: what cannot be parsed becomes a note,
never an exception.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .host import Interface, InterfaceKind, Outputs, Port, RdmaDevice, Survey, is_device_name
from .thunderbolt.macos import read_macos

# All commands, by the name that their output is stored under.
COMMANDS = (
    "uname", "sudo", "system_profiler", "networksetup", "ifconfig", "ibv_devices", "ip_addr",
    "sys_net", "sys_thunderbolt", "sys_infiniband",
)  # fmt: skip

_SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
LC_ALL=C; export LC_ALL PATH
MARK='@MARK@'
SYS='@SYS@'
ask() {
    name=$1; shift
    printf '\n%s begin %s\n' "$MARK" "$name"
    "$@" </dev/null 2>/dev/null
    printf '\n%s end %s %s\n' "$MARK" "$name" "$?"
}
line() { head -n 1 "$1" 2>/dev/null; }
sys_net() {
    for d in "$SYS"/class/net/*; do
        [ -e "$d/operstate" ] || continue
        printf 'name=%s\toperstate=%s\tspeed=%s\ttype=%s' "${d##*/}" "$(line "$d/operstate")" \
            "$(line "$d/speed")" "$(line "$d/type")"
        driver=$(readlink "$d/device/driver") && printf '\tdriver=%s' "${driver##*/}"
        [ -e "$d/device" ] && printf '\tphysical=1'
        [ -e "$d/bridge" ] && printf '\tbridge=1'
        { [ -e "$d/wireless" ] || [ -e "$d/phy80211" ]; } && printf '\twireless=1'
        printf '\n'
    done
}
sys_thunderbolt() {
    for d in "$SYS"/bus/thunderbolt/devices/*-*; do
        [ -e "$d" ] || continue
        printf 'name=%s\tunique_id=%s\tspeed=%s\tdevice_name=%s' "${d##*/}" \
            "$(line "$d/unique_id")" "$(line "$d/rx_speed")" "$(line "$d/device_name")"
        for n in "$d"/net/*; do [ -e "$n" ] && printf '\tnet=%s' "${n##*/}"; done
        printf '\n'
    done
}
sys_infiniband() {
    for p in "$SYS"/class/infiniband/*/ports/*; do
        [ -e "$p/state" ] || continue
        d=${p%/ports/*}
        printf 'name=%s\tport=%s\tstate=%s\trate=%s\tlink_layer=%s\tgid=%s' "${d##*/}" "${p##*/}" \
            "$(line "$p/state")" "$(line "$p/rate")" "$(line "$p/link_layer")" "$(line "$p/gids/0")"
        net=$(line "$p/gid_attrs/ndevs/0")
        for n in "$d"/device/net/*; do [ -n "$net" ] || { [ -e "$n" ] && net=${n##*/}; }; done
        printf '\tnet=%s\n' "$net"
    done
}
ask uname uname -s
@SUDO@
if [ "$(uname -s)" = Darwin ]; then
    ask system_profiler system_profiler SPThunderboltDataType -json
    ask networksetup networksetup -listallhardwareports
    ask ifconfig ifconfig -a
    ask ibv_devices ibv_devices
else
    ask ip_addr ip -j addr
    ask sys_net sys_net
    ask sys_thunderbolt sys_thunderbolt
    ask sys_infiniband sys_infiniband
fi
printf '%s all\n' "$MARK"
"""

# Only run on request: a host may log each use of sudo and mail it to the administrator.
_SUDO = """ask sudo sh -c '[ "$(id -u)" = 0 ] || sudo -n true'"""


def survey_script(mark: str, sys: str = "/sys", *, asks_sudo: bool = False) -> str:
    """Return the survey script for a POSIX shell's standard input.

    Parameters
    ----------
    mark : str
        Delimiter of each output; a random hexadecimal string.
    sys : str
        Directory of the system's devices.
    asks_sudo : bool
        Whether to test if commands can run as root.
    """
    sudo = _SUDO if asks_sudo else ""
    return _SCRIPT.replace("@SUDO@", sudo).replace("@MARK@", mark).replace("@SYS@", sys)


def read_outputs(text: str, mark: str) -> dict[str, str] | None:
    r"""Extract outputs of successful commands; None if the script was cut off.

    Examples
    --------
    >>> read_outputs("Welcome!\n\nM begin uname\nLinux\n\nM end uname 0\nM all\n", "M")
    {'uname': 'Linux\n'}
    """
    whole = re.escape(mark)
    if not re.search(rf"^{whole} all$", text, re.MULTILINE):
        return None
    pattern = rf"^{whole} begin (\w+)\n(.*?)\n?^{whole} end \1 (\d+)$"
    found = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    return {name: output for name, output, status in found if status == "0"}


def read_survey(name: str, outputs: Mapping[str, str]) -> Survey:
    """Make a survey from the outputs of a host's commands.

    Examples
    --------
    >>> read_survey("b", {"uname": "SunOS"}).notes
    ('its system is SunOS; Linux and macOS (Darwin) can be read',)
    """
    system = outputs.get("uname", "").strip()
    if not system:  # recordings made by hand may omit it
        system = "Darwin" if "system_profiler" in outputs else "Linux"
    if system == "Darwin":
        return read_macos(name, outputs)
    if system == "Linux":
        return read_linux(name, outputs)
    return Survey(
        name, system, notes=(f"its system is {system}; Linux and macOS (Darwin) can be read",)
    )


# /sys/class/net/*/type: ARPHRD_INFINIBAND and ARPHRD_LOOPBACK of linux/if_arp.h
_INFINIBAND, _LOOPBACK = "32", "772"


def read_linux(name: str, outputs: Outputs) -> Survey:
    """Make a survey from the command outputs of a Linux host.

    Parameters
    ----------
    name : str
        The host's name for ssh.
    outputs : mapping of str to str
        ``ip_addr`` (JSON of ``ip -j addr``), ``sys_net``, ``sys_thunderbolt``, ``sys_infiniband``
        and ``sudo``; outputs of failed commands are missing.
    """
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
            speed = _gigabits(devices[peer].get("speed", "")) if peer in devices else 0
            ports.append(Port(interface, own, (other,) if other else (), speed))
    return tuple(sorted(ports, key=lambda port: port.interface))


def _gigabits(text: str) -> int:
    """Convert '20.0 Gb/s' or '100 Gb/sec (4X EDR)' to Mbit/s."""
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
