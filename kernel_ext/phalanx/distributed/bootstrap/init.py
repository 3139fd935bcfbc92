"""Join a world and recover from a failure: `init` and `recover`.

Both choose between a supervised world, MPI and a group of one. The modules `supervised` and `mpirun`
do the joining.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.errors import DistributedError, NotConfigured, NotSupported

from ..control import seconds
from ..group.epoch import group_of_one
from ..group.group import Group
from .mpirun import ALONE, NOT_INSTALLED, is_installed, is_mpi, join_mpi, was_launched
from .own_frames import hide_in_scripts
from .supervised import CHANNEL_VARIABLE, adopt, alone, is_supervised, join, world

_MPI = (
    "a world of MPI cannot be formed anew, as MPI itself cannot: end the job and start it again, "
    "or run it with phalanx launch without --backend mpi"
)

_NO_WORLD = "says that there are several ranks, but variables alone form no world"
_COMMAND = "start the ranks with: phalanx launch -n N SCRIPT"
_log = logging.getLogger(__name__)

# In the order of MLX's error text.
_BACKENDS = ("any", "mpi", "nccl", "jaccl", "ring")

_HERE = ("any", "ring", "mpi")


def recover(timeout: float | None = 30.0) -> Group:
    """Form the group again after a failure; every rank calls this.

    A failure (a stop, a timeout, a mismatch between ranks, an exception on one rank) ends the group
    for all ranks: every later operation raises the same error. Call `recover` to continue within
    one cell or script. The next cell of a notebook starts with a working group anyway. The new
    group never accepts data that was sent or written before the failure. A split is formed again,
    as the same object, if all ranks of the split still hold the split.

    If nothing has failed on any rank, the group stays as it is and the call is a barrier.

    Under ``phalanx launch --max-restarts K`` this waits for the ranks that are started again. They
    join in `init`, and the new group has its full size. If another rank fails meanwhile and is
    started again, too, this waits for that rank as well. A split with a rank that was started again
    is lost.

    Under ``phalanx launch --keep-going`` the new group consists of the ranks that are alive. Dead
    and ended ranks are left out, so the group is smaller. The remaining ranks are renumbered in
    the same order, and so are ``RANK`` and ``WORLD_SIZE``. Errors, labels and `Group.describe`
    keep the rank numbers from the start. A split with a dead or ended rank is lost.

    Parameters
    ----------
    timeout : float, optional
        Seconds for the whole call; ``None``: no limit.

    Returns
    -------
    Group
        The group of `init`, the same object as before.

    Raises
    ------
    CollectiveTimeout
        Not every rank called `recover` in time (names the missing). The call may be repeated.
    RankFailure
        All ranks are needed, and one is dead, has ended its cell, or was not asked to run the
        cell.
    NotSupported
        The ranks are MPI's, and MPI cannot continue after a failure.
    DistributedError
        The group cannot be formed.

    Notes
    -----
    Cost: one round trip to the supervisor if nothing has failed. Otherwise a second round trip and
    new connections between hosts, and the same again for each split that is formed again.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> def sum_or_none(x):
    ...     try:
    ...         return px.all_sum(x, timeout=10.0)
    ...     except px.DistributedError:  # on every rank
    ...         px.recover()
    >>> sum_or_none(np.ones(3))
    array([1., 1., 1.])
    >>> px.recover() is px.init()
    True
    """
    limit = seconds(timeout)
    hide_in_scripts()
    if is_supervised():
        return join(limit, recovers=True)
    group = world()
    if group is not None and is_mpi(group):
        try:
            group.barrier(limit)
        except DistributedError as error:
            msg = f"{_MPI} ({error})"
            raise NotSupported(msg) from error
        return group
    if group is None and was_launched(os.environ):
        return adopt(lambda: join_mpi(limit))
    return _alone()


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    timeout: float | None = 30.0,
    interface: str | None = None,
    all_gather_factory: Callable[[int, int], Callable[[bytes, int], bytes]] | None = None,
) -> Group:
    """Join the world this process was started in.

    The world is joined once: later calls return the same group at once. If the group was closed,
    a later call returns when every rank has called again (as `recover`). A process outside any
    world gets a group of one. A rank that ``phalanx launch --max-restarts K`` has started again
    waits here until the other ranks call `recover`, without a limit; one line is logged after
    ``timeout`` seconds.

    Processes of ``mpirun`` form a world of MPI (through mpi4py) if no supervisor started them.

    The variables of ``mlx.launch`` and ``torchrun`` alone form no world. If they name several
    ranks, one line is logged, or `NotConfigured` is raised with ``strict``. Start such a program
    with ``phalanx launch``, which takes the options of ``mlx.launch``.

    Parameters
    ----------
    strict : bool, optional
        Raise outside any world, instead of returning a group of one.
    backend : {"any", "ring", "mpi", "nccl", "jaccl"}, optional
        ``"ring"``: this engine, over shared memory and TCP. ``"mpi"``: the MPI library of the
        ``mpirun`` that started this process. ``"any"``: the backend of the world that this
        process was started in.
    timeout : float, optional
        Seconds for joining only; ``None``: no limit.
    interface : str, optional
        The network interface, such as ``"eth0"``; this rank's links use its addresses. By default
        the supervisor chooses. Ranks of one host share memory in any case.
    all_gather_factory : callable, optional
        As in MLX, for ``backend="jaccl"`` only.

    Returns
    -------
    Group
        The group of all ranks of the world; every rank has joined.

    Raises
    ------
    NotConfigured
        ``strict`` was given outside any world (the error names the command to use).
    NotSupported
        This release does not have the backend or option; or an interface was given for MPI or for
        a world that is joined already.
    ValueError
        ``backend`` is not the name of a backend, or this machine has no such interface (the error
        names the nearest match).
    CollectiveTimeout
        A rank did not join in time (names the missing ranks).
    RankFailure, DistributedError
        A rank was lost meanwhile, or the world cannot be formed. A process that was started in a
        world never falls back to a group of one.

    Examples
    --------
    >>> import phalanx as px
    >>> px.init() is px.init()
    True
    >>> px.init(strict=True)
    Traceback (most recent call last):
    ...
    phalanx.errors.NotConfigured: [distributed] Couldn't initialize any backend: PHALANX_CHANNEL \
is not set, so no Phalanx supervisor started this process; use %distributed start or phalanx launch
    """
    hide_in_scripts()
    _check_options(backend, timeout, all_gather_factory)
    addresses = () if interface is None else _addresses_of(interface)
    if is_supervised() and backend != "mpi":
        group = world()
        return join(timeout, addresses=addresses) if group is None else _open(group, timeout)
    if backend == "mpi" or (backend == "any" and was_launched(os.environ)):
        if interface is not None:
            msg = (
                f"interface={interface!r} is for backend 'ring'; MPI chooses its own: --mpi-arg="
                f"'--mca btl_tcp_if_include {interface}' (Open MPI), or -iface (MPICH)"
            )
            raise NotSupported(msg)
        return _init_mpi(strict, timeout)
    if strict:
        named = _named_ranks(os.environ)
        why = (
            f"{named} {_NO_WORLD}; {_COMMAND}"
            if named
            else f"{CHANNEL_VARIABLE} is not set, so no Phalanx supervisor started this process; "
            "use %distributed start or phalanx launch"
        )
        msg = f"[distributed] Couldn't initialize any backend: {why}"
        raise NotConfigured(msg)
    group = world()
    return group_of_one() if group is not None and is_mpi(group) else _alone()


def _init_mpi(strict: bool, timeout: float | None) -> Group:
    group = world()
    if is_supervised() or (group is not None and group.size() > 1 and not is_mpi(group)):
        msg = (
            "[mpi] this process is a rank of a Phalanx world already; use backend='any', or "
            "start it with mpirun or phalanx launch --backend mpi"
        )
        raise NotConfigured(msg)
    if was_launched(os.environ):
        return _open(adopt(lambda: join_mpi(timeout)), timeout)
    if not is_installed():
        raise NotSupported(NOT_INSTALLED)
    if strict:
        raise NotConfigured(ALONE)
    return alone()


def _alone() -> Group:
    """Return the group of one; warn if variables name more ranks."""
    if world() is None and (named := _named_ranks(os.environ)):
        _log.warning("%s %s: px.init() gives a group of one; %s", named, _NO_WORLD, _COMMAND)
    return alone()


def _named_ranks(env: Mapping[str, str]) -> str:
    """Return a variable of MLX or torchrun that names several ranks.

    Examples
    --------
    >>> _named_ranks({"RANK": "0", "WORLD_SIZE": "4"}), _named_ranks({"WORLD_SIZE": "1"})
    ('WORLD_SIZE=4', '')
    >>> _named_ranks({"MLX_RANK": "0", "MLX_HOSTFILE": "/tmp/hosts.json"})
    'MLX_RANK=0'
    """
    for name in ("MLX_WORLD_SIZE", "WORLD_SIZE"):
        value = env.get(name, "")
        if value.isdecimal() and value.lstrip("0") not in {"", "1"}:
            return f"{name}={value}"
    if "MLX_RANK" not in env or "MLX_WORLD_SIZE" in env:
        return ""
    hostfile = Path(env.get("MLX_HOSTFILE", ""))
    is_one = hostfile.is_file() and not hostfile.stat().st_size  # as `mlx.launch -n 1` writes it
    return "" if is_one else f"MLX_RANK={env['MLX_RANK']}"


def _open(group: Group, timeout: float | None) -> Group:
    """Return the group; recover it first if this rank has closed it."""
    return recover(timeout) if group._current.engine.is_closed else group


def is_available(backend: str = "any") -> bool:
    """Return whether a backend can be used.

    Parameters
    ----------
    backend : str, optional
        A name as in `init`; an unknown name is not available.

    Returns
    -------
    bool
        True for ``"any"`` and ``"ring"``; for ``"mpi"`` if mpi4py and an MPI library are installed.

    Examples
    --------
    >>> import phalanx as px
    >>> px.is_available(), px.is_available("ring"), px.is_available("nccl")
    (True, True, False)
    """
    return is_installed() if backend == "mpi" else backend in _HERE


def _check_options(backend: str, timeout: float | None, all_gather_factory: object) -> None:
    seconds(timeout)
    if backend not in _BACKENDS:
        near = difflib.get_close_matches(str(backend), _BACKENDS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        msg = (
            "[distributed] The only valid values for backend are 'any', 'mpi', 'nccl', 'jaccl' "
            f"and 'ring' but '{backend}' was provided.{hint}"
        )
        raise ValueError(msg)
    if all_gather_factory is not None:
        if not callable(all_gather_factory):
            msg = "all_gather_factory must be callable or None"
            raise TypeError(msg)
        if backend != "jaccl":
            msg = "all_gather_factory is only supported with backend='jaccl'."
            raise ValueError(msg)
    if backend not in _HERE:
        msg = f"backend '{backend}' is not in this release; 'any', 'ring' and 'mpi' are"
        raise NotSupported(msg)


def _addresses_of(interface: str) -> tuple[str, ...]:
    """Return an interface's addresses; raise `NotSupported` if links exist already."""
    from phalanx.hosts import interface_addresses  # rarely needed, and loads psutil

    addresses = interface_addresses(interface)
    group = world()
    if group is not None and group.size() > 1 and group._current.spec.addresses != addresses:
        msg = (
            f"interface={interface!r} comes too late, the links of this world are made; choose it "
            "with --interface at the start of the world, or in the first px.init"
        )
        raise NotSupported(msg)
    return addresses
