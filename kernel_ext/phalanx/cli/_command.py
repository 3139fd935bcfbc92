"""Which words of `phalanx launch` are its own, and where its ranks start.

It looks at words and files; it starts nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["checked_cwd", "split"]


def split(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Divide the words at the first that is no option: from there on they are the command's.

    Parameters
    ----------
    words : sequence of str
        What follows ``phalanx launch``.
    options : mapping of str to bool
        Its options, and whether each takes a value.

    Raises
    ------
    ValueError
        A word before the command looks like an option and is none (names the nearest).

    Examples
    --------
    >>> split(["-n", "2", "run.py", "--verbose", "-n"], {"-n": True, "--verbose": False})
    (['-n', '2'], ['run.py', '--verbose', '-n'])
    >>> split(["-n2", "-m", "pkg", "x"], {"-n": True, "-m": True})
    (['-n2'], ['-m', 'pkg', 'x'])
    >>> split(["--", "-odd"], {})
    ([], ['-odd'])
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return list(words[:place]), list(words[place + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        name, has_value = _option(word)
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "see phalanx launch --help"
            msg = f"there is no option '{name}'; {hint}"
            raise ValueError(msg)
        place += 2 if options[name] and not has_value else 1
    return list(words[:place]), list(words[place:])


def _option(word: str) -> tuple[str, bool]:
    """Return an option's name, and whether the same word holds its value."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        return name, bool(equals)
    return word[:2], len(word) > 2


def checked_cwd(folder: str | None) -> Path:
    """Return where the ranks start; `ValueError` if it is no folder one can be in."""
    cwd = Path(folder or Path.cwd()).absolute()
    if not cwd.is_dir():
        msg = f"--cwd {folder}: there is no such folder"
        raise ValueError(msg)
    if not os.access(cwd, os.X_OK):
        msg = f"--cwd {folder}: you may not go there"
        raise ValueError(msg)
    return cwd
