"""The colours of operations in still pictures; those of the live view are in operations.css.

Constants only.
"""

from __future__ import annotations

__all__ = ["OPERATION_COLOURS", "OTHER"]

# Okabe and Ito's (https://jfly.uni-koeln.de/color/), all_to_all's yellow but for their second orange,
# and more that stay apart from them with every kind of colour vision.
OPERATION_COLOURS = {
    "all_sum": "#0072b2",
    "all_max": "#9c1f1f",
    "all_min": "#a5c95a",
    "all_gather": "#d55e00",
    "sum_scatter": "#009e73",
    "broadcast": "#b0619a",
    "all_to_all": "#d9a200",
    "send": "#3a9bd1",
    "recv": "#7a35d6",
    "barrier": "#5b6673",
    "split": "#33cccc",
}
OTHER = "#8a94a0"  # of an engine that knows more of them
