"""Commands that behave as PBS's, LSF's and HTCondor's are documented to, where those are not to be had.

Jobs run on the hosts of a bed, reached by its ssh: at once, unless they are held. Each command is a
shell script that calls this file with its name. It knows the commands, nothing of phalanx.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = (
    "qsub", "qdel", "qstat", "pbsdsh", "bsub", "bkill", "bjobs", "blaunch", "condor_submit",
    "condor_rm", "condor_q",
)  # fmt: skip
HOSTS = ("a", "b", "c")
_MARK = "FAKE_SCHEDULERS_JOB"


def make_commands(folder: Path) -> Path:
    """Write the commands; return the folder for a PATH."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in NAMES:
        path = programs / name
        words = shlex.join([sys.executable, "-I", "-S", __file__, str(folder), name])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
    return programs


def jobs_of(folder: Path) -> list[str]:
    """The numbers of jobs that wait or run."""
    return sorted(path.name for path in (folder / "jobs").glob("*") if path.name.isdigit())


class Fake:
    """One call of a command."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.jobs = self.folder / "jobs"
        self.jobs.mkdir(exist_ok=True)

    def new_job(self) -> str:
        number = len(list(self.jobs.glob("*"))) + 11
        (self.jobs / str(number)).write_text("R")
        return str(number)

    def state(self, job: str) -> str:
        with contextlib.suppress(OSError):
            return (self.jobs / job).read_text()
        return ""

    def start(self, job: str, host: str, variables: dict[str, str], words: list[str]) -> None:
        """Run something on a host, and be done with the job when its last process has ended."""
        if os.fork():
            return
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        env = [f"{name}={value}" for name, value in {_MARK: job, **variables}.items()]
        path = f"PATH={self.folder}/bin:/usr/bin:/bin"
        on_host(host, ["env", path, *env, *words], stdin=null)
        if not any(True for _ in processes(job)):
            (self.jobs / job).unlink(missing_ok=True)
            (self.jobs / f"{job}.over").touch()
        os._exit(0)

    def delete(self, job: str) -> int:
        if not self.state(job):
            sys.stderr.write(f"Unknown Job Id {job}\n")
            return 1
        (self.jobs / job).rename(self.jobs / f"{job}.deleted")
        for number, wait_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0)):
            for pid in processes(job):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            until = time.monotonic() + wait_s
            while time.monotonic() < until and any(True for _ in processes(job)):
                time.sleep(0.02)
        return 0

    # -- PBS --------------------------------------------------------------------------------------

    def qsub(self, script: str) -> int:
        asked = directives(Path(script).read_text(), "#PBS")
        if "-q nope" in asked:
            sys.stderr.write("qsub: Unknown queue\n")
            return 170
        found = re.search(r"nodes=(\d+):ppn=(\d+)", asked)
        assert found, asked
        hosts = [host for host in HOSTS[: int(found[1])] for _ in range(int(found[2]))]
        job = self.new_job()
        nodes = self.folder / f"nodes-{job}"
        nodes.write_text("".join(f"{host}\n" for host in hosts))
        sys.stdout.write(f"{job}.server\n")
        if "-h" in asked.split():
            (self.jobs / job).write_text("H")
            return 0
        variables = {"PBS_NODEFILE": str(nodes), "PBS_JOBID": f"{job}.server"}
        self.start(job, hosts[0], variables, ["/bin/sh", script])
        return 0

    def qstat(self, option: str, job: str) -> int:
        assert option == "-f"
        state = self.state(job.partition(".")[0])
        if not state:
            sys.stderr.write(f"qstat: Unknown Job Id {job}.server\n")
            return 153
        comment = "    comment = Not Running: Job\n\t is held\n" if state == "H" else ""
        sys.stdout.write(f"Job Id: {job}.server\n    job_state = {state}\n{comment}")
        return 0

    def qdel(self, job: str) -> int:
        return self.delete(job.partition(".")[0])

    def pbsdsh(self, option: str, index: str, dashes: str, *words: str) -> int:
        assert (option, dashes) == ("-n", "--")
        nodes = os.environ["PBS_NODEFILE"]
        host = Path(nodes).read_text().split()[int(index)]
        env = [f"{name}={os.environ[name]}" for name in (_MARK, "PBS_JOBID") if name in os.environ]
        with Path(os.devnull).open("r+b") as null:  # what a task prints is in the job's own output
            return on_host(host, ["env", *env, *words], stdin=null, stdout=null, stderr=null)

    # -- LSF --------------------------------------------------------------------------------------

    def bsub(self) -> int:
        text = sys.stdin.read()
        asked = directives(text, "#BSUB")
        if "-q nope" in asked:
            sys.stderr.write("nope: No such queue. Job not submitted.\n")
            return 255
        slots = int(re.search(r"-n (\d+)", asked)[1])
        each = int(re.search(r"ptile=(\d+)", asked)[1])
        hosts = [host for host in HOSTS[: slots // each] for _ in range(each)]
        job = self.new_job()
        nodes, script = self.folder / f"nodes-{job}", self.folder / f"script-{job}"
        nodes.write_text("".join(f"{host}\n" for host in hosts))
        script.write_text(text)
        sys.stdout.write(f"Job <{job}> is submitted to default queue <normal>.\n")
        if "-H" in asked.split():
            (self.jobs / job).write_text("PSUSP")
            return 0
        variables = {"LSB_DJOB_HOSTFILE": str(nodes), "LSB_JOBID": job}
        variables["LSB_MCPU_HOSTS"] = " ".join(f"{host} {each}" for host in dict.fromkeys(hosts))
        self.start(job, hosts[0], variables, ["/bin/sh", str(script)])
        return 0

    def bjobs(self, *words: str) -> int:
        *options, job = words
        assert options == ["-noheader", "-o", "stat"]
        state = self.state(job)
        if not state and not (self.jobs / f"{job}.over").exists():
            sys.stderr.write(f"Job <{job}> is not found\n")
            return 255
        sys.stdout.write(f"{ {'R': 'RUN', '': 'DONE'}.get(state, state) }\n")
        return 0

    def bkill(self, job: str) -> int:
        return self.delete(job)

    def blaunch(self, host: str, *words: str) -> int:
        env = [f"{name}={os.environ[name]}" for name in (_MARK, "LSB_JOBID") if name in os.environ]
        return on_host(host, ["env", *env, *words])

    # -- HTCondor ---------------------------------------------------------------------------------

    def condor_submit(self, script: str) -> int:
        said = Path(script).read_text()
        lines = [line.partition("=") for line in said.splitlines() if "=" in line]
        its = {name.strip(): value.strip() for name, _, value in lines}
        n = int(re.search(r"^queue (\d+)$", said, re.MULTILINE)[1])
        if "+nope" in its:
            sys.stderr.write("ERROR: Failed to parse command file (line 12).\n")
            return 1
        job = self.new_job()
        sys.stdout.write(f"Submitting job(s){'.' * n}\n{n} job(s) submitted to cluster {job}.\n")
        if "hold" in its:
            (self.jobs / job).write_text("5 submitted on hold at user's request")
            return 0
        sys.stdout.flush()
        for number in range(n):
            text = its["arguments"].strip('"').replace("$(Process)", str(number))
            words = [its["executable"], *shlex.split(text)]
            self.start(job, HOSTS[number % len(HOSTS)], {}, words)
        return 0

    def condor_q(self, job: str, *options: str) -> int:
        assert options == ("-af", "JobStatus", "HoldReason")
        if state := self.state(job):
            sys.stdout.write("2 undefined\n" if state == "R" else f"{state}\n")
        return 0

    def condor_rm(self, job: str) -> int:
        return self.delete(job)


def directives(text: str, sign: str) -> str:
    lines = text.splitlines()
    return "\n".join(line.removeprefix(sign).strip() for line in lines if line.startswith(sign))


def on_host(host: str, words: list[str], **options: object) -> int:
    """Run a command on a host of the bed, to its end."""
    command = ["ssh", "-o", "BatchMode=yes", host, shlex.join(words)]
    return subprocess.run(command, check=False, **options).returncode


def processes(job: str):
    """Find what runs of a job, on whichever host."""
    mark = f"{_MARK}={job}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and path.parent.name != str(os.getpid()):
                yield int(path.parent.name)


if __name__ == "__main__":
    folder, name, *rest = sys.argv[1:]
    sys.exit(getattr(Fake(folder), name)(*rest))
