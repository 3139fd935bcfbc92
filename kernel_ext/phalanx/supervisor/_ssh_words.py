"""Why a host could not be started over ssh, in the user's words, with what to do next.

Pure: what ssh and the far side have said goes in, a line comes out. ssh's own words are those of
OpenSSH, which are in English whatever the language is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from phalanx.protocol import HostPlan

from ._process import exit_reason

__all__ = ["Heard", "why_not_up"]

_SSH_FAILED = 255  # ssh's own status; any other is the far command's


class Heard(NamedTuple):
    """What is known of an ssh that has ended: where it had got to, its status, its last words.

    ``is_in``: the far shell has begun our command. ``has_python``: it has found the Python.
    """

    plan: HostPlan
    python: str
    is_in: bool
    has_python: bool
    status: int
    stderr: str


def why_not_up(heard: Heard) -> str:
    """Return one line.

    Examples
    --------
    >>> refused = "ssh: connect to host b port 22: Connection refused"
    >>> why_not_up(Heard(HostPlan("b", 2), "python3", False, False, 255, refused))
    'it refuses ssh at port 22: does sshd run there? (another port: b:PORT)'
    """
    if heard.status < 0:
        return f"its ssh was {exit_reason(heard.status)}"
    if not heard.is_in:
        return _not_in(heard)
    if not heard.has_python:
        return f"there is no {heard.python} there: say with --python where its Python is"
    if re.search(r"No module named '?phalanx\b", heard.stderr):
        return (
            f"phalanx is not installed in {heard.python} there: install it, "
            "or name another Python with --python"
        )
    if 128 < heard.status < _SSH_FAILED:  # as a shell says it
        return f"its supervisor was {exit_reason(128 - heard.status)}"
    line = _last_line(heard.stderr)
    if "Traceback (most recent call last)" in heard.stderr:
        return f"its supervisor failed ({line}): has it the same version of phalanx?"
    if heard.status == _SSH_FAILED:
        return f"its ssh connection was lost{f': {line}' if line else ''}"
    return line or f"its supervisor {exit_reason(heard.status)} and said nothing"


def _not_in(heard: Heard) -> str:
    if heard.status == _SSH_FAILED:
        name, port = heard.plan.name, f"-p {heard.plan.port} " if heard.plan.port else ""
        words = {"name": name, "login": f"ssh {port}{name}", "copy_id": f"ssh-copy-id {port}{name}"}
        for pattern, text in _SSH_WORDS:
            if found := re.search(pattern, heard.stderr):
                return text.format(*(word.lower() for word in found.groups()), **words)
    line = _last_line(heard.stderr)
    if heard.status == _SSH_FAILED:
        return f"ssh failed: {line or 'it said nothing'} (try: ssh {heard.plan.name} true)"
    said = f": {line}" if line else ""
    return f"it lets us in, but runs no commands ({exit_reason(heard.status)}{said})"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


# The first pattern that is found: of a changed key ssh also says that the verification failed.
# {0} is what the pattern has found, {login} and {copy_id} are commands for this host.
_SSH_WORDS = (
    (
        r"Could not resolve hostname ([^\s:]+)",
        "the name {0} does not resolve: is it spelled right, or missing in /etc/hosts?",
    ),
    (
        r"Host key for (\S+) has changed",
        (
            "its host key is another than before: if it was set up anew, "
            "ssh-keygen -R {0}, then {login} once"
        ),
    ),
    (
        r"host key is known for|Host key verification failed",
        "its host key is not known here: {login} once, and say yes",
    ),
    (
        r"Permission denied \(|Too many authentication failures",
        "it lets nobody in without a password: {copy_id}",
    ),
    (
        r"port (\d+): Connection refused",
        "it refuses ssh at port {0}: does sshd run there? (another port: {name}:PORT)",
    ),
    (
        r"(No route to host|Network is unreachable)",
        "there is no way to it ({0}): is it on, and in a network of this machine?",
    ),
    (
        r"timed out",
        "it does not answer ssh: is it on, or does a firewall drop what is sent to its port?",
    ),
    (
        r"kex_exchange_identification|Connection (?:closed|reset) by",
        (
            "its sshd closed the connection before it let us in: too many at once (its MaxStartups), "
            "or is this machine not allowed there? (try: {login} true)"
        ),
    ),
)
