"""The door of the command line: `phalanx lab`, `launch` and `bench`.

It parses, prints and turns a user's mistakes into one line; the work is done in the rooms below.
"""

from __future__ import annotations

from ._machine import machine_header
from ._main import main

__all__ = ["machine_header", "main"]
