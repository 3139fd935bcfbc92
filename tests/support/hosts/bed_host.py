"""What a bed of hosts is made of: the namespaces of one, programs in them, its files' texts.

It knows Linux and OpenSSH; `bed` puts hosts together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

PREFIX = "phalanx-bed-"  # of folders, with the pid of their maker
VARIABLE = "PHALANX_TEST_BED"  # what runs in a bed inherits it, also over ssh
IS_ROOT = os.geteuid() == 0
# An ordinary user has the rights to make hosts in a user namespace of his own.
NAMESPACES = ("net", "uts", "mnt") if IS_ROOT else ("user", "net", "uts", "mnt")
_USER = [] if IS_ROOT else ["-U", "--map-current-user", "--keep-caps"]
_TOOLS = ("ip", "ssh", "ssh-keygen", "unshare", "mount", "hostname", "/usr/sbin/sshd")
_PR_SET_PDEATHSIG, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 1, 47, 2  # linux/prctl.h
_CAPABILITY_V3, _LAST_CAPABILITY = 0x20080522, 40  # linux/capability.h

# In new namespaces: a private /run, so that servers do not meet there, a /sys that shows this
# network, a hosts file, our client settings in place of the machine's and the user's.
SET_UP = """
set -e
hostname {name}
mount -t tmpfs run /run; mkdir -p -m 755 /run/sshd; mkdir -p -m 700 /run/user/{uid}
mkdir {folder}/cgroup; mount --rbind /sys/fs/cgroup {folder}/cgroup  # else hidden
mount -t sysfs sysfs /sys; mount --move {folder}/cgroup /sys/fs/cgroup
mount --bind {folder}/hosts /etc/hosts
: > {folder}/empty; mount --bind {folder}/empty /etc/resolv.conf
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
if [ -d ~/.ssh ]; then mount -t tmpfs ssh ~/.ssh; fi
for file in ~/.bashrc ~/.bash_profile ~/.profile; do
    if [ -f $file ]; then mount --bind {folder}/empty $file; fi
done
ip link set lo up
echo made; read _
ip addr add {address}/24 dev eth0; ip link set eth0 up
ip addr add {address6}/64 dev eth0 nodad
echo up; read _ || true
"""

SSHD_CONFIG = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100
UseDNS no
PrintMotd no
Subsystem sftp internal-sftp
SetEnv {variable}={mark}
"""

SSH_CONFIG = """
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
"""


def why_not() -> str:
    """Why this machine has no test bed; empty if it has."""
    if sys.platform != "linux":
        return "a bed of hosts needs Linux's network namespaces"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"a bed of hosts needs {', '.join(missing)} (apt: openssh-server, iproute2)"
    command = ["unshare", *_USER, "-num", "--propagation", "private", "mount", "-t"]
    tried = subprocess.run(
        [*command, "sysfs", "sysfs", "/sys"], capture_output=True, text=True, check=False
    )
    return f"this machine allows no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class BedHost:
    """One host: its name, address, namespaces and sshd."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.address1 = f"10.77.1.{number}"  # of a second card, where there is one
        self.address6 = f"fd77::{number}"
        self.folder = folder
        self.fds: dict[str, int] = {}
        self.sshd: subprocess.Popen[bytes] | None = None

    @property
    def network(self) -> int:
        """What tells its network from all others."""
        return os.fstat(self.fds["net"]).st_ino

    def enter(self) -> None:
        """Move this process there: for a child between fork and exec."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        folder = Path.cwd()
        for kind in NAMESPACES:
            if libc.setns(self.fds[kind], 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {kind}")
        os.chdir(folder)
        if not IS_ROOT:
            _keep_rights(libc)

    def enter_user(self) -> None:
        """Move this process into its user namespace only, as `enter`: to make more hosts there."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not IS_ROOT:
            if libc.setns(self.fds["user"], 0) != 0:
                raise OSError(ctypes.get_errno(), "setns user")
            _keep_rights(libc)


def _keep_rights(libc: ctypes.CDLL) -> None:
    """Let what is executed next have the rights of this process, which an ordinary user's has not."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[2], sets[5] = sets[1], sets[4]  # inheritable: what is permitted
    libc.capset(header, sets)
    for number in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0)


def remove_leftovers() -> None:
    """Remove what beds of dead processes have left: programs that were started over ssh, folders."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mark = process.environ().get(VARIABLE, "")
            if mark and not psutil.pid_exists(int(mark.partition("-")[0])):
                process.kill()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdigit() and not psutil.pid_exists(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)


def name_of(index: int) -> str:
    return chr(ord("a") + index)


def key_maker(path: Path) -> list[str]:
    return ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]


def known(host: BedHost) -> str:
    names = f"{host.name},{host.name}6,{host.address},{host.address6}"
    return f"{names} {(host.folder / 'host_key.pub').read_text()}"


def unshared(script: str, inside: BedHost | None = None) -> subprocess.Popen[bytes]:
    """Start a shell in new namespaces; those of hosts belong to the user namespace of the switch."""
    user = _USER if inside is None else []
    return subprocess.Popen(
        ["unshare", *user, "-num", "--propagation", "private", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=None if inside is None else inside.enter_user,  # noqa: PLW1509
    )


def start(
    host: BedHost, mark: str, command: Sequence[Any], **options: Any
) -> subprocess.Popen[Any]:
    options["env"] = {**(options.get("env") or os.environ), VARIABLE: mark}
    return subprocess.Popen([str(word) for word in command], preexec_fn=host.enter, **options)  # noqa: PLW1509


def tcp_table(host: BedHost) -> str:
    """/proc/net/tcp as that host has it."""
    assert host.sshd is not None
    with contextlib.suppress(OSError):
        return Path(f"/proc/{host.sshd.pid}/net/tcp").read_text()
    return ""


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def say(process: psutil.Process) -> str:
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"process {process.pid}"
