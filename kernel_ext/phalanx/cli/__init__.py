"""Run the command line ``phalanx``.

This package parses options, prints results and reports a user's mistake in one line. The packages
`workspace`, `hosts` and `supervisor` do the work.
"""

from __future__ import annotations

from .main import main

__all__ = ["main"]
