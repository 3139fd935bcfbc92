"""The end of a supervisor's process, once nothing is left for it to do.

It knows the interpreter, and nothing of what has ended.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

__all__ = ["leave"]


def leave() -> NoReturn:
    """End this process well, and at once.

    Taking an interpreter down module by module gives back what the kernel takes back anyway, in
    20 ms of a core for each supervisor, and who stops a world waits for all of them.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
