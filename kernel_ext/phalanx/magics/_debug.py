"""`%distributed debug 2`: a debugger on the last error of a rank, with this front end's prompt.

It knows the workspace's public calls; what happens at the prompt is the rank's and pdb's.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.workspace import QuietView, View, Workspace, name_ranks

from ._arguments import UsageMistake

__all__ = ["debug_ranks"]

# None (and so no new ``_``) where there is an error to look at.
HAS_ERROR = "None if hasattr(__import__('sys'), 'last_traceback') else 'none'"


def debug_ranks(workspace: Workspace, ranks: Sequence[int], view: View) -> None:
    """Open the post-mortem debugger on these ranks and stay until it is left.

    Raises
    ------
    UsageMistake
        One of them had no error yet.
    """
    answers = workspace.run(HAS_ERROR, ranks=ranks, view=QuietView())
    without = [answer.rank for answer in answers if answer.value is not None]
    if without:
        msg = f"nothing to debug: no cell has failed on {name_ranks(without)} yet"
        raise UsageMistake(msg)
    workspace.run("%debug", ranks=ranks, view=view)
