"""Set the variables at which torch and JAX meet: MASTER_ADDR, MASTER_PORT, JAX_COORDINATOR_ADDRESS.

Phalanx does not listen there and does not form a world from these variables.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from contextlib import suppress

MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS")


def free_port() -> int:
    """Return a port that is free on all addresses; 0 without one.

    Examples
    --------
    >>> 0 < free_port() < 65536
    True
    """
    # torch's store listens on all addresses, including IPv6 if the machine has it.
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
        return int(sock.getsockname()[1])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])
    return 0


def master_variables(address: str, port: int) -> dict[str, str]:
    """Return the variables for a rendezvous address; empty if ``port`` is 0.

    Examples
    --------
    >>> list(master_variables("127.0.0.1", 4711).values())
    ['127.0.0.1', '4711', '127.0.0.1:4711']
    >>> master_variables("127.0.0.1", 0)
    {}
    """
    if not port:
        return {}
    host = f"[{address}]" if ":" in address else address
    # torch and JAX get one port: no program is known that uses the store of both.
    return dict(zip(MASTER_VARIABLES, (address, str(port), f"{host}:{port}"), strict=True))


def put_master(offer: str, epoch: int, kept: Collection[str]) -> None:
    """Set the variables that rank 0 offers, except those in ``kept``.

    ``offer`` is "port address". In epoch 1 a variable that is set already stays: a script has the variables of its first epoch
    from the start and may have read them.
    """
    port, _, address = offer.partition(" ")
    variables = master_variables(address, int(port))
    for name in MASTER_VARIABLES:
        if name in kept or (epoch == 1 and name in os.environ):
            continue
        if name in variables:
            os.environ[name] = variables[name]
        else:
            os.environ.pop(name, None)


def place_variables(rank: int, size: int) -> dict[str, str]:
    """Return torchrun's and JAX's variables for a rank.

    LOCAL_RANK is not among them: programs choose a device by it, so it stays when the world
    shrinks.

    Examples
    --------
    >>> place_variables(1, 4)["JAX_PROCESS_ID"], place_variables(1, 4)["WORLD_SIZE"]
    ('1', '4')
    """
    names = {"RANK": rank, "WORLD_SIZE": size, "JAX_PROCESS_ID": rank, "JAX_NUM_PROCESSES": size}
    return {name: str(value) for name, value in names.items()}
