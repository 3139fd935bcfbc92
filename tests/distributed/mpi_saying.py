"""What the cells of the mpi backend have in common: the engine, a line said, an error caught."""

from __future__ import annotations

import os

import phalanx as px


def engine_of_world():
    return px.init(strict=True, backend="mpi")._engine


def say(*words) -> None:
    """Write one line at once: the lines of ranks shall not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def raised(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    msg = f"nothing was raised by rank {px.init().rank()}"
    raise AssertionError(msg)
