"""`python -m phalanx.distributed`: the far end of `phalanx config --measure`, started over ssh.

Reads lines of JSON, answers with lines of JSON, and ends with its input. The key of the worlds it
joins comes in the first line, never in its arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

import phalanx
from phalanx.errors import DistributedError

from ._pair_probe import time_pair

_PAIR_S = 8.0  # to be connected, and for each exchange: a host that drops packets answers never


class _LineRendezvous:
    """Meets the other rank through whoever holds our input and output."""

    def __init__(self, rank: int, tell: Callable[[dict[str, Any]], None], lines: TextIO) -> None:
        self.rank, self.size = rank, 2
        self._tell, self._lines = tell, lines

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Give a share and take both: whoever runs us sees to it that an answer comes."""
        self._tell({"share": data.hex()})
        answer = json.loads(self._lines.readline() or "{}")
        if "shares" not in answer:
            raise DistributedError(answer.get("error", "the measuring was ended"))
        return [bytes.fromhex(share) for share in answer["shares"]]


def main() -> int:
    """Measure one pair after the other."""

    def tell(record: dict[str, Any]) -> None:
        sys.stdout.write(f"phalanx {json.dumps(record)}\n")
        sys.stdout.flush()

    tell({"version": phalanx.__version__})
    start = json.loads(sys.stdin.readline() or "{}")
    for line in sys.stdin:
        job = json.loads(line)
        meeting = _LineRendezvous(job["rank"], tell, sys.stdin)
        key, names = bytes.fromhex(start["key"]), (job["names"][0], job["names"][1])
        try:
            times = time_pair(meeting, job["address"], key, names, _PAIR_S)
        except (DistributedError, OSError) as error:
            tell({"error": " ".join(str(error).split())})
        else:
            found = [times.latency_us, times.there_gbs, times.back_gbs] if times else []
            tell({"times": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
