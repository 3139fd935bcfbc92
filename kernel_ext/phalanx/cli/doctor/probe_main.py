"""Answer the questions of `phalanx doctor` on a host.

The source of this module is sent over ssh and run by any Python of the host. It imports only the
standard library, because phalanx may be missing there. It reads lines of JSON and answers each with
one line, until the input ends. It changes nothing on the host.
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
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARK = "phalanx-probe: "
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915  # sys/sockio.h, linux/sockios.h
_LISTENING: list[socket.socket] = []  # held until the process ends


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
    try:
        said = subprocess.run(
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.strip() for line in said.stdout.decode(errors="replace").splitlines()]
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


def main() -> None:
    """Answer requests until the input ends."""
    answers: dict[str, Callable[[Any], Any]] = {
        "facts": facts,
        "time": lambda _: time.time(),
        "listen": listen,
        "reach": lambda targets: _at_once(_reach, targets),
        "log_in": lambda targets: _at_once(_log_in, targets),
    }
    for line in sys.stdin:
        word, asked = json.loads(line)
        sys.stdout.write(MARK + json.dumps(answers[word](asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
