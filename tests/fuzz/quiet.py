"""What Phalanx logs while a fuzzer runs: a line for every refusal, which nobody wants to read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*handlers: logging.Handler) -> Iterator[None]:
    """Keep the log to these handlers meanwhile; then it is as it was, for the tests that follow."""
    log = logging.getLogger("phalanx")
    before = log.propagate
    log.propagate = False
    for handler in handlers or (logging.NullHandler(),):
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in log.handlers[-(len(handlers) or 1) :]:
            log.removeHandler(handler)
        log.propagate = before
