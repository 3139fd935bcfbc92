"""The rank's side of a cell: beginning and stopping it, its input, its names.

It knows nothing of ipyparallel; the supervisor room puts it into an engine.
"""

from __future__ import annotations

from ._capture import DescriptorCapture
from ._enter import enter
from ._gate import CellGate
from ._input import InputNeed, TypedLines
from ._sweep import publish_sweep

__all__ = ["CellGate", "DescriptorCapture", "InputNeed", "TypedLines", "enter", "publish_sweep"]
