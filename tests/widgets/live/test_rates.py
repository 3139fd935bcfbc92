"""What the pictures say of the last second, made of samples."""

from __future__ import annotations

from phalanx.protocol import RankSample, Samples
from phalanx.widgets.frames.rates import Rates

STEP_NS = 100_000_000


def sample(number: int, operations: int) -> Samples:
    """The rank was inside operations for so many ms, and sent as many bytes."""
    rank = RankSample(
        0, 9, "idle", "", operations, operations, operations * 10**6, 0, {1: (operations, 0)}
    )
    return Samples(number, number * STEP_NS, 0.0, 1, (rank,), (), 0, (), ())


def test_rates_are_of_the_last_second():
    """Ten operations in each tenth of a second, then twenty, then none."""
    rates, operations = Rates(), 0
    said = []
    for number in range(1, 91):
        operations += 10 if number <= 30 else 20 if number <= 60 else 0
        rates.take([sample(number, operations)])
        (rank,) = rates.ranks()
        said.append((rank.arena, rank.sent, rank.share))
    assert said[0] == (0, 0, 0)
    assert said[5] == (100, 100, 0.1)  # of what there is
    assert said[29] == (100, 100, 0.1)
    assert said[39] == said[59] == (200, 200, 0.2)  # a second after the change
    assert said[69] == said[89] == (0, 0, 0)
    assert rates.links() == ()
