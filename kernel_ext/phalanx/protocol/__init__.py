"""Export the records and messages that phalanx processes share.

Messages between hosts are imported from `protocol.host`.
"""

from __future__ import annotations

from .activity import *
from .channel import *
from .client import *
from .host_plan import *
from .rank import *
from .rank_stack import *
from .records import *
