"""Which program the words of a launch name, on the host where it is to run.

It looks at words and files; it starts nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["resolve"]


def resolve(
    command: Sequence[str],
    python: str,
    cwd: Path,
    path: str | None = None,
    *,
    is_checked: bool = True,
) -> list[str]:
    """Find the program to run: a script gets its Python, others are looked up as a shell does.

    ``is_checked``: a script has to be there already.

    Raises
    ------
    ValueError
        There is no such file or program, or it cannot be run.
    """
    if not command:
        msg = "no script is given; for example: phalanx launch -n 4 script.py"
        raise ValueError(msg)
    first, *rest = command
    if first == "-m":
        if not rest:
            msg = "-m needs the name of a module"
            raise ValueError(msg)
        return [_program(python, cwd, path), *command]
    if first.endswith((".py", ".pyz")):
        script = cwd / first
        if is_checked and not script.is_file():
            msg = f"there is no script '{script if first != str(script) else first}'"
            raise ValueError(msg)
        return [_program(python, cwd, path), *command]
    return [_program(first, cwd, path), *rest]


def _program(name: str, cwd: Path, path: str | None) -> str:
    if os.sep in name:
        file = cwd / name
        if not file.is_file():
            msg = f"there is no program '{file}'"
            raise ValueError(msg)
        if not os.access(file, os.X_OK):
            msg = f"'{file}' is not executable; a Python script's name ends in .py"
            raise ValueError(msg)
        return str(file)
    found = shutil.which(name, path=path)
    if found is None:
        file = cwd / name
        hint = f"; for the one here say ./{name}" if file.is_file() else ""
        msg = f"there is no program '{name}' on the PATH{hint}"
        raise ValueError(msg)
    return found
