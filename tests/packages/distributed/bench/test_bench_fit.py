"""What a sweep's points say together: the cost model, the time left, where the algorithm changes."""

from __future__ import annotations

import math
from itertools import accumulate, chain, cycle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.ranks.worlds import make_sweep

from phalanx.distributed.bench import (
    algorithm_changes,
    fit_alpha_beta,
    fit_measurements,
    limits,
    measure_limits,
    time_left,
)

SIZES = st.lists(st.integers(0, 1 << 40), min_size=2, max_size=20, unique=True)
ALPHAS, BETAS = st.floats(1e-7, 1e-1), st.floats(1e-13, 1e-6)


@given(SIZES, ALPHAS, BETAS)
def test_a_right_model_is_found(sizes, alpha, beta):
    times = [alpha + n * beta for n in sizes]
    # A latency beside which no size costs anything cannot be told from the rate, nor the reverse.
    assume(min(sizes) * beta < alpha / 10)
    assume(max(sizes) * beta > 10 * alpha)
    fit = fit_alpha_beta(sizes, times)
    assert fit.alpha_s == pytest.approx(alpha, rel=1e-6)
    assert fit.beta_s == pytest.approx(beta, rel=1e-6)
    assert fit.error < 1e-6
    assert fit.half_nbytes == pytest.approx(alpha / beta, rel=1e-5)


@given(SIZES, st.data())
def test_any_times_give_a_model_without_negative_parts(sizes, data):
    times = data.draw(
        st.lists(st.floats(1e-9, 1e3), min_size=len(sizes), max_size=len(sizes)), label="times"
    )
    fit = fit_alpha_beta(sizes, times)
    assert fit.alpha_s >= 0
    assert fit.beta_s >= 0
    assert math.isfinite(fit.alpha_s + fit.beta_s)
    # Nothing at all is off by 1; the least squares are not worse.
    assert 0 <= fit.error <= 1 + 1e-9
    n, t = np.array(sizes, float), np.array(times)
    off = np.sqrt(np.mean(((fit.alpha_s + n * fit.beta_s) / t - 1) ** 2))
    assert fit.error == pytest.approx(off, rel=1e-6, abs=1e-9)
    for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):  # it is a minimum
        other = np.sqrt(np.mean(((a * fit.alpha_s + b * n * fit.beta_s) / t - 1) ** 2))
        assert other >= fit.error * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([], []), ([8], [1.0]), ([8, 8], [1.0, 2.0]), ([8, 16], [1.0, 0.0]), ([8, 16], [1.0, math.nan]),
     ([8, 16], [1.0, -1.0])],
)  # fmt: skip
def test_too_little_for_a_model(sizes, times):
    assert fit_alpha_beta(sizes, times) is None


def test_small_times_count_as_much_as_large_ones():
    # 5 % too slow at 1 GiB is 5 ms; it must not say what 3 µs are.
    sizes = [8 * 4**i for i in range(14)]
    times = [3e-6 + n / 8e9 for n in sizes]
    times[-1] *= 1.05
    assert fit_alpha_beta(sizes, times).alpha_s == pytest.approx(3e-6, rel=0.02)


def test_a_sweep_is_fitted_without_its_wrong_points():
    sweep = make_sweep("all_sum", 12)
    bad = replace(sweep[0], n_wrong=1, time_us=1e6)
    fit = fit_measurements([bad, *sweep[1:], replace(sweep[0], nbytes=0, time_us=1e6)])
    assert fit.alpha_s == pytest.approx(3e-6)
    assert fit.rate_gbs == pytest.approx(8.0)
    assert fit.text == "3 µs + bytes / 8 GB/s (off by 0 %)"


def test_where_the_algorithm_changes():
    names = ["inline", "inline", "", "staged", "ring"]
    sweep = [replace(m, algorithm=a) for m, a in zip(make_sweep("all_sum", 5), names, strict=True)]
    first, second = algorithm_changes(reversed(sweep))
    assert (first.below, first.above, first.before, first.after) == (32, 512, "inline", "staged")
    assert first.nbytes == 128
    assert (second.before, second.after) == ("staged", "ring")
    assert algorithm_changes(sweep[:2]) == []


@given(ALPHAS, BETAS, st.integers(2, 12), st.integers(0, 6))
def test_the_time_left_is_that_of_the_sizes_to_come(alpha, beta, n_done, n_left):
    sizes = [8 * 4**i for i in range(n_done + n_left)]
    cost = [alpha + n * beta for n in sizes]
    took = list(zip(sizes[:n_done], cost, strict=False))
    left = time_left(took, sizes[n_done:])
    assume(sizes[n_done - 1] * beta > alpha or not n_left)
    assert left == pytest.approx(sum(cost[n_done:]), rel=1e-3, abs=1e-12)


def test_no_time_left_is_known_before_the_first_size():
    assert time_left([], [8, 32]) is None
    assert time_left([(8, 0.5)], []) == 0
    # Two sizes that took as long, by and large: the rest is not to take days.
    assert time_left([(8, 10.0), (32, 11.0)], [1 << 20, 1 << 22], most_s=12.0) == 24.0


def test_a_copy_is_timed_by_the_median(monkeypatch):
    """On a clock by which each copy takes 1 ms, but the second 5 ms."""
    steps = chain([0.0, 0.0, 0.001, 0.0, 0.0, 0.005], cycle([0.0, 0.0, 0.001]))
    clock = accumulate(steps)
    monkeypatch.setattr(limits, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    (copy,) = measure_limits(["arena"], seconds=0.0105)
    assert (copy.name, copy.transport) == ("memory copy", "arena")
    n_copies = 7
    assert copy.seconds == pytest.approx(0.011)
    assert copy.nbytes == n_copies * limits._COPY_NBYTES
    assert copy.gbs == pytest.approx(limits._COPY_NBYTES / 0.001 / 1e9)
    assert f"median of {n_copies};" in copy.how


def test_a_stream_is_timed_as_long_as_is_asked():
    (stream,) = measure_limits(["tcp", "mpi"], seconds=0.01)
    assert (stream.name, stream.transport) == ("tcp loopback", "tcp")
    assert stream.gbs == pytest.approx(stream.nbytes / stream.seconds / 1e9)
    assert stream.seconds >= 0.01
    assert measure_limits([], seconds=0.01) == ()
    assert [its.transport for its in measure_limits(seconds=0.001)] == ["arena", "tcp"]
