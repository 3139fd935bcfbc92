"""Phalanx: one notebook cell, run by every rank, on one machine or on many.

This door hands on the public names lazily, so that a rank loads no client and no widget.
"""

from __future__ import annotations

__version__ = "0.1.0"
