"""Run one script on every host in parallel, and record the outputs.

A recording is a folder with one folder per host. Each holds one file per command (`uname.txt`,
`ifconfig.txt`, ...). `hosts.json` stores the order of the hosts; a recording made by hand may omit
that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..host import Host, parse_host
from ..ssh import explain_ssh, ssh_command
from .survey import COMMANDS, read_outputs, survey_script

_MOST_CHARACTERS = 4_000_000  # system_profiler of a Mac with a tree of hubs prints some 100,000

_END_S = 1.0  # how long a killed command is waited for
_LOOK_S = 0.1  # how late a Ctrl-C may be noticed

_JSON = ("system_profiler", "ip_addr")
_MOST_NBYTES = 4_000_000
_ORDER = "hosts.json"


@dataclass(frozen=True)
class Answer:
    """Result of a script on one host: the output, or the failure."""

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
    ssh_args: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[dict[str, str]], dict[int, str]]:
    """Survey all hosts in parallel.

    Parameters
    ----------
    hosts : sequence of Host
        Hosts to survey.
    local : collection of Host
        Hosts that are this machine; their script runs without ssh.
    timeout_s : float
        Seconds for the whole survey.
    sys : str
        Directory of a Linux host's devices.
    asks_sudo : bool
        Whether to test if commands can run as root, for `run_setup`.
    ssh_args : sequence of str
        Arguments for ssh.
    say : callable
        Gets one line of progress at a time.

    Returns
    -------
    list of dict, dict of int to str
        Each host's outputs by command (empty if it failed), and the failures by host index.
    """
    mark = secrets.token_hex(16)
    script = survey_script(mark, sys, asks_sudo=asks_sudo)
    answers = ask_hosts(hosts, local, [script] * len(hosts), timeout_s, ssh_args=ssh_args, say=say)
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
    ssh_args: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[Answer]:
    """Run a script on each host in parallel, for at most ``timeout_s``."""
    end_s = time.monotonic() + timeout_s
    answers = [Answer(failure="it was not asked")] * len(hosts)
    running: list[subprocess.Popen[bytes]] = []
    lock = threading.Lock()
    is_over = False

    def ask(place: int, command: list[str]) -> None:
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
            return
        with lock:
            running.append(process)
            if is_over:
                _kill(process)
        answers[place] = _ask(hosts[place], process, scripts[place], end_s, timeout_s)

    threads: list[threading.Thread] = []
    try:
        for place, host in enumerate(hosts):
            far = ssh_command(host.ssh, host.port, ssh_args, "sh -s", timeout_s / 2)
            command = ["sh", "-s"] if host in local else far
            say(f"{host.ssh}: {' '.join(command)}")
            # Each command is started on a thread. A Ctrl-C interrupts the main thread only: there
            # it could fall between the start of a command and the line that notes it.
            threads.append(threading.Thread(target=ask, args=(place, command), daemon=True))
            threads[-1].start()
        for thread in threads:
            # Another thread may take a Ctrl-C, and then nothing wakes this one to raise it.
            while thread.is_alive():
                thread.join(_LOOK_S)
    finally:
        with lock:
            is_over = True
            for process in running:
                if process.poll() is None:
                    _kill(process)
        for thread in threads:
            if thread.ident is not None:
                thread.join(_END_S)
    return answers


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its children, which share a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
        return Answer(failure=explain_ssh(host.ssh, host.port, err.decode("utf-8", "replace")))
    return Answer(output, process.returncode)


def save_outputs(
    folder: Path, names: Sequence[str], outputs: Sequence[Mapping[str, str]]
) -> list[Path]:
    """Write each host's outputs; return the files. Other files are kept.

    Raises
    ------
    OSError
        The folder cannot be written.
    ValueError
        A host's name is not a valid folder name.
    """
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, said in zip(names, outputs, strict=True):
        home = folder / _checked(name)
        home.mkdir(exist_ok=True)
        for command in COMMANDS:
            path = home / _file(command)
            if command in said:
                path.write_text(said[command], encoding="utf-8")
                written.append(path)
            else:
                path.unlink(missing_ok=True)  # outdated, from an earlier recording
    order = folder / _ORDER
    order.write_text(json.dumps(list(names)) + "\n", encoding="utf-8")
    return [*written, order]


def load_outputs(folder: Path, names: Sequence[str] = ()) -> tuple[list[str], list[dict[str, str]]]:
    """Read recordings of surveys.

    Parameters
    ----------
    folder : Path
        Folder written by `save_outputs`.
    names : sequence of str, optional
        Hosts to read, in this order; by default all hosts in the order of ``hosts.json``, or by
        name without that file.

    Raises
    ------
    ValueError
        The folder, a host, or any output of a host is missing.
    """
    if not folder.is_dir():
        msg = f"there is no folder {folder} with recordings; --save {folder} makes one"
        raise ValueError(msg)
    chosen = list(names) or _order(folder)
    if not chosen:
        msg = f"{folder} holds no recordings: one folder per host, with one file per command"
        raise ValueError(msg)
    outputs = []
    for name in chosen:
        home = folder / _checked(name)
        said = {}
        for command in COMMANDS:
            path = home / _file(command)
            if path.is_file():
                data = path.read_bytes()[:_MOST_NBYTES]
                said[command] = data.decode("utf-8", "replace")
        if not said:
            files = ", ".join(_file(command) for command in COMMANDS)
            msg = f"nothing is recorded of {name} in {folder}; there may be: {files}"
            raise ValueError(msg)
        outputs.append(said)
    return chosen, outputs


def _order(folder: Path) -> list[str]:
    path = folder / _ORDER
    if not path.is_file():
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    try:
        names = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        msg = f"{path}: expected a list of the hosts' names"
        raise ValueError(msg)
    return names


def _checked(name: str) -> str:
    try:
        is_name = parse_host(name)[0] == name and name not in {".", ".."}
    except ValueError:
        is_name = False
    if not is_name or "/" in name:
        msg = f"a host's name is expected for its folder, not {name!r}"
        raise ValueError(msg)
    return name


def _file(command: str) -> str:
    return f"{command}.json" if command in _JSON else f"{command}.txt"
