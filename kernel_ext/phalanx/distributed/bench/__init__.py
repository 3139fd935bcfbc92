"""Bandwidth sweeps: measure and verify each collective at every size."""

from __future__ import annotations

from .fit import (
    AlgorithmChange,
    AlphaBeta,
    algorithm_changes,
    fit_alpha_beta,
    fit_measurements,
    time_left,
)
from .limits import limits_of_ranks, measure_limits, unknown_limit
from .links import measure_links
from .request import (
    DTYPES,
    OPERATIONS,
    available_memory,
    check_memory,
    check_request,
    parse_size,
    physical_memory,
    sizes_between,
)
from .run_sweep import busbw_factor, sweep
