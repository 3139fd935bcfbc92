"""Read and write hostfiles of MLX, Open MPI and MPICH.

``b slots=2`` and ``b:2`` in a file mean two ranks. In ``--hosts``, ``b:2222`` is ssh's port,
because ``-n`` gives the number of ranks there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec

from phalanx.errors import did_you_mean
from phalanx.protocol import MOST_RANKS

from .host import (
    BACKENDS,
    Fault,
    Host,
    Hostfile,
    HostfileError,
    Rdma,
    bare_name,
    is_address,
    parse_host,
    parse_port,
)

_FIELDS = ("slots", "max_slots", "max-slots", "user")
_EQUALS = re.compile(rf"\b({'|'.join(_FIELDS)})\s*=\s*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_NBYTES = 4 << 20


class _JsonHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host in MLX's JSON."""

    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[Rdma, ...] = ()


class _JsonFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MLX's JSON: an object, or the list of hosts alone."""

    hosts: tuple[_JsonHost, ...]
    backend: str = ""
    envs: tuple[str, ...] = ()


_EXPECTED = re.compile(r"(.*?)(?: \(byte (\d+)\))?(?: - at `\$(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def parse_hosts(text: str, source: str = "--hosts") -> Hostfile:
    """Parse the value of ``--hosts``, like ``a,b,user@c:2222,[fe80::2]:2222``.

    ``:N`` is ssh's port.

    Raises `HostfileError`, which names each item that is not a host.

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
    """Parse a hostfile of Open MPI or MPICH: one host per line.

    Raises `HostfileError`, which names each invalid line and field.
    """
    hosts: list[Host] = []
    faults: list[Fault] = []
    for line, content in enumerate(text.splitlines(), 1):
        words = _EQUALS.sub(r"\1=", content.partition("#")[0]).split()
        if words:
            host = _read_line(line, words, faults)
            hosts += [host] if host is not None else []
    if not hosts and not faults:
        faults.append(Fault(0, "", "expected one host per line, such as 'b slots=2', found none"))
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
            say(name[:60], f"no field of a hostfile; {did_you_mean(name, _FIELDS)}")
        elif field in said:
            say(name, "the field is given twice")
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


def to_json(hostfile: Hostfile) -> str:
    """Format a hostfile as MLX's JSON, which `read_hostfile` can read.

    MLX has neither slots nor ports: a host with n slots is listed n times (not at all if 0), and a
    port becomes ``ssh://host:port``. A host named by its address gets that address as its ``ips``,
    as with ``mlx.launch --hosts``.

    Examples
    --------
    >>> print(to_json(Hostfile((Host("b", ips=("10.0.0.2",)),))))
    {
      "backend": "",
      "envs": [],
      "hosts": [
        {"ssh": "b", "ips": ["10.0.0.2"], "rdma": []}
      ]
    }
    """
    hosts = ",\n    ".join(
        json.dumps({"ssh": _target(host), "ips": _ips(host), "rdma": host.rdma})
        for host in hostfile.hosts
        for _ in range(1 if host.slots < 0 else host.slots)
    )
    return (
        f'{{\n  "backend": {json.dumps(hostfile.backend)},\n  "envs": {json.dumps(hostfile.envs)},\n'
        f'  "hosts": [{f"{chr(10)}    {hosts}{chr(10)}  " if hosts else ""}]\n}}'
    )


def _target(host: Host) -> str:
    if not host.port:
        return host.ssh
    user, at, name = host.ssh.rpartition("@")
    user = user.replace("%", "%25").replace("@", "%40").replace("\\", "%5C")
    return f"ssh://{user}{at}{f'[{name}]' if ':' in name else name}:{host.port}"


def _ips(host: Host) -> tuple[str, ...]:
    name = bare_name(host.ssh)
    return host.ips or ((name,) if is_address(name) else ())


def read_json(text: str, source: str) -> Hostfile:
    """Parse MLX's list or dict form.

    Raises `HostfileError`, which names the field that has another type than expected, or each field
    with a wrong value.
    """
    try:
        if text.lstrip().startswith("["):
            found = _JsonFile(msgspec.json.decode(text, type=tuple[_JsonHost, ...]))
        else:
            found = msgspec.json.decode(text, type=_JsonFile)
    except ValueError as error:  # msgspec's are among them
        fault = _decoding_fault(text, str(error))
    else:
        return _checked(found, source)
    raise HostfileError(source, [fault])


def _decoding_fault(text: str, said: str) -> Fault:
    """Turn an error of msgspec into a fault with the field's path.

    Examples
    --------
    >>> str(_decoding_fault("", "Expected `str`, got `int` - at `$.hosts[0].ssh`"))
    'hosts[0].ssh: expected str, got int'
    """
    match = _EXPECTED.fullmatch(said)
    why, byte, path = match.groups() if match else (said, None, None)
    line = text.encode(errors="replace")[: int(byte)].count(b"\n") + 1 if byte else 0
    path = (path or "").removeprefix(".")
    path = f"hosts{path}" if path.startswith("[") else path
    if unknown := _UNKNOWN.fullmatch(why):
        known = _JsonHost if path else _JsonFile
        field = f"{path}.{unknown[1][:60]}".removeprefix(".")
        return Fault(
            0, field, f"no field of a hostfile; {did_you_mean(unknown[1], known.__struct_fields__)}"
        )
    why = " ".join(why.replace("`", "").split())[:200]
    return Fault(line, path, f"{why[:1].lower()}{why[1:]}" if not byte else why)


def _checked(found: _JsonFile, source: str) -> Hostfile:
    """Check the values; raise `HostfileError` with all faults."""
    faults: list[Fault] = []
    if found.backend and found.backend not in BACKENDS:
        hint = did_you_mean(found.backend, BACKENDS)
        faults.append(Fault(0, "backend", f"{found.backend[:60]!r} is no backend; {hint}"))
    for i, env in enumerate(found.envs):
        if "\0" in env or not _VARIABLE.fullmatch(env.partition("=")[0]):
            faults.append(Fault(0, f"envs[{i}]", f"expected KEY=VALUE, found {env[:60]!r}"))
    if not 0 < len(found.hosts) <= MOST_RANKS:
        text = f"expected from 1 to {MOST_RANKS} hosts, found {len(found.hosts)}"
        faults.append(Fault(0, "hosts", text))
    hosts = []
    for i, host in enumerate(found.hosts):
        ssh, port = "", 0
        try:
            ssh, number = parse_host(host.ssh)
            port = 0 if number is None else parse_port(number)
        except ValueError as error:
            faults.append(Fault(0, f"hosts[{i}].ssh", str(error)))
        if port and not host.ssh.startswith("ssh://"):
            text = f'expected a name without a number; for the port of ssh write "ssh://{host.ssh}"'
            faults.append(Fault(0, f"hosts[{i}].ssh", text))
        faults += [
            Fault(
                0,
                f"hosts[{i}].ips[{k}]",
                f"expected an IP address, without a port, found {ip[:60]!r}",
            )
            for k, ip in enumerate(host.ips)
            if not is_address(ip)
        ]
        hosts.append(Host(ssh, host.ips, host.rdma, port=port))
    if faults:
        raise HostfileError(source, faults)
    # MLX exports a bare name as empty.
    envs = tuple(env if "=" in env else f"{env}=" for env in found.envs)
    return Hostfile(tuple(hosts), found.backend, envs, source)


def read_hostfile(path: str | os.PathLike[str]) -> Hostfile:
    """Read a hostfile: MLX's JSON, or lines of Open MPI or MPICH.

    In lines, ``b slots=2`` and ``b:2`` mean two ranks, ``slots=0`` leaves a host out, and
    ``max_slots`` limits ``-n``. Names are ssh's, including those of ``~/.ssh/config``. A number
    after an IPv6 address needs brackets around the address.

    Raises `HostfileError`: the file cannot be read or is not a hostfile. The text lists all faults
    with line and field.
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
    """Parse a hostfile's text; ``source`` names the hostfile in errors."""
    begin = text.lstrip()
    # `[fe80::2]:2` is a line of a host, not a JSON list.
    address = begin[1:].partition("]")[0].strip()
    is_json = begin.startswith("{") or (begin.startswith("[") and not _is_ipv6(address))
    return (read_json if is_json else read_text)(text, source)


def _is_ipv6(text: str) -> bool:
    return ":" in text and is_address(text)
