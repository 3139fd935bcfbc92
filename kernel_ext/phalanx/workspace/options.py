"""Check the arguments of `Workspace` methods and of starting ranks.

Each ``checked_`` function returns the value, or raises one line in the caller's words.
`resolve_placement` turns a user's options into the plan of hosts and ranks.
"""

from __future__ import annotations

import keyword
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import msgspec
import zmq

from phalanx import hosts as host_records
from phalanx.errors import DistributedError, NotSupported, is_refused, say_refusal
from phalanx.protocol import (
    GRACE_S,
    MOST_CONNECTIONS,
    BootOptions,
    HostPlan,
    JobOptions,
    RemoteOptions,
    WorldConfig,
)
from phalanx.supervisor import THREADS_VARIABLE, check_name, threads_each, usable_cores

TRANSPORT_VARIABLE = "PHALANX_TRANSPORT"
LINGER_S = 600.0  # long enough to come back after a restart
HERE = RemoteOptions()  # no remote hosts
HEARTBEAT_TIMEOUT_S = 5.0  # default; a rank that is silent for longer counts as frozen
BOOT_TIMEOUT_S = 30.0  # ten times the start time of a host over ssh (reference/jupyter.md 1.8)
QUEUE_TIMEOUT_S = 600.0  # in a scheduler's queue: a person at a notebook waits no longer
RANKS_HERE = 4
_RDMA = "RDMA between Macs is not in this release"
# Backends in MLX's hostfiles that cells cannot use, with the reason.
_NOT_FOR_CELLS = {
    "mpi": "mpirun starts scripts (phalanx launch --backend mpi script.py)",
    "nccl": "NCCL, between NVIDIA's GPUs, is not in this release",
    "jaccl": _RDMA,
    "jaccl-ring": _RDMA,
}

# Variables copied to remote hosts if set here: how figures are drawn, and how many threads a
# library uses. The rest of the environment is the remote host's own.
_HANDED_ON = (
    "MPLBACKEND",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


def checked_name(name: Any) -> str:
    """Raise `ValueError` unless the value is a variable name."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        msg = f"{name!r} is not the name of a variable"
        raise ValueError(msg)
    return name


def checked_text(what: str, value: Any) -> str:
    """Return a str that UTF-8 can encode, else raise.

    `TypeError` for another type; `ValueError` for a surrogate (half a character).
    """
    if not isinstance(value, str):
        msg = f"{what} is {value!r}; it must be a str"
        raise TypeError(msg)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        msg = f"{what} has half a character, {half!r}, which cannot be sent; write it as an escape"
        raise ValueError(msg) from None
    return value


def checked_path(what: str, value: Any) -> str:
    """Return a path as str; `TypeError` for other types.

    An empty path is a `ValueError`. Numbers are refused: `open` would take a number as a
    descriptor.
    """
    if not isinstance(value, str | os.PathLike):
        msg = f"{what} is {value!r}; it must be a path"
        raise TypeError(msg)
    path = os.fspath(value)
    if not path or not isinstance(path, str):
        msg = f"{what} is {value!r}; it must be the path of a file"
        raise ValueError(msg)
    return path


def checked_words(what: str, values: Any) -> tuple[str, ...]:
    """Return several str as a tuple, else raise `TypeError`.

    A single str is refused, as it would be split into characters.
    """
    is_several = isinstance(values, Iterable) and not isinstance(values, str)
    words = tuple(values) if is_several else ()
    if not all(isinstance(word, str) for word in words) or not (is_several or values is None):
        msg = f"{what} is {values!r}; it must be a list of str"
        raise TypeError(msg)
    return words


def checked_whole(what: str, value: Any, least: int) -> int:
    """Return a whole number of at least ``least``, else raise `ValueError`."""
    try:
        whole = operator.index(value)  # accepts numpy integers, not 2.0
    except TypeError:
        whole = least - 1
    if whole < least or isinstance(value, bool):
        msg = f"{what} is {value!r}; it must be a whole number, {least} or more"
        raise ValueError(msg)
    return whole


def checked_seconds(what: str, value: Any, *, is_above_0: bool = False) -> float:
    """Return a finite number of seconds, else raise `ValueError`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and (value > 0 if is_above_0 else value >= 0)):
        least = "above 0" if is_above_0 else "0 or more"
        separator = " " if is_above_0 else ", "
        msg = f"{what} is {value!r}; it must be a number of seconds{separator}{least}"
        raise ValueError(msg)
    return float(value)


