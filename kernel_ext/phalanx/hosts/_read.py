"""A hostfile read from its file, whichever of the known forms it has.

It knows files; the forms are read elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from ._host import Fault, Hostfile, HostfileError, is_address
from ._json_form import read_json
from ._text_form import read_text

__all__ = ["read_hostfile", "read_hosts_text"]

_MOST_NBYTES = 4 << 20


def read_hostfile(path: str | os.PathLike[str]) -> Hostfile:
    """Read a hostfile: MLX's JSON (list or dict), or Open MPI's or MPICH's lines.

    In lines ``b slots=2`` and ``b:2`` are two ranks, ``slots=0`` leaves a host out, ``max_slots``
    bounds what ``-n`` may ask for; names are ssh's, of ``~/.ssh/config`` too; a number after an
    IPv6 address needs brackets.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Hostfile
        Its hosts in their order, ``source`` being the path.

    Raises
    ------
    HostfileError
        It cannot be read, or is no hostfile; names lines, fields and what is expected, all at once.
    """
    source = os.fspath(path)
    try:
        with Path(source).open("rb") as file:
            data = file.read(_MOST_NBYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise HostfileError(source, [Fault(0, "", f"it cannot be read: {why}")]) from None
    if len(data) > _MOST_NBYTES:
        raise HostfileError(source, [Fault(0, "", "it is too large for a hostfile")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HostfileError(source, [Fault(line, "", "it is no text (UTF-8)")]) from None
    return read_hosts_text(text, source)


def read_hosts_text(text: str, source: str) -> Hostfile:
    """Read a hostfile's text as `read_hostfile` does; ``source`` is what errors call it."""
    begin = text.lstrip()
    # `[fe80::2]:2` is a line, not a list.
    address = begin[1:].partition("]")[0].strip()
    is_json = begin.startswith("{") or (begin.startswith("[") and not _is_ipv6(address))
    return (read_json if is_json else read_text)(text, source)


def _is_ipv6(text: str) -> bool:
    return ":" in text and is_address(text)
