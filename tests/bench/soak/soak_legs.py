"""The soak's legs: soaks one after the other, each of which can be repeated by itself.

Pure: options in, seeds, numbers of ranks and transports out.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from itertools import cycle

TRANSPORTS = {"any": ("any",), "tcp": ("tcp",), "both": ("any", "tcp")}


@dataclass(frozen=True)
class Leg:
    """A part of a soak, which can be repeated by itself."""

    seed: int
    ranks: int
    transport: str

    def __str__(self) -> str:
        return f"--seed {self.seed} --ranks {self.ranks} --transport {self.transport}"


def legs_of(options: argparse.Namespace) -> list[Leg]:
    """The legs of a soak; seed 0 is drawn, the number of ranks follows from the seed."""
    first = options.seed or random.SystemRandom().randrange(1, 1_000_000)
    least, _, most = options.ranks.partition("-")
    found = []
    for seed, transport in zip(
        range(first, first + options.legs), cycle(TRANSPORTS[options.transport]), strict=False
    ):
        ranks = random.Random(f"ranks:{seed}").randint(*sorted((int(least), int(most or least))))
        found.append(Leg(seed, ranks, transport))
    return found
