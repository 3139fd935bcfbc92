"""For tests on machines that do other things meanwhile: waits of ours that are about people.

A cell that a kernel runs before others; what comes together is then told by what ranks do.
"""

from __future__ import annotations

# Equal lines of several ranks are shown once, if they come within a tenth of a second.
TOGETHER = "import phalanx.workspace._merge\nphalanx.workspace._merge.WINDOW_S = 20.0"

# A person who types waits half a second for the ranks' names, and then has the kernel's own.
LONG_HELP = "import phalanx.workspace._help; phalanx.workspace._help.COMPLETE_S = 20.0"
