"""MLX's hostfile: a list of hosts, or a dict with backend and environment, read and written.

It knows MLX's field names and nothing of files.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from ._host import (
    BACKENDS,
    MOST_RANKS,
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
from ._positions import Node, TwiceError, parse_json

__all__ = ["read_json", "to_json"]

_TOP = ("backend", "envs", "hosts")
_OF_HOST = ("ssh", "ips", "rdma")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_json(hostfile: Hostfile) -> str:
    """Write a hostfile as MLX's, which `read_hostfile` reads as well.

    MLX has neither slots nor ports: a host of n slots stands there n times (none if 0), and a port
    becomes ssh's own ``ssh://host:port``. A host named by its address has that as its address, as
    with ``mlx.launch --hosts``.

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
    """Read MLX's list or dict form.

    Raises
    ------
    HostfileError
        Names each line and field that is not as it should be.
    """
    try:
        root = parse_json(text)
    except json.JSONDecodeError as error:
        fault = Fault(error.lineno, f"column {error.colno}", f"no JSON: {error.msg}")
    except TwiceError as error:
        fault = Fault(error.line, error.key, "it stands twice in one object")
    except RecursionError:
        fault = Fault(0, "", "no JSON of a hostfile: it is nested too deeply")
    except ValueError:
        fault = Fault(0, "", "no JSON of a hostfile: a number in it is too long")
    else:
        return _Reader(source).hostfile(root)
    raise HostfileError(source, [fault])


class _Reader:
    """Reads nodes and keeps what is wrong: all of it is told at once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._faults: list[Fault] = []

    def hostfile(self, root: Node) -> Hostfile:
        backend, envs, hosts = "", [], root
        if isinstance(root.value, dict):
            fields = root.value
            self._check_names("", fields, _TOP)
            hosts = fields.get("hosts", Node(None, root.line))
            backend = self._backend(fields["backend"]) if "backend" in fields else ""
            envs = list(self._each("envs", fields.get("envs"), "KEY=VALUE", self._env))
        if isinstance(hosts.value, list):
            found = [self._host(f"hosts[{i}]", node) for i, node in enumerate(hosts.value)]
            if not found:
                self._say(hosts, "hosts", "expected at least one host, found []")
            if len(found) > MOST_RANKS:
                self._say(hosts, "hosts", f"expected {MOST_RANKS} hosts at most")
        elif hosts.value is None:
            found = []
            self._say(
                hosts, "hosts", 'expected a list such as [{"ssh": "b", "ips": []}], found none'
            )
        else:
            found = []
            text = f'expected a list such as [{{"ssh": "b", "ips": []}}], found {hosts.shown()}'
            self._say(hosts, "hosts", text)
        if self._faults:
            raise HostfileError(self._source, sorted(self._faults, key=lambda fault: fault.line))
        return Hostfile(
            tuple(host for host in found if host is not None),
            backend,
            tuple(env for env in envs if env is not None),
            self._source,
        )

    def _say(self, node: Node, field: str, text: str) -> None:
        self._faults.append(Fault(node.line, field, text))

    def _check_names(self, where: str, fields: dict[str, Node], known: tuple[str, ...]) -> None:
        for name in fields.keys() - set(known):
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(known)}"
            self._say(fields[name], f"{where}{name[:60]}", f"no field of a hostfile; {hint}")

    def _backend(self, node: Node) -> str:
        if node.value == "" or (isinstance(node.value, str) and node.value in BACKENDS):
            return str(node.value)
        near = difflib.get_close_matches(str(node.value).lower(), BACKENDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self._say(node, "backend", f"expected {', '.join(BACKENDS)}, found {node.shown()}{hint}")
        return ""

    def _env(self, field: str, node: Node) -> str | None:
        text = node.value
        is_good = isinstance(text, str) and "\0" not in text
        if is_good and _VARIABLE.fullmatch(text.partition("=")[0]):
            return text if "=" in text else f"{text}="  # MLX exports a bare name as empty
        self._say(node, field, f'expected a text such as "KEY=VALUE", found {node.shown()}')
        return None

    def _each(
        self, field: str, node: Node | None, what: str, read: Callable[[str, Node], Any]
    ) -> Iterable[Any]:
        if node is None:
            return []
        if not isinstance(node.value, list):
            self._say(node, field, f"expected a list of {what}, found {node.shown()}")
            return []
        return [read(f"{field}[{i}]", item) for i, item in enumerate(node.value)]

    def _host(self, where: str, node: Node) -> Host | None:
        fields = node.value
        if not isinstance(fields, dict):
            text = f'expected an object such as {{"ssh": "b", "ips": []}}, found {node.shown()}'
            self._say(node, where, text)
            return None
        self._check_names(f"{where}.", fields, _OF_HOST)
        ssh, port = self._ssh(f"{where}.ssh", fields.get("ssh"), node)
        ips = self._each(f"{where}.ips", fields.get("ips"), "IP addresses", self._ip)
        rdma = self._each(f"{where}.rdma", fields.get("rdma"), "RDMA devices", self._rdma)
        return Host(ssh, tuple(ips), tuple(rdma), port=port)

    def _ssh(self, field: str, node: Node | None, host: Node) -> tuple[str, int]:
        if node is None:
            self._say(host, field, 'expected the name that ssh is given, such as "b", found none')
            return "", 0
        if not isinstance(node.value, str):
            self._say(node, field, f'expected a text such as "user@b", found {node.shown()}')
            return "", 0
        try:
            name, number = parse_host(node.value)
            port = 0 if number is None else parse_port(number)
        except ValueError as error:
            self._say(node, field, str(error))
            return "", 0
        if port and not node.value.startswith("ssh://"):
            text = f"expected a name without a number, found {node.shown()}"
            self._say(node, field, f'{text}; for ssh\'s port write "ssh://{node.value}"')
        return name, port

    def _ip(self, field: str, node: Node) -> str:
        if isinstance(node.value, str) and is_address(node.value):
            return node.value
        text = f'expected an IP address such as "10.0.0.2", without a port, found {node.shown()}'
        self._say(node, field, text)
        return ""

    def _rdma(self, field: str, node: Node) -> Rdma:
        if node.value is None or isinstance(node.value, str):
            return node.value
        items = node.value if isinstance(node.value, list) else [node]
        if all(isinstance(item.value, str) for item in items):
            return tuple(item.value for item in items)
        self._say(node, field, f'expected null, "rdma_en5" or a list of such, found {node.shown()}')
        return None
