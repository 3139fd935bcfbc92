"""A Grid Engine cluster in a bed of hosts: the master on host 0, each host executes jobs.

It knows Grid Engine's daemons and their settings, nothing of phalanx. Its programs are Debian's, as
`tests/run` unpacks them (an installation would start daemons of this machine's own).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.hosts.bed import Bed
from support.hosts.cluster import Cluster

_ROOT = Path(os.environ.get("PHALANX_TEST_GRID_ENGINE") or Path(sys.prefix, "gridengine"))
_SHOWN = [
    "mount",
    "-t",
    "overlay",
    "overlay",
    "-o",
    f"lowerdir={_ROOT}/usr/lib:/usr/lib",
    "/usr/lib",
]
_BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {cell}/common;{folder}/qmaster
binary_path {folder}/bin
qmaster_spool_dir {folder}/qmaster
security_mode none
listener_threads 1
worker_threads 1
scheduler_threads 1
jvm_threads 0
"""
_QUEUE = """\
qname all.q
hostlist @allhosts
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH INTERACTIVE
ckpt_list NONE
pe_list mpi
rerun FALSE
slots 4
tmpdir /tmp
shell /bin/sh
prolog NONE
epilog NONE
shell_start_mode posix_compliant
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:60
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
s_rt INFINITY
h_rt INFINITY
s_cpu INFINITY
h_cpu INFINITY
s_fsize INFINITY
h_fsize INFINITY
s_data INFINITY
h_data INFINITY
s_stack INFINITY
h_stack INFINITY
s_core INFINITY
h_core INFINITY
s_rss INFINITY
h_rss INFINITY
s_vmem INFINITY
h_vmem INFINITY
"""


def why_no_grid_engine() -> str:
    """Why there is no Grid Engine here; empty if there is."""
    if platform.machine() != "x86_64":
        return "Grid Engine is started on x86_64 only"
    if not (_ROOT / "usr/lib/gridengine/sge_qmaster").exists():
        return f"Grid Engine is not unpacked in {_ROOT} (tests/run does it)"
    if os.geteuid():
        return "Grid Engine's daemons want to be root"
    tried = subprocess.run(
        ["unshare", "-m", "--propagation", "private", *_SHOWN], capture_output=True, check=False
    )
    return f"no overlay can be mounted here: {tried.stderr.decode()}" if tried.returncode else ""


class GridEngine(Cluster):
    """All hosts of a bed with four slots each; it ends with its bed."""

    logs = ("*.log", "**/messages")

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed, "sge")
        folder = self.folder
        cell = folder / "default"
        programs, shared = Path("/usr/lib/gridengine"), _ROOT / "usr/share/gridengine"
        for index in range(len(bed.hosts)):  # where its programs look for each other, on hosts only
            bed.run(index, _SHOWN)
        for path in (cell / "common", folder / "qmaster/job_scripts", folder / "spool"):
            path.mkdir(parents=True)
        for name in ("bin", "lib", "utilbin"):
            (folder / name).mkdir()
            (folder / name / "lx-amd64").symlink_to(programs)
        (folder / "util").symlink_to(shared / "util")
        words = {"cell": cell, "folder": folder}
        (cell / "common/bootstrap").write_text(_BOOTSTRAP.format(**words))
        (cell / "common/act_qmaster").write_text(f"{bed.hosts[0].name}\n")
        configuration = (shared / "default-configuration").read_text()
        for old, new in (
            ("/var/spool/gridengine/execd", str(folder / "spool")),
            ("min_uid                1000", "min_uid 0"),
            ("min_gid                1000", "min_gid 0"),
            ("load_report_time       00:00:40", "load_report_time 00:00:01"),
        ):
            assert old in configuration
            configuration = configuration.replace(old, new)
        (folder / "configuration").write_text(configuration)
        self.env |= {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{programs}:{_ROOT}/usr/lib/x86_64-linux-gnu",
            "SGE_ROOT": str(folder),
            "SGE_CELL": "default",
            "SGE_ARCH": "lx-amd64",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "SGE_ND": "1",
        }
        self._begin(shared)
        self._configure()

    def _begin(self, shared: Path) -> None:
        resources = shared / "util/resources"
        spool = f"{self.folder}/default/common;{self.folder}/qmaster"
        self._ok("spoolinit", "classic", "libspoolc", spool, "init")
        for kind, path in (
            ("configuration", self.folder / "configuration"),
            ("complexes", resources / "centry"),
            ("usersets", resources / "usersets"),
            ("managers", "root"),
        ):
            self._ok("spooldefaults.bin", kind, path)
        self.daemon(0, "sge_qmaster")
        self.wait(lambda: self.run("qconf", "-sm").returncode == 0)

    def _configure(self) -> None:
        names = [host.name for host in self._bed.hosts]
        for kind in ("-ah", "-as"):
            self._ok("qconf", kind, ",".join(names))
        for index in range(len(names)):
            self.daemon(index, "sge_execd")
        group = f"group_name @allhosts\nhostlist {' '.join(names)}\n"
        environment = (_ROOT / "usr/share/gridengine/util/resources/pe/mpi").read_text()
        # One slot a host, then the next one: a job of three slots has three hosts.
        environment = environment.replace("$fill_up", "$round_robin")
        scheduler = self.run("qconf", "-ssconf").stdout
        changed = [
            "schedule_interval 0:0:1"
            if line.startswith("schedule_interval")
            else "flush_submit_sec 1"
            if line.startswith("flush_submit_sec")
            else line
            for line in scheduler.splitlines()
        ]
        for kind, text in (
            ("-Ahgrp", group), ("-Ap", environment), ("-Aq", _QUEUE),
            ("-Msconf", "\n".join(changed) + "\n"),
        ):  # fmt: skip
            path = self.folder / f"given{kind}"
            path.write_text(text)
            self._ok("qconf", kind, path)
        n = len(names)
        self.wait(lambda: self.run("qstat", "-f").stdout.count(" 0/0/4 ") == n and self._is_up())

    def _is_up(self) -> bool:
        return "-NA-" not in self.run("qstat", "-f").stdout

    def _ok(self, *command: Any) -> None:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
