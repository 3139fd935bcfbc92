"""The door of the pictures: what a world looks like, and how fast it is.

Still pictures only draw records of `phalanx.protocol`; they start and ask nothing.
"""

from __future__ import annotations

from ._bandwidth import bandwidth
from ._still import StillPicture
from ._table import HEADER, format_measurement, format_size, table, table_html
from ._topology import topology

__all__ = [
    "HEADER",
    "StillPicture",
    "bandwidth",
    "format_measurement",
    "format_size",
    "table",
    "table_html",
    "topology",
]
