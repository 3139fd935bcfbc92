"""How a file of the user's program is called in error texts.

The native engine walks the frames, once an operation has failed or waits long, and asks for each
file once. It knows files' names, nothing of operations.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["prefix_of"]

_OWN = f"{Path(__file__).parent.parent}{os.sep}"
# Our ranks' name for a cell, ipykernel's and IPython's (as `phalanx.supervisor` knows them).
_CELL = re.compile(r"<cell [0-9a-f]+>|.*/ipykernel_\d+/\d+\.py|<ipython-input-.*>")


def prefix_of(filename: str) -> str:
    """Return what the number of a line follows; "" for a file of ours, which is no user's.

    Examples
    --------
    >>> prefix_of("/home/ann/train.py"), prefix_of("<cell 3f>"), prefix_of(__file__)
    ('train.py:', 'cell line ', '')
    """
    if filename.startswith(_OWN):
        return ""
    return "cell line " if _CELL.fullmatch(filename) else f"{Path(filename).name}:"
