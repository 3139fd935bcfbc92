"""Build ssh's command line, and explain ssh's errors.

The explanations match OpenSSH's messages, which are English in every locale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_CONNECT_S = 10  # for a host that does not answer; a far and busy host has accepted us by then

# The first pattern that matches is used: for a changed key ssh also says that the verification
# failed. {0} is the pattern's first group, {login} and {copy_id} are commands for this host.
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


def ssh_command(
    name: str, port: int, ssh_args: Sequence[str], far: str, timeout_s: float
) -> list[str]:
    """Return the ssh command line that runs ``far`` on a host.

    ssh uses the first value of an option: ``ours`` overrides the user's options, and the user's
    options override ``weak``.
    """
    ours = {
        "BatchMode": "yes",  # no user can answer a question
        "LogLevel": "ERROR",  # no banner on stderr, but error messages
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "ControlMaster": "no",  # use an existing shared connection, but create none
    }
    weak = {"ConnectTimeout": str(min(_CONNECT_S, math.ceil(timeout_s)))}
    return [
        "ssh",
        *(f"-o{key}={value}" for key, value in ours.items()),
        *(("-p", str(port)) if port else ()),
        *ssh_args,
        *(f"-o{key}={value}" for key, value in weak.items()),
        "--",
        name,
        far,
    ]


def explain_ssh(name: str, port: int, stderr: str) -> str:
    """Explain an ssh that failed before the far shell began.

    Examples
    --------
    >>> explain_ssh("b", 0, "ssh: connect to host b port 22: Connection refused")
    'it refuses ssh at port 22: does sshd run there? (another port: b:PORT)'
    """
    option = f"-p {port} " if port else ""
    words = {"name": name, "login": f"ssh {option}{name}", "copy_id": f"ssh-copy-id {option}{name}"}
    for pattern, text in _SSH_WORDS:
        if found := re.search(pattern, stderr):
            return text.format(*(word.lower() for word in found.groups()), **words)
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    line = lines[-1][:300] if lines else "without an error message"
    return f"ssh failed: {line} (try: {words['login']} true)"
