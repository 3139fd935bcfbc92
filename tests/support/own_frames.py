"""Frames of the package in a text that a user reads."""

from __future__ import annotations

import re
from pathlib import Path

import phalanx

_PARTS = sorted(
    path.name
    for path in Path(phalanx.__file__).parent.iterdir()
    if path.suffix == ".py" or (path.is_dir() and not path.name.startswith("_"))
)
# With a part of the package, as the folder of a checkout may be called phalanx too.
_FRAME = re.compile(rf"phalanx/(?:{'|'.join(map(re.escape, _PARTS))})\b[^\s]*")


def own_frames(text: str) -> list[str]:
    """Return the places in the package that a text names.

    Examples
    --------
    >>> own_frames("File /lib/phalanx/rank/cell.py:10, in run")
    ['phalanx/rank/cell.py:10,']
    >>> own_frames("File /home/me/phalanx/tests/test_package.py:3")
    []
    """
    return _FRAME.findall(text)
