"""What a hostfile says, as records, and what may be wrong in one.

It knows how a host is written (`user@name`, an address, `ssh://`); the forms of files are others'.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

__all__ = [
    "BACKENDS",
    "MOST_RANKS",
    "Fault",
    "Host",
    "Hostfile",
    "HostfileError",
    "Rdma",
    "bare_name",
    "is_address",
    "parse_host",
    "parse_port",
]

# A form of a file is no place to say "a million ranks": it is a typing mistake.
MOST_RANKS = 65536
BACKENDS = ("any", "ring", "mpi", "nccl", "jaccl", "jaccl-ring")
_FAULTS_TOLD = 8
_NAME = re.compile(r"[\w.+][\w.+-]*")
_USER = re.compile(r"[\w.+\\][\w.+@\\-]*")
_BRACKETED = re.compile(r"\[([^\]]*)\](?::(.*))?")

Rdma = str | tuple[str, ...] | None


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a hostfile.

    ``ssh`` is what ssh is given: ``b``, ``user@b``, an address (IPv6 without brackets), a name of
    ``~/.ssh/config``; ``port`` 0 leaves ssh's own. ``ips`` are the addresses its ranks use,
    ``rdma`` its row of MLX's matrix of devices. ``slots`` are its ranks, -1 where it does not say
    (0: it is left out); ``max_slots`` bounds them.
    """

    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    slots: int = -1
    max_slots: int = MOST_RANKS
    port: int = 0


class Hostfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hosts of a job in the order of its ranks; ``source`` is what error texts call it."""

    hosts: tuple[Host, ...]
    backend: str = ""
    envs: tuple[str, ...] = ()
    source: str = "the hostfile"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where: line 0 is no line, an empty field the whole entry."""

    line: int
    field: str
    text: str

    def __str__(self) -> str:
        """As it stands after the file's name."""
        places = [f"line {self.line}"] * bool(self.line) + [self.field] * bool(self.field)
        return f"{', '.join(places)}: {self.text}" if places else self.text


class HostfileError(ValueError):
    """A hostfile that cannot be used; the text names each place and what belongs there.

    Parameters
    ----------
    source : str
        The file, or the option.
    faults : sequence of Fault
        All that was found.
    """

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        super().__init__(source, tuple(faults))
        self.source = source
        self.faults = tuple(faults)

    def __str__(self) -> str:
        """One line: the file, then fault after fault."""
        told = "; ".join(map(str, self.faults[:_FAULTS_TOLD]))
        left = len(self.faults) - _FAULTS_TOLD
        return f"{self.source}: {told}{f'; and {left} more' if left > 0 else ''}"


def is_address(text: str) -> bool:
    """Tell whether a text is an IPv4 or IPv6 address (with its scope), without brackets."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # ipaddress takes any characters for the scope: a hostfile's may end in a shell.
    scope = text.partition("%")[2]
    return "%" not in text or re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", scope) is not None


def bare_name(ssh: str) -> str:
    """Return the name or address without the user.

    Examples
    --------
    >>> bare_name("me@b"), bare_name("fe80::1")
    ('b', 'fe80::1')
    """
    return ssh.rpartition("@")[2]


def parse_host(word: str) -> tuple[str, str | None]:
    """Divide a host as it is written into what ssh is given, and what stood after its colon.

    Parameters
    ----------
    word : str
        ``b``, ``user@b``, ``b:N``, ``10.0.0.2``, ``fe80::2``, ``[fe80::2]:N``, or
        ``ssh://user@b:N``, which ssh itself takes.

    Raises
    ------
    ValueError
        It is none of these; says what is expected.

    Examples
    --------
    >>> parse_host("me@b:2222"), parse_host("fe80::2"), parse_host("[fe80::2]:4")
    (('me@b', '2222'), ('fe80::2', None), ('fe80::2', '4'))
    """
    is_uri = word.startswith("ssh://")
    user, at, rest = (word[len("ssh://") :] if is_uri else word).rpartition("@")
    user = unquote(user) if is_uri else user
    if at and not _USER.fullmatch(user):
        msg = f"expected user@host, found {word!r}"
        raise ValueError(msg)
    number: str | None
    if bracketed := _BRACKETED.fullmatch(rest):
        name, number = bracketed[1], bracketed[2]
        if ":" not in name or not is_address(name):
            msg = f"expected an IPv6 address in the brackets, found {word!r}"
            raise ValueError(msg)
    elif rest.count(":") > 1:  # an IPv6 address has no place for a number but after brackets
        name, number = rest, None
        if not is_address(name):
            msg = f"expected an IPv6 address (before a number in brackets: [fe80::2]:N), found {word!r}"
            raise ValueError(msg)
    else:
        name, colon, after = rest.partition(":")
        number = after if colon else None
        # Never a name that ssh would read as an option, nor one for a shell.
        if not _NAME.fullmatch(name):
            msg = f"expected a host's name or address, found {word!r}"
            raise ValueError(msg)
    return f"{user}{at}{name}", number


def parse_port(text: str) -> int:
    """Read a port; `ValueError` says what is expected."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        msg = f"expected a port between 1 and 65535, found {text!r}"
        raise ValueError(msg)
    return int(text)
