"""Export the records and messages that phalanx processes share.

Messages between hosts (`protocol.host`) and of scripts (`protocol.scripts`) are imported from there.
"""

from __future__ import annotations

from .activity import *
from .channel import *
from .client import *
from .host_plan import *
from .rank import *
from .records import *
from .stacks import *
