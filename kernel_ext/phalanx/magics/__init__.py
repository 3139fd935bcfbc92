"""`%distributed` and `%%distributed`: the magics that control a workspace.

The package parses the magics' words, calls the workspace, and shows results.
"""

from __future__ import annotations

from traceback import walk_stack
from typing import Any

from .magics import DistributedMagics

__all__ = ["DistributedMagics", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics for `%load_ext phalanx`.

    Magics of an earlier load are registered again, with the ranks that they had. Without ranks, one
    line says how to start some.
    """
    registry = shell.magics_manager.registry
    magics = registry.get(DistributedMagics.__name__) or DistributedMagics(shell)
    shell.register_magics(magics)
    magics.open()
    if not _is_reloading():
        magics.suggest_start()


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics for `%unload_ext phalanx`; the ranks stay."""
    # `%reload_ext` unloads and loads without a hint, and must change nothing for the ranks.
    if _is_reloading():
        return
    # The object stays in the registry, with the ranks, for another `%load_ext`.
    magics = shell.magics_manager.registry.get(DistributedMagics.__name__)
    if magics is None:
        return
    magics.close()
    for kind in ("line", "cell"):
        for name in ("distributed", "rank", "autodistributed", "local"):
            shell.magics_manager.magics[kind].pop(name, None)


def _is_reloading() -> bool:
    return any(frame.f_code.co_name == "reload_extension" for frame, _ in walk_stack(None))
