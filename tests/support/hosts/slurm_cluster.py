"""A Slurm cluster in a bed of hosts: munge and the controller on host 0, each host a node.

It knows Slurm's daemons and their settings (design.md section 8), nothing of phalanx.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from support.hosts.bed import Bed
from support.waiting import wait_until

_DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "sinfo")
_UP_S = 60.0  # all its daemons, on a busy machine
_CONFIG = """
ClusterName=bed
SlurmctldHost={name}({address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str:
    """Why there is no Slurm here; empty if there is."""
    missing = [name for name in _DAEMONS if shutil.which(name, path=_path()) is None]
    return f"Slurm needs {', '.join(missing)} (apt: slurm-wlm, munge)" if missing else ""


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


class SlurmCluster:
    """All hosts of a bed as nodes with four processors each; it ends with its bed."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.folder = bed.folder / "slurm"
        self.folder.mkdir()
        for name in ("state", *(f"spool-{host.name}" for host in bed.hosts)):
            (self.folder / name).mkdir()
        config = self.folder / "slurm.conf"
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(config)}
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=4" for host in bed.hosts]
        words = {"name": bed.hosts[0].name, "address": bed.hosts[0].address, "folder": self.folder}
        config.write_text(_CONFIG.format(**words) + "\n".join(nodes) + "\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._start_munge()
        self._daemon(0, "slurmctld", "-D")
        for index, host in enumerate(bed.hosts):
            self._daemon(index, "slurmd", "-D", "-N", host.name)
        self._wait_idle()

    def _start_munge(self) -> None:
        socket = self.folder / "munge.socket"
        files = [
            word
            for kind in ("key", "socket", "pid", "log", "seed")
            for word in (
                f"--{kind}{'' if kind == 'socket' else '-file'}",
                f"{self.folder}/munge.{kind}",
            )
        ]
        self._daemon(0, "munged", "--foreground", "--force", *files)
        self._wait(socket.exists)

    def _wait_idle(self) -> None:
        n_nodes = len(self._bed.hosts)
        self._wait(lambda: self.run("sinfo", "-hNo", "%T").stdout.split() == ["idle"] * n_nodes)

    def _daemon(self, host: int, *command: Any) -> None:
        """Start a program that stays, on a host."""
        with (self.folder / f"{command[0]}-{host}.log").open("wb") as log:
            daemon = self._bed.popen(host, command, env=self.env, stdout=log, stderr=log)
        self._bed.servers.add(daemon)

    def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait until something is there; fails with what the daemons have said."""
        try:
            wait_until(is_there, "the daemons of a scheduler", _UP_S, 0.05)
        except AssertionError as error:
            said = [path.read_text()[-2000:] for path in self.folder.glob("*.log")]
            raise AssertionError("\n".join([str(error), *said])) from error

    def run(self, *command: Any, host: int = 0, **options: Any) -> Any:
        """Run a program that knows this cluster, on a host."""
        return self._bed.run(host, command, env=self.env, check=False, **options)
