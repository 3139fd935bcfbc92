"""The public way into a world: `init`, and what backends there are.

It chooses between the world this process was started in and a group of one; joining is done in
`_supervised`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable

from phalanx.errors import NotConfigured, NotSupported

from ._deadline import seconds
from ._environment import join_ring, ring_environment
from ._group import Group
from ._mpi._join import ALONE, NOT_INSTALLED, is_installed, is_mpi, join_mpi, was_launched
from ._one import group_of_one
from ._recover import recover
from ._supervised import CHANNEL_VARIABLE, adopt, alone, is_supervised, join, world

__all__ = ["init", "is_available"]

# As MLX orders them in its error text.
_BACKENDS = ("any", "mpi", "nccl", "jaccl", "ring")
_HERE = ("any", "ring", "mpi")


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    timeout: float | None = 30.0,
    interface: str | None = None,
    all_gather_factory: Callable[[int, int], Callable[[bytes, int], bytes]] | None = None,
) -> Group:
    """Join the world this process was started in.

    The world is joined once: later calls return the same group at once, or, where it was closed,
    when every rank has come back (as `recover`). A process that is in no
    world gets a group of one. What ``mlx.launch`` sets for its ring (``MLX_RANK`` and
    ``MLX_HOSTFILE``) is a world too: among those who hold ``PHALANX_KEY_FILE``; without one on
    loopback, among processes of one user, and elsewhere only with ``PHALANX_INSECURE=1``, as
    nothing there tells a stranger from a rank. What ``mpirun`` starts is a world of MPI (through
    mpi4py), where none of these is.

    Parameters
    ----------
    strict : bool, optional
        Outside any world, raise instead of returning a group of one.
    backend : {"any", "ring", "mpi", "nccl", "jaccl"}, optional
        ``"ring"`` is this engine, over shared memory and tcp; ``"mpi"`` the MPI library of the
        ``mpirun`` that started this process; ``"any"`` the one whose world this is.
    timeout : float, optional
        Seconds for joining only; ``None``: no limit.
    interface : str, optional
        The network interface whose addresses this rank's links use, such as ``"eth0"``; by default
        the supervisor (or the hostfile) says which. Ranks of one host share memory nevertheless.
    all_gather_factory : callable, optional
        As in MLX, for ``backend="jaccl"`` only.

    Returns
    -------
    Group
        The world's group, in which every rank has arrived.

    Raises
    ------
    NotConfigured
        ``strict`` was given outside any world.
    NotSupported
        A backend or option that this release does not have, or an interface for a world that is
        joined already, or MPI's.
    ValueError
        ``backend`` is no backend's name, or this machine has no such interface (names the nearest).
    CollectiveTimeout
        Names the ranks that did not come in time.
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
    _check_options(backend, timeout, all_gather_factory)
    addresses = () if interface is None else _addresses_of(interface)
    if backend == "mpi":
        _refuse_for_mpi(interface)
        return _init_mpi(strict, timeout)
    if is_supervised():
        group = world()
        return join(timeout, addresses=addresses) if group is None else _open(group, timeout)
    ring = ring_environment(os.environ)
    if ring is not None:
        return _open(adopt(lambda _: join_ring(ring, timeout, addresses=addresses)), timeout)
    if backend == "any" and was_launched(os.environ):
        _refuse_for_mpi(interface)
        return _open(adopt(lambda _: join_mpi(timeout)), timeout)
    if strict:
        msg = (
            f"[distributed] Couldn't initialize any backend: {CHANNEL_VARIABLE} is not set, so no "
            "Phalanx supervisor started this process; use %distributed start or phalanx launch"
        )
        raise NotConfigured(msg)
    group = world()
    return group_of_one() if group is not None and is_mpi(group) else alone()


def _init_mpi(strict: bool, timeout: float | None) -> Group:
    group = world()
    if is_supervised() or (group is not None and group.size() > 1 and not is_mpi(group)):
        msg = (
            "[mpi] this process is a rank of a Phalanx world already; use backend='any', or "
            "start it with mpirun or phalanx launch --backend mpi"
        )
        raise NotConfigured(msg)
    if was_launched(os.environ):
        return _open(adopt(lambda _: join_mpi(timeout)), timeout)
    if not is_installed():
        raise NotSupported(NOT_INSTALLED)
    if strict:
        raise NotConfigured(ALONE)
    return alone()


def _open(group: Group, timeout: float | None) -> Group:
    """Return the group, which is formed anew with the other ranks if this one has closed it."""
    return recover(timeout) if group._engine.is_closed else group


def is_available(backend: str = "any") -> bool:
    """Tell whether a backend can be used.

    Parameters
    ----------
    backend : str, optional
        A name as in `init`; an unknown one is not available.

    Returns
    -------
    bool
        True for ``"any"`` and ``"ring"``; for ``"mpi"`` if mpi4py and a library of MPI are there.

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
    """Return an interface's addresses; refuse it where the links are made already."""
    from phalanx.hosts import interface_addresses  # rarely needed, and psutil with it

    addresses = interface_addresses(interface)
    group = world()
    if group is not None and group.size() > 1 and group._spec.addresses != addresses:
        msg = (
            f"interface={interface!r} comes too late, the links of this world are made; choose it "
            "when it is started (%distributed start --interface) or in the first px.init"
        )
        raise NotSupported(msg)
    return addresses


def _refuse_for_mpi(interface: str | None) -> None:
    if interface is not None:
        msg = (
            f"interface={interface!r} is for backend 'ring'; MPI chooses its own: "
            f"--mpi-arg='--mca btl_tcp_if_include {interface}' (Open MPI), or -iface (MPICH)"
        )
        raise NotSupported(msg)
