"""Hold the product to its promises in seconds, in one place.

Most runs share the machine with other tests, so a test asks only whether a wait ends by its own
event: `BOUND_S` is then `PATIENCE_S`, which is shorter than every fall-back of the product (30 s).
`tests/run promises` sets ``PHALANX_HOLD=1`` and runs the tests marked ``promise`` one by one on an
idle machine: `BOUND_S` is then the 2 s that are promised. Each measured time is appended to
``build/bounds.jsonl``, so a drift from 0.3 s to 1.8 s can be seen.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.places import ROOT

HOLDS = os.environ.get("PHALANX_HOLD") == "1"
PATIENCE_S = 20.0  # for anything that ends by an event; below the product's fall-backs of 30 s
BOUND_S = 2.0 if HOLDS else PATIENCE_S  # on one machine
# For a limit that a test lets pass: there is room in it for whatever is to be done before.
ROOM_S = 10.0
# Limits of the product that a test makes short, to see what comes after them. A machine that stands
# still for as long makes a healthy rank look frozen or late: so they are longer in ordinary runs.
SILENCE_S = 1.0 if HOLDS else 3.0
SLOW_OPERATION_S = 0.4 if HOLDS else 1.5
_RECORD = ROOT / "build" / "bounds.jsonl"


def after_silence_s(silence_s: float) -> float:
    """Return the bound for a frozen or unreachable host: its silence limit plus 0.5 s."""
    return silence_s + (0.5 if HOLDS else PATIENCE_S)


def check(seconds: float, bound_s: float = BOUND_S) -> None:
    """Assert that something took at most ``bound_s``, and record how long it took."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    _RECORD.parent.mkdir(exist_ok=True)
    line = {"test": test, "seconds": round(seconds, 4), "bound_s": bound_s, "holds": HOLDS}
    with _RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    assert seconds <= bound_s, f"took {seconds:.2f} s of {bound_s} s"


@contextmanager
def within(bound_s: float = BOUND_S) -> Iterator[None]:
    """Assert that the body takes at most ``bound_s``, and record how long it takes."""
    begin_s = time.monotonic()
    yield
    check(time.monotonic() - begin_s, bound_s)
