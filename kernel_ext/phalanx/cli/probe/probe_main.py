"""Answer the questions of `phalanx doctor` and `phalanx config` on a host.

The source of this module is sent over ssh and run by any Python of the host (3.7 or later). It
imports only the standard library, because phalanx may be missing there. It reads lines of JSON and
answers each with one line, until the input ends. It changes nothing on the host, except by the
scripts of ``phalanx config --auto-setup``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import mmap
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MARK = "phalanx-probe: "
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915  # sys/sockio.h, linux/sockios.h
_LISTENING: list[socket.socket] = []  # held until the process ends
_COMMAND_S = 60.0  # judgement: system_profiler of a Mac with many hubs takes some seconds
# /sys/class/net/*/type: ARPHRD_INFINIBAND and ARPHRD_LOOPBACK of linux/if_arp.h
_LINUX_TYPES = {"32": "infiniband", "772": "loopback"}
_MEDIA = re.compile(r"\((\d{1,6})(G?)base", re.IGNORECASE)
_DEEPEST = 16  # hubs in a row; Thunderbolt allows 6


def _version(package: str) -> str:
    try:
        from importlib import metadata

        return str(metadata.version(package))
    except ImportError:  # the package is missing, or Python is too old
        return ""


def _resolved(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(answer[4][0]) for answer in found})


def _at_once(work: Callable[[Any], Any], items: dict[str, Any]) -> dict[str, Any]:
    """Call ``work`` on each item in a separate thread; return the results."""
    answers: dict[str, Any] = {}

    def do(name: str) -> None:
        answers[name] = work(items[name])

    threads = [threading.Thread(target=do, args=(name,)) for name in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _interface(name: str) -> list[str]:
    """Return the addresses of an interface; empty without one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            number, _, _, scope, _, owner = line.split()
            if owner == name and scope != "20":  # skip link-local addresses: they need a scope
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    return found


def _memory() -> tuple[int | None, str]:
    """Return the shareable bytes, and an error if sharing fails."""
    free = None
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    # A container may have less memory than its machine.
    with contextlib.suppress(OSError, ValueError):
        most, used = (Path(f"/sys/fs/cgroup/memory.{word}") for word in ("max", "current"))
        free = min(free or 1 << 62, int(most.read_text()) - int(used.read_text()))
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("phalanx-doctor")
            try:
                os.ftruncate(fd, mmap.PAGESIZE)
                mmap.mmap(fd, mmap.PAGESIZE).close()
            finally:
                os.close(fd)
    except OSError as error:
        return free, f"memfd_create: {error.strerror}"
    return free, ""


def _mpirun() -> str:
    path = shutil.which("mpirun")
    path = path or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if path is None:
        return ""
    lines = [line.strip() for line in _output(path, "--version").splitlines()]
    lines = [line for line in lines if line and not line.startswith("HYDRA")] or [""]
    return lines[0].replace("mpirun (Open MPI)", "Open MPI").replace("Version:", "MPICH ")


def _rdma() -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in Path("/sys/class/infiniband").iterdir())
    return []


def _nccl() -> bool:
    return bool(importlib.util.find_spec("nvidia")) and bool(
        importlib.util.find_spec("nvidia.nccl")
    )


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        return f"! {error.strerror}"


