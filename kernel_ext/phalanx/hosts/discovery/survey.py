"""Survey hosts: ask them, record what they say, and read it.

The survey only reads. A recording is a folder with one folder per host. Each holds one file per
command (`uname.txt`, `ifconfig.txt`, ...). `hosts.json` stores the order of the hosts; a recording
made by hand may omit that file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from phalanx.errors import naming

from ..host import parse_host
from .linux import read_linux
from .macos import read_macos
from .records import Survey
from .remote_exec import HostShells, ShellCommand

# All commands, by the name that their output is stored under.
_COMMANDS = {
    "uname": "echo $SYSTEM",
    # Only run on request: a host may log each use of sudo and mail it to the administrator.
    "sudo": """[ "$(id -u)" = 0 ] || sudo -n true""",
    "system_profiler": "on_macos system_profiler SPThunderboltDataType -json",
    "networksetup": "on_macos networksetup -listallhardwareports",
    "ifconfig": "on_macos ifconfig -a",
    "ibv_devices": "on_macos ibv_devices",
    "ip_addr": "on_linux ip -j addr",
    "sys_net": "on_linux sys_net",
    "sys_thunderbolt": "on_linux sys_thunderbolt",
    "sys_infiniband": "on_linux sys_infiniband",
}
_PRELUDE = r"""
SYSTEM=$(uname -s)
on_macos() { [ "$SYSTEM" = Darwin ] && "$@"; }
on_linux() { [ "$SYSTEM" != Darwin ] && "$@"; }
line() { head -n 1 "$1" 2>/dev/null; }
sys_net() {
    for d in "$SYS"/class/net/*; do
        [ -e "$d/operstate" ] || continue
        printf 'name=%s\toperstate=%s\tspeed=%s\ttype=%s' "${d##*/}" "$(line "$d/operstate")" \
            "$(line "$d/speed")" "$(line "$d/type")"
        driver=$(readlink "$d/device/driver") && printf '\tdriver=%s' "${driver##*/}"
        [ -e "$d/device" ] && printf '\tphysical=1'
        [ -e "$d/bridge" ] && printf '\tbridge=1'
        { [ -e "$d/wireless" ] || [ -e "$d/phy80211" ]; } && printf '\twireless=1'
        printf '\n'
    done
}
sys_thunderbolt() {
    for d in "$SYS"/bus/thunderbolt/devices/*-*; do
        [ -e "$d" ] || continue
        printf 'name=%s\tunique_id=%s' "${d##*/}" "$(line "$d/unique_id")"
        for n in "$d"/net/*; do [ -e "$n" ] && printf '\tnet=%s' "${n##*/}"; done
        printf '\n'
    done
}
sys_infiniband() {
    for p in "$SYS"/class/infiniband/*/ports/*; do
        [ -e "$p/state" ] || continue
        d=${p%/ports/*}
        printf 'name=%s\tport=%s\tstate=%s\trate=%s\tlink_layer=%s\tgid=%s' "${d##*/}" "${p##*/}" \
            "$(line "$p/state")" "$(line "$p/rate")" "$(line "$p/link_layer")" "$(line "$p/gids/0")"
        net=$(line "$p/gid_attrs/ndevs/0")
        for n in "$d"/device/net/*; do [ -n "$net" ] || { [ -e "$n" ] && net=${n##*/}; }; done
        printf '\tnet=%s\n' "$net"
    done
}
"""
_JSON = ("system_profiler", "ip_addr")
_MOST_NBYTES = 4_000_000
_ORDER = "hosts.json"


def gather(
    shells: HostShells,
    *,
    timeout_s: float = 20.0,
    sys: str = "/sys",
    asks_sudo: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[dict[str, str]], dict[int, str]]:
    """Survey all hosts in parallel, for at most ``timeout_s``.

    Returns each host's outputs by command (empty if it failed), and the failures by host index.
    ``sys`` is the directory of a Linux host's devices. ``asks_sudo``: test if commands can run as
    root, for `run_setup`. ``say`` gets the command line that starts each shell.
    """
    asked = [name for name in _COMMANDS if name != "sudo" or asks_sudo]
    script = [ShellCommand(f"{_COMMANDS[name]} 2>/dev/null") for name in asked]
    answers = shells.run(
        dict.fromkeys(range(len(shells.hosts)), script),
        timeout_s,
        prelude=f"SYS={shlex.quote(sys)}\n{_PRELUDE}",
        say=say,
    )
    failures = {place: answer.failure for place, answer in answers.items() if answer.failure}
    outputs = [
        {name: output for name, (status, output) in zip(asked, answer.results, strict=True) if not status}
        if place not in failures
        else {}
        for place, answer in answers.items()
    ]  # fmt: skip
    return outputs, failures


def save_outputs(
    folder: Path, names: Sequence[str], outputs: Sequence[Mapping[str, str]]
) -> list[Path]:
    """Write each host's outputs; return the files. Other files are kept."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, said in zip(names, outputs, strict=True):
        home = folder / _checked(name)
        home.mkdir(exist_ok=True)
        for command in _COMMANDS:
            path = home / _file(command)
            if command in said:
                with naming(path):
                    path.write_text(said[command], encoding="utf-8")
                written.append(path)
            else:
                path.unlink(missing_ok=True)  # outdated, from an earlier recording
    order = folder / _ORDER
    with naming(order):
        order.write_text(json.dumps(list(names)) + "\n", encoding="utf-8")
    return [*written, order]


def load_outputs(folder: Path, names: Sequence[str] = ()) -> tuple[list[str], list[dict[str, str]]]:
    """Read recordings of surveys; return the hosts and their outputs.

    ``names`` are the hosts to read; by default all hosts in the order of ``hosts.json``, or by name
    without that file. Raises `ValueError` if the folder or all outputs of a host are missing.
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
        for command in _COMMANDS:
            path = home / _file(command)
            if path.is_file():
                data = path.read_bytes()[:_MOST_NBYTES]
                said[command] = data.decode("utf-8", "replace")
        if not said:
            files = ", ".join(_file(command) for command in _COMMANDS)
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


def read_survey(name: str, outputs: Mapping[str, str]) -> Survey:
    """Make a survey from the outputs of a host's commands.

    Examples
    --------
    >>> read_survey("b", {"uname": "SunOS"}).notes
    ('its system is SunOS; Linux and macOS (Darwin) can be read',)
    """
    system = outputs.get("uname", "").strip()
    if not system:  # recordings made by hand may omit it
        system = "Darwin" if "system_profiler" in outputs else "Linux"
    if system == "Darwin":
        return read_macos(name, outputs)
    if system == "Linux":
        return read_linux(name, outputs)
    return Survey(
        name, system, notes=(f"its system is {system}; Linux and macOS (Darwin) can be read",)
    )
