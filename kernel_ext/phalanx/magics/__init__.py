"""`%distributed` and `%%distributed`: a notebook's words for a workspace.

It parses, calls the workspace, and shows what comes; it decides nothing about ranks.
"""

from __future__ import annotations

from typing import Any

from ._errors import leave_errors, show_errors
from ._magics import DistributedMagics

__all__ = ["DistributedMagics", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: what `%load_ext phalanx` calls."""
    magics = DistributedMagics(shell)
    shell.register_magics(magics)
    magics.open()
    show_errors(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Stop the ranks and take the magics away: what `%unload_ext phalanx` calls."""
    magics = shell.magics_manager.registry.pop(DistributedMagics.__name__, None)
    if magics is not None:
        magics.close()
        leave_errors(shell)
        for kind in ("line", "cell"):
            for name in ("distributed", "autodistributed", "local"):
                shell.magics_manager.magics[kind].pop(name, None)
