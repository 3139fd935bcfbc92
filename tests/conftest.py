"""What all tests stand on."""

from __future__ import annotations

import signal

# A shell that runs us in the background has SIGINT ignored, which every process we start would
# inherit: kernels and ranks that cannot be interrupted. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