def facts(asked: dict[str, Any]) -> dict[str, Any]:
    """Return facts about this host.

    ``asked`` has names to resolve, a folder, a script and an interface.
    """
    free, no_memory = _memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return {
        "hostname": socket.gethostname(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "executable": sys.executable,
        "phalanx": _version("phalanx"),
        "numpy": _version("numpy"),
        "mpi4py": _version("mpi4py"),
        "mpirun": _mpirun(),
        "rdma": _rdma(),
        "nccl": _nccl(),
        "has_ssh": shutil.which("ssh") is not None,
        "cores": cores,
        "files_soft": None if soft == infinite else soft,
        "files_hard": None if hard == infinite else hard,
        "memory_nbytes": free,
        "no_memory": no_memory,
        "has_folder": Path(asked["folder"]).is_dir() if asked["folder"] else True,
        "script": _digest(asked["script"]) if asked["script"] else "",
        "no_loopback": _loopback(),
        "names": _at_once(_resolved, {name: name for name in asked["names"]}),
        "came_by": os.environ.get("SSH_CONNECTION", "").split(),
        "interface": _interface(asked["interface"]) if asked["interface"] else [],
    }


def listen(addresses: Sequence[str]) -> dict[str, Any]:
    """Listen on each address; return its port or an error text.

    The system chooses the ports.
    """
    found: dict[str, Any] = {}
    for address in addresses:
        try:
            answers = socket.getaddrinfo(
                address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            sock = socket.socket(answers[0][0])
            _LISTENING.append(sock)
            sock.bind(answers[0][4])
            sock.listen(128)
            found[address] = sock.getsockname()[1]
        except OSError as error:
            found[address] = str(error.strerror or error)
    return found


def _reach(endpoints: list[Any]) -> str:
    """Connect to addresses in turn; return "" on success, else an error."""
    why = "it has no address to be reached at"
    for address, port in endpoints:
        try:
            socket.create_connection((address, port), 3.0).close()
            return ""
        except OSError as error:
            why = f"{address} port {port}: {error.strerror or 'timed out'}"
    return why


def _loopback() -> str:
    """Connect to ourselves at 127.0.0.1; return "" or an error."""
    port = listen(["127.0.0.1"])["127.0.0.1"]
    return f"127.0.0.1: {port}" if isinstance(port, str) else _reach([["127.0.0.1", port]])


def _log_in(words: list[str]) -> str:
    """Try ssh without a prompt; return "" or its last error line."""
    ssh = ["ssh", "-oBatchMode=yes", "-oConnectTimeout=5", "-oLogLevel=ERROR", *words]
    try:
        said = subprocess.run(
            [*ssh, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    lines = said.stderr.decode(errors="replace").strip().splitlines()
    return "" if said.returncode == 0 else (lines or ["it failed"])[-1]


# -- the survey of `phalanx config`: what it returns are the fields of `Survey` -----------------------


def survey(asked: dict[str, Any]) -> dict[str, Any]:
    """Return this host's interfaces, Thunderbolt cables and RDMA devices.

    What cannot be read becomes a note. ``asks_sudo``: test if commands can run as root; a host may
    log each use of sudo and mail it to the administrator.
    """
    notes: list[str] = []
    system = platform.system()
    found: dict[str, Any] = {}
    if system == "Linux":
        found = survey_linux(Path("/sys"), _output("ip", "-j", "addr"), notes)
    elif system == "Darwin":
        outputs = {
            "system_profiler": _output("system_profiler", "SPThunderboltDataType", "-json"),
            "networksetup": _output("networksetup", "-listallhardwareports"),
            "ifconfig": _output("ifconfig", "-a"),
            "ibv_devices": _output("ibv_devices"),
        }
        found = survey_macos(outputs, notes)
    else:
        notes.append(f"its system is {system}; Linux and macOS (Darwin) can be read")
    return {"system": system, **found, "has_sudo": asked["asks_sudo"] and _sudo(), "notes": notes}


def _environ() -> dict[str, str]:
    path = os.environ.get("PATH", "")
    return {**os.environ, "LC_ALL": "C", "PATH": f"{path}:/usr/sbin:/sbin:/usr/bin:/bin"}


def _output(*words: str) -> str:
    """Return a command's output; empty if it fails or is missing."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=_environ(), timeout=_COMMAND_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _sudo() -> bool:
    return os.geteuid() == 0 or run("sudo -n true")[0] == 0


def run(script: str) -> tuple[int, str]:
    """Run a shell script; return its exit status and output."""
    done = subprocess.run(
        ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=_environ(), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


def survey_linux(sys_dir: Path, ip_addr: str, notes: list[str]) -> dict[str, Any]:
    """Survey a Linux host by its /sys and the output of ``ip -j addr``."""
    addresses = _ip_addresses(ip_addr, notes)
    interfaces = [
        {
            "name": folder.name,
            "kind": _linux_kind(folder),
            "is_up": _line(folder / "operstate") in {"up", "unknown"},
            "addresses": addresses.get(folder.name, []),
            "speed_mbps": max(0, _number(_line(folder / "speed"))),
        }
        for folder in sorted((sys_dir / "class/net").glob("*"))
        if (folder / "operstate").exists()
    ]
    ports = _linux_thunderbolt(sys_dir / "bus/thunderbolt/devices")
    return {"interfaces": interfaces, "ports": ports, "rdma": _infiniband(sys_dir)}


def _line(path: Path) -> str:
    """Return a file's first line; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else 0


def _linux_kind(folder: Path) -> str:
    kind = _LINUX_TYPES.get(_line(folder / "type"))
    if kind is not None:
        return kind
    with contextlib.suppress(OSError):
        driver = os.readlink(str(folder / "device/driver"))  # noqa: PTH115 - not in Python 3.8
        if Path(driver).name.replace("_", "-") == "thunderbolt-net":
            return "thunderbolt"
    if (folder / "bridge").exists():
        return "bridge"
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wifi"
    return "ethernet" if (folder / "device").exists() else "virtual"


def _ip_addresses(text: str, notes: list[str]) -> dict[str, list[str]]:
    """Return each interface's addresses, without link-local ones, which need a scope."""
    if not text.strip():
        notes.append("the command ip (of iproute2) is missing: its addresses are not known")
        return {}
    try:
        return {
            link["ifname"]: [
                f"{info['local']}/{info['prefixlen']}"
                for info in link.get("addr_info", [])
                if info.get("scope") != "link" and "local" in info
            ]
            for link in json.loads(text)
            if link
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        notes.append("what ip says of its addresses cannot be read")
        return {}


def _linux_thunderbolt(devices: Path) -> list[dict[str, Any]]:
    """Return one cable end per network service of another host (an XDomain).

    ``0-0`` is this host in domain 0; its ``unique_id`` is the domain's. ``0-3`` is a device on one
    of its ports. ``0-3.1`` is a service of that device; the networking service has an interface.
    """
    domains = {path.name: _line(path / "unique_id").upper() for path in devices.glob("*-*")}
    ports = []
    for name in sorted(domains):
        peer, dot, _ = name.partition(".")
        own, other = domains.get(f"{peer.partition('-')[0]}-0", ""), domains.get(peer, "")
        for net in (devices / name / "net").glob("*"):
            if dot and own:
                peers = [other] if other else []
                ports.append({"interface": net.name, "domain": own, "peers": peers})
    return sorted(ports, key=lambda port: str(port["interface"]))


def _infiniband(sys_dir: Path) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for port in sorted((sys_dir / "class/infiniband").glob("*/ports/*")):
        device = port.parent.parent
        is_active = _line(port / "state").endswith(": ACTIVE")
        # A device with several ports is represented by an active port.
        if device.name in found and (not is_active or found[device.name]["is_active"]):
            continue
        is_fabric = _line(port / "link_layer") == "InfiniBand"
        nets = sorted(path.name for path in (device / "device/net").glob("*"))
        rate = re.match(r"(\d{1,5})(?:\.\d+)? Gb/s", _line(port / "rate"))  # 100 Gb/sec (4X EDR)
        found[device.name] = {
            "name": device.name,
            "interface": _line(port / "gid_attrs/ndevs/0") or (nets or [""])[0],
            "is_active": is_active,
            "fabric": ":".join(_line(port / "gids/0").split(":")[:4]) if is_fabric else "",
            "speed_mbps": int(rate.group(1)) * 1000 if rate else 0,
        }
    return list(found.values())


def survey_macos(outputs: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """Survey a Mac by the outputs of its commands."""
    ports = r"^Hardware Port: *(.*\S) *\n *Device: *(\S+)"
    hardware = dict(re.findall(ports, outputs["networksetup"], re.MULTILINE))
    devices = re.findall(r"^\s*(rdma_(\S+))", outputs["ibv_devices"], re.MULTILINE)
    return {
        "interfaces": _ifconfig(outputs["ifconfig"], hardware),
        "ports": _mac_thunderbolt(outputs["system_profiler"], hardware, notes),
        "rdma": [{"name": name, "interface": interface} for name, interface in devices],
    }


def _mac_thunderbolt(text: str, hardware: dict[str, str], notes: list[str]) -> list[dict[str, Any]]:
    if not text.strip():
        notes.append("system_profiler has said nothing about Thunderbolt")
        return []
    ports = []
    try:
        for bus in json.loads(text)["SPThunderboltDataType"]:
            own = bus.get("domain_uuid_key", "").upper()  # Linux writes UUIDs in lower case
            if not own:
                continue
            socket_name = f"Thunderbolt {_receptacle(bus).get('receptacle_id_key', '')}"
            interface = hardware.get(socket_name, "")
            peers = [peer for peer in dict.fromkeys(_domains(bus)) if peer != own]
            if interface:
                ports.append({"interface": interface, "domain": own, "peers": peers})
            elif peers:
                text = f"networksetup knows no interface '{socket_name}', though a cable is in it"
                notes.append(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        notes.append("what system_profiler says about Thunderbolt cannot be read")
    return sorted(ports, key=lambda port: str(port["interface"]))


def _receptacle(bus: dict[str, Any]) -> dict[str, Any]:
    """Return the socket of a bus, preferably one with a cable."""
    names = sorted(key for key in bus if re.fullmatch(r"receptacle_\d+_tag", key))
    tags: list[dict[str, Any]] = [bus[name] for name in names]
    key = "receptacle_status_key"
    return next((tag for tag in tags if tag.get(key) == "receptacle_connected"), (tags or [{}])[0])


def _domains(device: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield the domains behind a bus, including devices of hubs (``_items``)."""
    for item in device.get("_items", []) if depth < _DEEPEST else ():
        if "domain_uuid_key" in item:
            yield item["domain_uuid_key"].upper()
        yield from _domains(item, depth + 1)


def _ifconfig(text: str, hardware: dict[str, str]) -> list[dict[str, Any]]:
    kinds = {device: _mac_kind(port) for port, device in hardware.items()}
    found = []
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name, _, rest = block.partition(":")
        flags = re.search(r"flags=\w+<([^>]*)>", rest)
        if flags is None:
            continue
        names = flags.group(1).split(",")
        media = _MEDIA.search(rest)
        found.append(
            {
                "name": name,
                "kind": "loopback" if "LOOPBACK" in names else kinds.get(name, "virtual"),
                "is_up": "UP" in names and "status: inactive" not in rest,
                "addresses": list(_ifconfig_addresses(rest)),
                "speed_mbps": int(media.group(1)) * (1000 if media.group(2) else 1) if media else 0,
            }
        )
    return found


def _mac_kind(hardware_port: str) -> str:
    if hardware_port == "Wi-Fi":
        return "wifi"
    if "Bridge" in hardware_port:
        return "bridge"
    if hardware_port.startswith("Thunderbolt") and "Ethernet" not in hardware_port:
        return "thunderbolt"
    return "ethernet"


def _ifconfig_addresses(block: str) -> Iterator[str]:
    for address, mask in re.findall(r"\tinet ([\d.]+) netmask (0x[0-9a-f]{1,8})\b", block):
        yield f"{address}/{bin(int(mask, 16)).count('1')}"  # noqa: FURB161 - not in Python 3.9
    for address, length in re.findall(r"\tinet6 ([0-9a-f:.]+) prefixlen (\d+)", block):
        yield f"{address}/{length}"  # those with a scope (%en0) are link-local


def main() -> None:
    """Answer requests until the input ends."""
    answers: dict[str, Callable[[Any], Any]] = {
        "facts": facts,
        "time": lambda _: time.time(),
        "listen": listen,
        "reach": lambda targets: _at_once(_reach, targets),
        "log_in": lambda targets: _at_once(_log_in, targets),
        "survey": survey,
        "run": run,
    }
    for line in sys.stdin:
        word, asked = json.loads(line)
        sys.stdout.write(MARK + json.dumps(answers[word](asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