def checked_options(
    ranks: int,
    name: str | None,
    linger_s: float,
    heartbeat_timeout_s: float,
    transport: str | None,
    *,
    auto_restart: bool = False,
    is_detached: bool = False,
    hosts: tuple[HostPlan, ...] = (),
    remote: RemoteOptions = HERE,
    grace_s: float = GRACE_S,
) -> BootOptions:
    """Check a user's options; raise `ValueError` with one line.

    The ranks start in this process's folder. A name that the user has not chosen gets a number
    appended if it is in use.
    """
    if hosts:
        ranks = sum(plan.ranks for plan in hosts)
    ranks = checked_whole("the number of ranks", ranks, 1)
    checked_seconds("linger", linger_s)
    checked_seconds("grace", grace_s)
    checked_seconds("heartbeat_timeout", heartbeat_timeout_s, is_above_0=True)
    chosen = f"local-{os.getpid()}" if name is None else check_name(checked_text("name", name))
    transport = chosen_transport(transport)
    return BootOptions(
        WorldConfig(chosen, ranks, transport, heartbeat_timeout_s, remote.connections_per_ip),
        linger_s,
        str(Path.cwd()),
        is_named=name is not None,
        auto_restart=bool(auto_restart),
        is_detached=bool(is_detached),
        hosts=hosts,
        remote=remote,
        grace_s=grace_s,
    )


def chosen_transport(said: str | None) -> str:
    """Return the transport: the argument, else PHALANX_TRANSPORT, else "any".

    Raises
    ------
    ValueError
        The value is neither "any" nor "tcp"; the text names the argument or the variable.
    """
    source, transport = "transport", said
    if transport is None:  # an empty variable counts as unset
        source, transport = TRANSPORT_VARIABLE, os.environ.get(TRANSPORT_VARIABLE) or "any"
    if transport not in ("any", "tcp"):
        msg = f"{source} is {transport!r}; it must be 'any' or 'tcp'"
        raise ValueError(msg)
    return transport


@contextmanager
def starting() -> Iterator[None]:
    """Turn a lack of descriptors, memory or threads into `DistributedError`."""
    try:
        yield
    except DistributedError:  # some are OSErrors as well
        raise
    except (OSError, MemoryError, zmq.ZMQError, RuntimeError) as error:
        if not is_refused(error) and not isinstance(error, zmq.ZMQError):
            raise
        msg = f"the ranks cannot be started from here: {say_refusal(error)}"
        raise DistributedError(msg) from error


@dataclass(frozen=True)
class Placement:
    """The number of ranks and their hosts.

    ``hosts`` is empty if all ranks run on this machine, without ssh.
    """

    ranks: int
    hosts: tuple[HostPlan, ...] = ()
    remote: RemoteOptions = HERE

    def say_threads(self) -> str:
        """Describe how ranks of a host share its cores.

        Return "" if the ranks share nothing, or the user has set the number of threads.
        """
        is_here = all(plan.is_local for plan in self.hosts)
        most = max((plan.ranks for plan in self.hosts), default=self.ranks)
        threads = threads_each(usable_cores(), most) if is_here else int(most > 1)
        is_set = THREADS_VARIABLE in self.remote.env or (is_here and THREADS_VARIABLE in os.environ)
        if not threads or is_set:
            return ""
        said = f"{THREADS_VARIABLE}={threads} in each" if is_here else f"{THREADS_VARIABLE} is set"
        return f"ranks share the cores: {said} (--env changes it)"


