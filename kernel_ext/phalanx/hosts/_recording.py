"""Keeps what hosts have said in a folder, and reads it again: planning without the hosts.

A folder has one folder per host and in it one file per command (`uname.txt`, `ifconfig.txt`, ...);
`hosts.json` holds their order. Recordings may be made by hand: only the files are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._host import parse_host
from ._script import COMMANDS

__all__ = ["load_outputs", "save_outputs"]

_JSON = ("system_profiler", "ip_addr")
_MOST_NBYTES = 4_000_000
_ORDER = "hosts.json"


def save_outputs(
    folder: Path, names: Sequence[str], outputs: Sequence[Mapping[str, str]]
) -> list[Path]:
    """Write each host's outputs; returns the files. What was there under other names stays.

    Raises
    ------
    OSError
        The folder cannot be written.
    ValueError
        A host's name is none for a folder.
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
                path.unlink(missing_ok=True)  # of an earlier recording: no longer true
    order = folder / _ORDER
    order.write_text(json.dumps(list(names)) + "\n", encoding="utf-8")
    return [*written, order]


def load_outputs(folder: Path, names: Sequence[str] = ()) -> tuple[list[str], list[dict[str, str]]]:
    """Read recordings.

    Parameters
    ----------
    folder : Path
        As `save_outputs` writes it.
    names : sequence of str, optional
        Which hosts, in which order; by default all of them, in the order of ``hosts.json``, else
        of their names.

    Raises
    ------
    ValueError
        There is no such folder, host, or anything recorded of a host.
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
