"""Fit the cost model to a sweep, and find changes of algorithm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.protocol import Measurement


@dataclass(frozen=True)
class AlphaBeta:
    """Cost model ``seconds = alpha_s + nbytes * beta_s``.

    ``error`` is the root mean square of the relative errors.
    """

    alpha_s: float
    beta_s: float
    error: float
    n_points: int

    def seconds(self, nbytes: float) -> float:
        """Return the time that the model predicts for a size."""
        return self.alpha_s + nbytes * self.beta_s

    @property
    def rate_gbs(self) -> float:
        """Algorithm bandwidth for large messages in GB/s; infinite without a slope."""
        return 1e-9 / self.beta_s if self.beta_s > 0 else math.inf

    @property
    def half_nbytes(self) -> float:
        """Size in bytes with half that bandwidth: latency and transfer cost equal."""
        return self.alpha_s / self.beta_s if self.beta_s > 0 else math.inf

    @property
    def text(self) -> str:
        """The model in one line of text.

        Examples
        --------
        >>> AlphaBeta(3e-6, 1e-10, 0.07, 12).text
        '3 µs + bytes / 10 GB/s (off by 7 %)'
        """
        rate = f" + bytes / {self.rate_gbs:.3g} GB/s" if self.beta_s > 0 else ""
        return f"{self.alpha_s * 1e6:.3g} µs{rate} (off by {100 * self.error:.0f} %)"


def fit_alpha_beta(nbytes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta | None:
    """Fit the alpha-beta model: a non-negative latency and time per byte.

    Times that are not positive and finite are ignored. Returns None if fewer than two different
    sizes remain.

    Weighted least squares with weight 1 / time, so that errors are relative: times span five
    decades, and without weights the largest size alone would decide the latency. If the
    unconstrained minimum has a negative part, one of the two is set to 0, whichever fits better.
    The model is Hockney's, Parallel Computing 20(3), 1994, doi:10.1016/S0167-8191(06)80021-9.

    Examples
    --------
    >>> found = fit_alpha_beta([0, 1e6, 2e6], [1e-5, 1.1e-4, 2.1e-4])
    >>> round(found.alpha_s, 9), round(found.rate_gbs, 6)
    (1e-05, 10.0)
    """
    n = np.asarray(nbytes, np.float64)
    t = np.asarray(seconds, np.float64)
    kept = np.isfinite(n) & (n >= 0) & np.isfinite(t) & (t > 0)
    n, t = n[kept], t[kept]
    if len(np.unique(n)) < 2:
        return None
    alpha, beta = 1 / t, n / t
    unit = float(beta.max())  # scale the columns (seconds^-1, bytes/s) to one magnitude
    scale = float(alpha.max())
    columns = np.stack([alpha / scale, beta / unit], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(t)), rcond=None)
    if a < 0 or b < 0:
        edges = [(_alone(columns[:, 0]), 0.0), (0.0, _alone(columns[:, 1]))]
        a, b = min(edges, key=lambda edge: _off(columns, edge))
    return AlphaBeta(float(a) / scale, float(b) / unit, _off(columns, (a, b)), len(t))


def _alone(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the least-squares factor that scales one column to ones."""
    return float(column.sum() / (column * column).sum())


def _off(columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], ab: Sequence[float]) -> float:
    return float(np.sqrt(np.mean((columns @ np.asarray(ab) - 1) ** 2)))


def fit_measurements(points: Iterable[Measurement]) -> AlphaBeta | None:
    """Fit the median times of a sweep, without points with errors."""
    good = [m for m in points if m.nbytes > 0 and not m.n_wrong]
    return fit_alpha_beta([m.nbytes for m in good], [m.time_us * 1e-6 for m in good])


@dataclass(frozen=True)
class AlgorithmChange:
    """A change of algorithm between two neighbouring sizes."""

    below: int
    above: int
    before: str
    after: str

    @property
    def nbytes(self) -> float:
        """Position of the change on a logarithmic axis: the geometric mean."""
        return math.sqrt(self.below * self.above)


def algorithm_changes(points: Iterable[Measurement]) -> list[AlgorithmChange]:
    """Return the changes of algorithm, by size; unnamed algorithms are skipped."""
    named = sorted((m for m in points if m.nbytes > 0 and m.algorithm), key=lambda m: m.nbytes)
    return [
        AlgorithmChange(low.nbytes, high.nbytes, low.algorithm, high.algorithm)
        for low, high in itertools.pairwise(named)
        if low.algorithm != high.algorithm and low.nbytes < high.nbytes
    ]


def time_left(
    took: Sequence[tuple[int, float]], sizes: Sequence[int], most_s: float = math.inf
) -> float | None:
    """Estimate the remaining time of a sweep.

    ``took`` has the sizes that were measured, and the total seconds of each; ``sizes`` remain.
    ``most_s`` limits the time of one size: a sweep makes fewer calls when calls are slow, and points
    of equal time would give an unreliable slope. Returns None before the first size. After one size,
    all sizes are assumed to take as long.

    Examples
    --------
    >>> time_left([(8, 0.5)], [32, 128])
    1.0
    """
    if not took:
        return None
    fit = fit_alpha_beta([nbytes for nbytes, _ in took], [seconds for _, seconds in took])
    if fit is None:
        return len(sizes) * sum(seconds for _, seconds in took) / len(took)
    bound = max(most_s, *(seconds for _, seconds in took))
    return sum(min(bound, fit.seconds(nbytes)) for nbytes in sizes)