def resolve_placement(
    n: int | None,
    *,
    hosts: str | Iterable[str | HostPlan] | None = None,
    hostfile: str | os.PathLike[str] | host_records.Hostfile | None = None,
    python: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | Iterable[str] = (),
    ssh_args: Iterable[str] = (),
    interface: str | None = None,
    launcher: str | None = None,
    boot_timeout: float | None = None,
    connections_per_ip: int | None = None,
    job: JobOptions | Mapping[str, object] | None = None,
) -> Placement:
    """Turn a user's options into a placement; parameters as in `Workspace.start`.

    Raises
    ------
    ValueError
        An option is wrong, or options contradict each other; the text is one line.
    NotSupported
        The hostfile is for a backend that notebooks do not support.
    """
    pairs = [f"{k}={v}" for k, v in env.items()] if isinstance(env, Mapping) else env
    settings, ssh_args = checked_words("env", pairs), checked_words("ssh_args", ssh_args)
    for what, text in (("python", python), ("interface", interface), ("launcher", launcher)):
        if text is not None:
            checked_text(what, text)
    if cwd is not None:
        checked_path("cwd", cwd)
    asked = _job(job)
    host_records.check_job(asked, launcher)
    found = _hostfile(hosts, hostfile)
    if asked.nodes:
        asked = msgspec.structs.replace(asked, nodes=_nodes(asked.nodes, found))
    elif found is None and launcher and host_records.uses_job(launcher, os.environ):
        found = host_records.job_hosts(launcher, os.environ, with_slots=n is None)
    if found is None and not asked.nodes:
        said: dict[str, Any] = {
            "python": python, "interface": interface, "ssh-arg": ssh_args,
            "launcher": launcher, "boot-timeout": boot_timeout,
            "connections-per-ip": connections_per_ip,
        }  # fmt: skip
        idle = [f"--{name}" for name, value in said.items() if value not in (None, ())]
        if idle:
            msg = f"{' and '.join(idle)}: only with --hosts or --hostfile"
            raise ValueError(msg)
        _check_folder(cwd)
        here = RemoteOptions(cwd=_absolute(cwd), env=host_records.environment(settings, os.environ))
        return Placement(RANKS_HERE if n is None else n, (), here)
    if n is not None:
        n = checked_whole("the number of ranks per host", n, 1)
    if found is not None and found.backend in _NOT_FOR_CELLS:
        msg = (
            f"{found.source}: backend {found.backend!r} is not for cells: "
            f'{_NOT_FOR_CELLS[found.backend]}; with "backend": "ring" in that file its hosts are '
            "joined by this engine, over tcp"
        )
        raise NotSupported(msg)
    usual_s = QUEUE_TIMEOUT_S if asked.nodes else BOOT_TIMEOUT_S
    timeout_s = usual_s if boot_timeout is None else boot_timeout
    checked_seconds("the boot timeout", timeout_s, is_above_0=True)
    if connections_per_ip not in (None, *range(1, MOST_CONNECTIONS + 1)):
        msg = f"{connections_per_ip!r} connections per address; it must be from 1 to {MOST_CONNECTIONS}"
        raise ValueError(msg)
    if interface is not None:  # the supervisor uses it: fail early if the name is wrong
        host_records.interface_addresses(interface)
    if found is None:  # the scheduler chooses the nodes; their names are known when they are up
        planned = tuple(HostPlan(f"node{index}", n or 1) for index in range(asked.nodes))
    else:
        planned = host_records.plan(found, n)
    if any(host.is_local for host in planned):
        _check_folder(cwd)
    remote = RemoteOptions(
        python=python or "",
        cwd=_absolute(cwd),
        env={
            **{name: os.environ[name] for name in _HANDED_ON if name in os.environ},
            **host_records.environment([*(found.envs if found else ()), *settings], os.environ),
        },
        ssh_args=ssh_args,
        interface=interface or "",
        launcher=launcher or "ssh",
        timeout_s=timeout_s,
        connections_per_ip=int(connections_per_ip or 1),
        job=asked,
    )
    return Placement(sum(host.ranks for host in planned), planned, remote)


def planned(
    hosts: str | Iterable[str | HostPlan] | None, remote: RemoteOptions | None
) -> Placement | None:
    """Return the placement of hosts given as plans, else None."""
    plans = tuple(hosts) if isinstance(hosts, list | tuple) else ()
    made = tuple(plan for plan in plans if isinstance(plan, HostPlan))
    if not made or len(made) < len(plans):
        return None
    return Placement(sum(plan.ranks for plan in made), made, remote or HERE)


def _absolute(cwd: str | os.PathLike[str] | None) -> str:
    return "" if cwd is None else os.fspath(Path(cwd).absolute())


def _check_folder(cwd: str | os.PathLike[str] | None) -> None:
    if cwd is not None and not Path(cwd).is_dir():
        msg = f"--cwd {cwd}: there is no such folder on this machine"
        raise ValueError(msg)
    if cwd is not None and not os.access(cwd, os.X_OK):
        msg = f"--cwd {cwd}: you may not go there"
        raise ValueError(msg)


def _job(said: JobOptions | Mapping[str, object] | None) -> JobOptions:
    if isinstance(said, JobOptions):
        return said
    try:
        return msgspec.convert(said or {}, JobOptions)
    except msgspec.ValidationError as error:
        msg = f"job: {error}"
        raise ValueError(msg) from None


def _nodes(nodes: int, found: host_records.Hostfile | None) -> int:
    if found is not None:
        msg = "--nodes asks a scheduler for nodes of its choice: leave out --hosts and --hostfile"
        raise ValueError(msg)
    return checked_whole("the number of nodes", nodes, 1)


def _hostfile(
    hosts: str | Iterable[str | HostPlan] | None,
    hostfile: str | os.PathLike[str] | host_records.Hostfile | None,
) -> host_records.Hostfile | None:
    if hosts is not None and hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if hosts is not None:
        text = hosts if isinstance(hosts, str) else ",".join(checked_words("hosts", hosts))
        return host_records.parse_hosts(text)
    if hostfile is None or isinstance(hostfile, host_records.Hostfile):
        return hostfile
    return host_records.read_hostfile(checked_path("hostfile", hostfile))


def checked_expressions(names: Any) -> tuple[str, ...]:
    """Check one or several expressions to pull, and return them.

    Raises
    ------
    ValueError
        There is none, or one of them is not an expression.
    """
    several = names if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    expressions = tuple(_checked_expression(each) for each in several)
    if not expressions:
        msg = "no names to pull"
        raise ValueError(msg)
    return expressions


def _checked_expression(text: Any) -> str:
    try:
        if isinstance(text, str):
            compile(text, "<pull>", "eval", dont_inherit=True)
            return text
    except (SyntaxError, ValueError):
        pass
    msg = f"{text!r} is not the name of a variable, nor an expression"
    raise ValueError(msg)
