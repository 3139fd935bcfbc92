"""Starting a host's supervisor over ssh: one ssh for each host, and why it did not get in.

It knows ssh's command line, and its words: OpenSSH says them in English whatever the language is.
"""

from __future__ import annotations

import math
import re
import shlex
import sys

from phalanx.protocol import HostPlan, RemoteOptions

from ._far_command import SCRIPT, FarCommand, Heard, Way, last_line, launch_by
from ._host_process import HostStart
from ._process import exit_reason

__all__ = ["launch_over_ssh", "ssh_command", "why_not_in"]

_CONNECT_S = 10  # to a host that does not answer; one that is far and busy has let us in by then
_SSH_FAILED = 255

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


async def launch_over_ssh(asked: HostStart) -> FarCommand:
    """Start the supervisor of a host over ssh and wait until it runs there.

    Raises
    ------
    HostUnreachable
        It does not; the text says why, and what to do next.
    """
    python = asked.remote.python or sys.executable
    far = f"exec /bin/sh -c {shlex.quote(SCRIPT)} phalanx {shlex.quote(python)}"
    way = Way(
        asked.plan,
        python,
        ssh_command(asked.plan, asked.remote, far),
        missing="there is no ssh on this machine: install OpenSSH's client",
        waiting="ssh has not got in yet",
        why=why_not_in,
    )
    return await launch_by(way, asked)


def ssh_command(plan: HostPlan, remote: RemoteOptions, far: str) -> list[str]:
    """Return ssh's command line for a far one: of what is said twice ssh takes the first."""
    ours = {
        "BatchMode": "yes",  # there is nobody to ask
        "LogLevel": "ERROR",  # no banner on stderr, but why it failed
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "ControlMaster": "no",  # it may use a connection that is there, but keeps none for others
    }
    weak = {"ConnectTimeout": str(min(_CONNECT_S, math.ceil(remote.timeout_s)))}
    return [
        "ssh",
        *(f"-o{key}={value}" for key, value in ours.items()),
        *(("-p", str(plan.port)) if plan.port else ()),
        *remote.ssh_args,
        *(f"-o{key}={value}" for key, value in weak.items()),
        "--",
        plan.name,
        far,
    ]


def why_not_in(heard: Heard) -> str:
    """Return a line on an ssh that has ended before it could run anything there.

    Examples
    --------
    >>> refused = "ssh: connect to host b port 22: Connection refused"
    >>> why_not_in(Heard("ssh", HostPlan("b", 2), "python3", False, False, 255, refused))
    'it refuses ssh at port 22: does sshd run there? (another port: b:PORT)'
    """
    name, port = heard.plan.name, f"-p {heard.plan.port} " if heard.plan.port else ""
    words = {"name": name, "login": f"ssh {port}{name}", "copy_id": f"ssh-copy-id {port}{name}"}
    line = last_line(heard.stderr)
    if heard.status != _SSH_FAILED:
        said = f": {line}" if line else ""
        return f"it lets us in, but runs no commands ({exit_reason(heard.status)}{said})"
    for pattern, text in _SSH_WORDS:
        if found := re.search(pattern, heard.stderr):
            return text.format(*(word.lower() for word in found.groups()), **words)
    return f"ssh failed: {line or 'it said nothing'} (try: {words['login']} true)"
