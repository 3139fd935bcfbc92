"""What a sweep is asked for, checked before anything runs: sizes, memory, operation, dtype.

Text and numbers, and how much memory this machine has; nothing is measured here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._bench_case import DTYPES, OPERATIONS, dtype_named

__all__ = [
    "available_memory",
    "check_memory",
    "check_memory_of_hosts",
    "check_request",
    "parse_size",
    "physical_memory",
    "sizes_between",
]

_MOST = 1 << 63  # bytes: of so many no length can be said in a machine's numbers
# Arrays of a message's size that one rank may hold at a time: input, output, staging.
_COPIES = 3
_SIZE = re.compile(r"(\d+)\s*(?:([KMGTPE])(?:iB)?|B)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Return the number of bytes that a size like ``64M`` says.

    Parameters
    ----------
    text : str
        Digits, and K, M, G, T, P or E (powers of 1024), also written KiB, MiB and so on.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        It is not such a size, or 8 EiB and more.

    Examples
    --------
    >>> parse_size("8"), parse_size("1K"), parse_size("64MiB")
    (8, 1024, 67108864)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = f"'{text}' is not a size; write bytes as 8, 1K, 64M or 2G (powers of 1024)"
        raise ValueError(msg)
    number, unit = match.groups()
    digits = number.lstrip("0") or "0"
    # Python converts 4300 digits at most, and says so in words of its own.
    nbytes = _MOST if len(digits) > len(str(_MOST)) else int(digits)
    nbytes <<= 10 * (" KMGTPE".index(unit.upper())) if unit else 0
    _check_length(nbytes, _short(text.strip()))
    return nbytes


def _check_length(nbytes: int, said: str) -> None:
    if nbytes >= _MOST:
        msg = f"a message of {said} bytes is longer than any machine can hold; give less than 8E"
        raise ValueError(msg)


def _short(text: str) -> str:
    """As much of a long number as tells it."""
    return text if len(text) <= 24 else f"{text[:12]}… ({len(text)} characters)"


def sizes_between(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return ``begin``, ``begin * factor`` and so on, up to ``end``.

    Parameters
    ----------
    begin, end : int
        Bytes; ``1 <= begin <= end``.
    factor : int
        At least 2.

    Returns
    -------
    tuple of int
        Bytes, growing.

    Raises
    ------
    ValueError
        The range is empty, would not grow, or ends at 8 EiB or more.

    Examples
    --------
    >>> sizes_between(8, 100, 4)
    (8, 32)
    """
    _check_length(max(begin, end), f"2**{max(begin, end).bit_length() - 1} or more")
    if begin < 1:
        msg = f"a sweep begins at 1 byte or more, not at {begin}"
        raise ValueError(msg)
    if end < begin:
        msg = (
            f"a sweep from {begin} to {end} bytes is empty; the end must not be less than the begin"
        )
        raise ValueError(msg)
    if factor < 2:
        msg = f"the factor between sizes must be 2 or more, not {factor}"
        raise ValueError(msg)
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def physical_memory() -> int:
    """Return the bytes of memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Return the bytes of memory that are free on this machine, or can be made so."""
    info = Path("/proc/meminfo")
    if info.exists():
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", info.read_text("ascii"), re.MULTILINE)
        if found is not None:
            return int(found[1]) << 10
    return physical_memory()


def check_memory(
    sizes: Sequence[int], ranks: int, memory: int, machine: str = "this machine"
) -> None:
    """Refuse a sweep that a machine could not hold.

    Parameters
    ----------
    sizes : sequence of int
        Bytes.
    ranks : int
        How many hold arrays of that size at a time on that machine; of none nothing is asked.
    memory : int
        Bytes that it has.
    machine : str, optional
        What the error text calls it.

    Raises
    ------
    ValueError
        The largest size needs more than that; the text names the largest that fits.
    """
    if not ranks:
        return
    largest = max(sizes, default=0)
    most = memory // (ranks * _COPIES)
    if largest > most:
        msg = (
            f"{_say(largest)} on {ranks} {'rank' if ranks == 1 else 'ranks'} needs "
            f"{_say(largest * _COPIES)} of memory per rank, {_say(largest * _COPIES * ranks)} in all; "
            f"{machine} has {_say(memory)} free; the largest size that fits is {most >> 20}M"
        )
        raise ValueError(msg)


def check_memory_of_hosts(
    sizes: Sequence[int], hosts: Sequence[str], memory: Sequence[float]
) -> None:
    """Refuse a sweep that one of the ranks' machines could not hold; every rank decides alike.

    Parameters
    ----------
    sizes : sequence of int
        Bytes.
    hosts : sequence of str, by rank
        The names of their machines.
    memory : sequence of float, by rank
        Bytes that its machine has.

    Raises
    ------
    ValueError
        As `check_memory`, of the machine that has the least for each of its ranks.
    """
    ranks = Counter(hosts)
    worst = min(range(len(hosts)), key=lambda rank: memory[rank] / ranks[hosts[rank]])
    name = hosts[worst] if len(ranks) > 1 and hosts[worst] else "this machine"
    check_memory(sizes, ranks[hosts[worst]], int(memory[worst]), name)


def _say(nbytes: int) -> str:
    unit = min(6, max(0, nbytes.bit_length() - 1) // 10)
    number = f"{nbytes / (1 << 10 * unit):.1f}".removesuffix(".0")
    return f"{number} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[unit]}"


def check_request(
    op: str, dtype: str, iterations: int, warmup: int = 0, *, ranks: int = 2
) -> np.dtype[Any]:
    """Check what a sweep is asked for, before anything runs; return the dtype.

    Raises
    ------
    ValueError
        An unknown operation or dtype (names the nearest), fewer than one iteration, or fewer ranks
        than the operation needs.

    Examples
    --------
    >>> check_request("all_sum", "float32", 20)
    dtype('float32')
    """
    if op not in OPERATIONS:
        msg = f"there is no sweep of {op!r}{_nearest(str(op), OPERATIONS)}"
        raise ValueError(msg)
    if op == "sendrecv" and ranks < 2:
        msg = "sendrecv needs 2 ranks or more: each sends to the next"
        raise ValueError(msg)
    if iterations < 1 or warmup < 0:
        msg = f"a sweep needs 1 iteration or more, and no negative warm-up ({iterations}, {warmup})"
        raise ValueError(msg)
    if dtype not in DTYPES:
        if dtype == "bfloat16":
            msg = "numpy has no bfloat16 of its own; install ml_dtypes"
        else:
            msg = f"{dtype!r} is no dtype that ranks exchange{_nearest(str(dtype), DTYPES)}"
        raise ValueError(msg)
    return dtype_named(dtype)


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{hint} (there are: {', '.join(names)})"
