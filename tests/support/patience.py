"""For tests on machines that do other things meanwhile: waits of ours that are about people.

A cell that a kernel runs before others; what comes together is then told by what ranks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Equal lines of several ranks are shown once, if they come within a tenth of a second.
TOGETHER = (
    "import phalanx.workspace.output.printer\nphalanx.workspace.output.printer.WINDOW_S = 20.0"
)


@contextmanager
def shown_at_once(kernel: Any) -> Iterator[Any]:
    """Let lines and displays of this kernel not wait for equal ones of other ranks."""
    window = "phalanx.workspace.output.printer.WINDOW_S"
    assert kernel.run(f"window, {window} = {window}, 0.0").status == "ok"
    yield kernel
    assert kernel.run(f"{window} = window").status == "ok"


# A person who types waits half a second for the ranks' names, and then has the kernel's own.
LONG_HELP = (
    "import phalanx.workspace.cells.rank_help; phalanx.workspace.cells.rank_help.COMPLETE_S = 20.0"
)


def asked_within(seconds: float) -> str:
    """Let a cell's questions wait that long for ranks that run on, instead of a tenth of a second.

    A person would see at the prompt for whom a line is; who types by program answers the first
    rank before the last one has come. Ranks that all ask are asked at once however long it is.
    """
    return f"import phalanx.workspace.cells.prompting\nphalanx.workspace.cells.prompting.GRACE_S = {seconds}"


ASKED_TOGETHER = asked_within(20.0)
