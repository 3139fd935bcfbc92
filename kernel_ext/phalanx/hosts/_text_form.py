"""Open MPI's and MPICH's hostfiles, line by line, and the list that `--hosts` takes.

``b slots=2`` and ``b:2`` are ranks in a file, as there; in ``--hosts`` ``b:2222`` is ssh's port,
as ranks are said with ``-n``.
"""

from __future__ import annotations

import difflib

from ._host import (
    MOST_RANKS,
    Fault,
    Host,
    Hostfile,
    HostfileError,
    bare_name,
    parse_host,
    parse_port,
)

__all__ = ["parse_hosts", "read_text"]

_FIELDS = ("slots", "max_slots", "max-slots", "user")


def parse_hosts(text: str, source: str = "--hosts") -> Hostfile:
    """Read hosts as ``--hosts`` takes them: ``a,b,user@c:2222,[fe80::2]:2222``.

    ``:N`` is the port of ssh there.

    Raises
    ------
    HostfileError
        Names each item that is no host.

    Examples
    --------
    >>> [(host.ssh, host.port) for host in parse_hosts("a,me@b:2222").hosts]
    [('a', 0), ('me@b', 2222)]
    """
    hosts, faults = [], []
    for place, word in enumerate(text.split(","), 1):
        try:
            hosts.append(_item(word.strip()))
        except ValueError as error:
            faults.append(Fault(0, f"item {place}", str(error)))
    if faults:
        raise HostfileError(source, faults)
    return Hostfile(tuple(hosts), source=source)


def _item(word: str) -> Host:
    if not word:
        msg = "expected a host's name, found nothing"
        raise ValueError(msg)
    ssh, number = parse_host(word)
    return Host(ssh, port=0 if number is None else parse_port(number))


def read_text(text: str, source: str) -> Hostfile:
    """Read Open MPI's and MPICH's forms: a host a line, ``#`` begins a comment.

    Raises
    ------
    HostfileError
        Names each line and field that is not as it should be.
    """
    hosts: list[Host] = []
    faults: list[Fault] = []
    for line, content in enumerate(text.splitlines(), 1):
        words = content.partition("#")[0].split()
        if words:
            host = _read_line(line, words, faults)
            hosts += [host] if host is not None else []
    if not hosts and not faults:
        faults.append(Fault(0, "", "expected a host a line, such as 'b slots=2', found none"))
    if sum(max(1, host.slots) for host in hosts) > MOST_RANKS:
        faults.append(Fault(0, "slots", f"expected {MOST_RANKS} ranks at most"))
    if faults:
        raise HostfileError(source, faults)
    return Hostfile(tuple(hosts), source=source)


def _read_line(line: int, words: list[str], faults: list[Fault]) -> Host | None:
    n_faults = len(faults)

    def say(field: str, text: str) -> None:
        faults.append(Fault(line, field, text))

    ssh = ""
    said: dict[str, int] = {}
    try:
        ssh, number = _first(words[0])
        if number is not None:
            said["slots"] = _count(number)
    except ValueError as error:
        say("host", str(error))
    for word in words[1:]:
        name, equals, value = word.partition("=")
        field = name.replace("-", "_")
        if name not in _FIELDS or not equals:
            near = difflib.get_close_matches(name.lower(), _FIELDS, n=1)
            hint = (
                f"did you mean {near[0]}=?" if near else "expected slots=N, max_slots=N or user=U"
            )
            say(name[:60], f"no field of a hostfile; {hint}")
        elif field in said:
            say(name, "it is said twice")
        else:
            try:
                if field == "user":
                    ssh = parse_host(f"{value}@{bare_name(ssh) or 'b'}")[0]
                else:
                    said[field] = _count(value)
            except ValueError as error:
                say(name, str(error))
    most = said.get("max_slots", MOST_RANKS)
    if said.get("slots", 0) > most:
        say("slots", f"expected max_slots={most} at most, found {said['slots']}")
    if len(faults) > n_faults:
        return None
    return Host(ssh, slots=said.get("slots", -1), max_slots=most)


def _first(word: str) -> tuple[str, str | None]:
    ssh, number = parse_host(word)
    if word.startswith("ssh://"):
        msg = f"expected a name, found {word!r}; a port is for ~/.ssh/config, --ssh-arg or --hosts"
        raise ValueError(msg)
    return ssh, number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= MOST_RANKS):
        msg = f"expected a whole number from 0 to {MOST_RANKS}, found {text[:60]!r}"
        raise ValueError(msg)
    return int(text)
