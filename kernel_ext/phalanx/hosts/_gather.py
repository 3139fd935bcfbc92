"""Runs one small script on each host, all at once: over ssh, or here on this machine.

It knows processes, time limits, and how their ends are told; what the script says is `_script`'s.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ._host import Host
from ._script import read_outputs, survey_script

__all__ = ["Answer", "ask_hosts", "command_for", "gather", "why_ssh"]

_MOST_CHARACTERS = 4_000_000  # system_profiler of a Mac with a tree of hubs says some 100,000
# Of ssh's errors: what they say, and what mends them.
_HINTS = (
    ("Host key verification failed", "ssh {host} once by hand and answer yes, if the key is right"),
    ("Permission denied", "let it in without a password: ssh-copy-id {host}"),
    ("Could not resolve hostname", "is the name right, and in DNS, /etc/hosts or ~/.ssh/config?"),
    ("Connection refused", "is sshd running there (macOS: Remote Login), on that port?"),
    ("No route to host", "is it switched on, and on this network?"),
    ("timed out", "is it switched on, and does a firewall let ssh through?"),
)


@dataclass(frozen=True)
class Answer:
    """What became of a script on one host: what it put out, or in ``failure`` why there is none."""

    output: str = ""
    status: int = 0
    failure: str = ""


def gather(
    hosts: Sequence[Host],
    local: Collection[Host] = (),
    *,
    timeout_s: float = 20.0,
    sys: str = "/sys",
    asks_sudo: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[dict[str, str]], dict[int, str]]:
    """Survey all hosts at once.

    Parameters
    ----------
    hosts : sequence of Host
        Whom to ask.
    local : collection of Host
        Which of them are this machine, and asked without ssh.
    timeout_s : float
        For all of it.
    sys : str
        Where a Linux host's devices are listed.
    asks_sudo : bool
        Whether to ask, too, if commands can be run as root there: for `run_setup`.
    say : callable
        Hears what is done, line by line.

    Returns
    -------
    list of dict, dict of int to str
        Each host's outputs by command (empty where it failed), and by place why a host failed.
    """
    mark = secrets.token_hex(16)
    script = survey_script(mark, sys, asks_sudo=asks_sudo)
    answers = ask_hosts(hosts, local, [script] * len(hosts), timeout_s, say=say)
    outputs: list[dict[str, str]] = []
    failures = {}
    for place, answer in enumerate(answers):
        found = None if answer.failure else read_outputs(answer.output, mark)
        outputs.append(found or {})
        if answer.failure:
            failures[place] = answer.failure
        elif found is None:
            failures[place] = "its shell has not run our script to the end"
    return outputs, failures


def ask_hosts(
    hosts: Sequence[Host],
    local: Collection[Host],
    scripts: Sequence[str],
    timeout_s: float,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> list[Answer]:
    """Run a script on each host, all at once, and wait for their ends, at most ``timeout_s``."""
    end_s = time.monotonic() + timeout_s
    answers = [Answer(failure="it was not asked")] * len(hosts)
    running: list[subprocess.Popen[bytes]] = []

    def ask(place: int, process: subprocess.Popen[bytes]) -> None:
        answers[place] = _ask(hosts[place], process, scripts[place], end_s, timeout_s)

    threads = []
    try:
        for place, host in enumerate(hosts):
            command = ["sh", "-s"] if host in local else command_for(host, "sh -s", timeout_s)
            say(f"{host.ssh}: {' '.join(command)}")
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is ours; ssh is to end when we say so
                )
            except OSError as error:
                answers[place] = Answer(failure=f"{command[0]} cannot be run: {error.strerror}")
                continue
            running.append(process)
            threads.append(threading.Thread(target=ask, args=(place, process), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
    finally:
        for process in running:
            if process.poll() is None:
                _kill(process)
    return answers


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and what it has started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def command_for(host: Host, run: str, timeout_s: float) -> list[str]:
    """Return the ssh command that runs something on a host; it never asks anything."""
    port = ["-p", str(host.port)] if host.port else []
    patience = f"ConnectTimeout={max(1, int(timeout_s / 2))}"
    options = ["-T", "-o", "BatchMode=yes", "-o", patience, "-o", "LogLevel=ERROR"]
    return ["ssh", *options, *port, "--", host.ssh, run]


def _ask(
    host: Host, process: subprocess.Popen[bytes], script: str, end_s: float, timeout_s: float
) -> Answer:
    try:
        out, err = process.communicate(script.encode(), max(0.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return Answer(failure=f"it has not answered within {timeout_s:g} s")
    output = out.decode("utf-8", "replace")
    if len(output) > _MOST_CHARACTERS:
        return Answer(failure=f"it has said too much: {len(output)} characters")
    if process.returncode == 255 or (process.returncode and not output):
        return Answer(failure=why_ssh(host, err.decode("utf-8", "replace"), process.returncode))
    return Answer(output, process.returncode)


def why_ssh(host: Host, error: str, status: int) -> str:
    """Say why ssh failed: its last line, and what to do."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else f"it ended with exit status {status}"
    for words, hint in _HINTS:
        if any(words in line for line in lines):
            cause = next(line for line in lines if words in line)[:300]
            return f"{cause}; {hint.format(host=host.ssh)}"
    return said
