"""Define the records of hosts and hostfiles, and parse one host."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from phalanx.protocol import MOST_RANKS

BACKENDS = ("any", "ring", "mpi", "nccl", "jaccl", "jaccl-ring")
_MOST_SHOWN = 8  # faults per error text
_NAME = re.compile(r"[\w.+][\w.+-]*")
_USER = re.compile(r"[\w.+\\][\w.+@\\-]*")
_BRACKETED = re.compile(r"\[([^\]]*)\](?::(.*))?")

Rdma = str | tuple[str, ...] | None


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a hostfile.

    ``ssh`` is the argument of ssh: ``b``, ``user@b``, an address (IPv6 without brackets), or a name
    of ``~/.ssh/config``. ``port`` 0 leaves the port to ssh. ``ips`` are the addresses that its
    ranks use. ``rdma`` is its row of MLX's matrix of devices. ``slots`` is its number of ranks: -1
    if not given, 0 leaves the host out. ``max_slots`` limits the number of ranks.
    """

    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    slots: int = -1
    max_slots: int = MOST_RANKS
    port: int = 0


class Hostfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hosts of a job in rank order; errors name ``source``."""

    hosts: tuple[Host, ...]
    backend: str = ""
    envs: tuple[str, ...] = ()
    source: str = "the hostfile"


@dataclass(frozen=True)
class Fault:
    """One fault. Line 0: no line; empty field: the whole entry."""

    line: int
    field: str
    text: str

    def __str__(self) -> str:
        """Format the fault for the text after the file's name."""
        places = [f"line {self.line}"] * bool(self.line) + [self.field] * bool(self.field)
        return f"{', '.join(places)}: {self.text}" if places else self.text


class HostfileError(ValueError):
    """Error for an unusable hostfile; the text lists the faults.

    ``source`` is the file or the option.
    """

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        super().__init__(source, tuple(faults))
        self.source = source
        self.faults = tuple(faults)

    def __str__(self) -> str:
        """Return one line: the file, then the faults."""
        shown = "; ".join(map(str, self.faults[:_MOST_SHOWN]))
        left = len(self.faults) - _MOST_SHOWN
        return f"{self.source}: {shown}{f'; and {left} more' if left > 0 else ''}"


def is_address(text: str) -> bool:
    """Whether the text is an IP address (scope allowed, no brackets)."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # ipaddress allows any characters in the scope, but an address may be used in a shell command.
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
    """Split a host into ssh's argument and the text after the colon.

    Parameters
    ----------
    word : str
        ``b``, ``user@b``, ``b:N``, ``10.0.0.2``, ``fe80::2``, ``[fe80::2]:N``, or
        ``ssh://user@b:N``, which ssh accepts as well.

    Raises
    ------
    ValueError
        The word has none of these forms; the text says which form is expected.

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
    elif rest.count(":") > 1:  # a number after an IPv6 address needs brackets
        name, number = rest, None
        if not is_address(name):
            msg = f"expected an IPv6 address (before a number in brackets: [fe80::2]:N), found {word!r}"
            raise ValueError(msg)
    else:
        name, colon, after = rest.partition(":")
        number = after if colon else None
        # Reject names that ssh would read as an option or a shell would interpret.
        if not _NAME.fullmatch(name):
            msg = f"expected a host's name or address, found {word!r}"
            raise ValueError(msg)
    return f"{user}{at}{name}", number


def parse_port(text: str) -> int:
    """Parse a port; raise `ValueError` if it is invalid."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        msg = f"expected a port between 1 and 65535, found {text!r}"
        raise ValueError(msg)
    return int(text)
