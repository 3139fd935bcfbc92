"""The sweep: sizes, factors, what it refuses, and that it counts what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.bench import bench_cells
from distributed.farm.formations import worlds
from msgspec.structs import replace
from support.runs.tiers import deep_but

from phalanx.distributed.bench import (
    DTYPES,
    OPERATIONS,
    busbw_factor,
    check_memory,
    parse_size,
    physical_memory,
    sizes_between,
    sweep,
    unknown_limit,
)
from phalanx.distributed.bench import request as request_module
from phalanx.distributed.bench.request import check_memory_of_hosts


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("00008", 8), ("7E", 7 << 60), ("8", 8), ("8B", 8), ("1K", 1024), ("1k", 1024), ("3KiB", 3072), (" 64M ", 64 << 20),
     ("2 GiB", 2 << 30), ("1T", 1 << 40)],
)  # fmt: skip
def test_parse_size(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "1MB", "1Q", "1 K M", "0x10"])
def test_not_a_size(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9" * 400, "8E", str(1 << 63), f"{1 << 61}K"])
def test_sizes_that_no_machine_can_hold(text):
    with pytest.raises(ValueError, match="longer than any machine can hold") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 120


def test_sizes_between():
    assert sizes_between(8, 64 << 20, 4)[-1] == 32 << 20
    assert sizes_between(8, 8, 2) == (8,)
    assert sizes_between(1, 1 << 62, 1 << 31) == (1, 1 << 31, 1 << 62)


def test_a_range_that_no_machine_can_hold():
    with pytest.raises(
        ValueError, match=r"a message of 2\*\*1328 or more bytes is longer than any"
    ):
        sizes_between(8, 10**400, 4)


@pytest.mark.parametrize("bad", [(0, 8, 2), (-8, 8, 2), (9, 8, 2), (8, 64, 1), (8, 64, 0)])
def test_sizes_that_make_no_sweep(bad):
    with pytest.raises(ValueError, match="sweep|factor"):
        sizes_between(*bad)


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [("all_sum", 2, 1.0), ("all_sum", 4, 1.5), ("all_gather", 4, 0.75), ("broadcast", 8, 1.0),
     ("all_sum", 1, 0.0), ("all_max", 4, 1.5), ("all_min", 3, 4 / 3), ("sum_scatter", 4, 0.75),
     ("all_to_all", 2, 0.5), ("sendrecv", 8, 1.0)],
)  # fmt: skip
def test_busbw_factor(op, ranks, factor):
    assert busbw_factor(op, ranks) == pytest.approx(factor)


def test_absurd_sizes_are_refused():
    check_memory([8, 1 << 20], 4, 24 << 30)
    with pytest.raises(
        ValueError,
        match=r"8 GiB on 4 ranks needs 24 GiB of memory per rank, 96 GiB in all; .* fits is 2048M",
    ):
        check_memory([8 << 30], 4, 24 << 30)
    with pytest.raises(ValueError, match="this machine has"):
        sweep("all_sum", [physical_memory()])


def test_each_machine_holds_the_arrays_of_its_own_ranks():
    hosts, free = ["a", "a", "b"], [12 << 20, 12 << 20, 9 << 20]
    check_memory_of_hosts([8, 2 << 20], hosts, free)  # 12 MiB on a, 6 on b
    with pytest.raises(ValueError, match=r"^3 MiB on 2 ranks .* 18 MiB in all; a has 12 MiB free"):
        check_memory_of_hosts([3 << 20], hosts, free)
    with pytest.raises(ValueError, match=r"^4 MiB on 1 rank .* b has 9 MiB free; .* fits is 3M$"):
        check_memory_of_hosts([4 << 20], hosts, [48 << 20, 48 << 20, 9 << 20])
    with pytest.raises(ValueError, match="this machine has 12 MiB free"):
        check_memory_of_hosts([3 << 20], ["a", "a"], free[:2])
    check_memory([1 << 60], 0, 0)  # of nobody's arrays nothing is asked


def test_ranks_of_two_hosts_refuse_what_one_of_them_cannot_hold(rank_pool):
    world = rank_pool(3, (0, 0, 1))
    assert world.run(bench_cells.refused, 2 << 20, 12 << 20) == [""] * 3
    (said,) = set(world.run(bench_cells.refused, 3 << 20, 12 << 20))
    assert said.startswith("3 MiB on 2 ranks needs 9 MiB of memory per rank, 18 MiB in all; host0 ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"op": "all_som"}, "did you mean all_sum"), ({"dtype": "float33"}, "'float33' is no dtype .* float32"),
     ({"dtype": "object"}, "'object' is no dtype .* complex128"), ({"op": "send"}, "did you mean sendrecv"),
     ({"op": "sendrecv"}, "sendrecv needs 2 ranks or more"),
     ({"iterations": 0}, "1 iteration or more"), ({"warmup": -1}, "no negative warm-up")],
)  # fmt: skip
def test_bad_arguments_are_told_at_once(arguments, words):
    with pytest.raises(ValueError, match=words):
        sweep(**{"op": "all_sum", "sizes": [8], **arguments})


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "sendrecv"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "float64", "int64", "complex64"])
def test_a_sweep_alone(op, dtype):
    measured = list(sweep(op, [1, 100, 300_000], dtype=dtype, iterations=3, warmup=1))
    assert [m.n_wrong for m in measured] == [0] * (1 if op == "barrier" else 3)
    for m in measured:
        assert m.op == op
        assert m.ranks == 1
        assert m.iterations == 3
        assert m.dtype == dtype
        assert m.nbytes == m.count * np.dtype(dtype).itemsize
        assert 0 < m.time_us <= m.p99_us
        assert m.algbw_gbs == pytest.approx(m.nbytes / m.time_us / 1e3)


WORLDS = ("2 arena", "3 tcp", "2+1 composed")
IN_SHARES = ("sum_scatter", "all_gather", "all_to_all")
world = worlds(WORLDS)


def test_a_sweep_of_every_operation(world):
    sizes = [8, 3000, 65_536, 65_540, 1_000_000]
    found = world.run(bench_cells.swept, list(OPERATIONS), ["float32"], sizes)
    # All but the path: a rank alone on its host takes another than those that share one.
    told = [[replace(m, algorithm="", transport="") for m in measured] for measured in found]
    assert all(measured == told[0] for measured in told)
    assert len(found[0]) == 5 * (len(OPERATIONS) - 1) + 1
    size = world.plan.size
    for m in found[0]:
        assert (m.n_wrong, m.ranks) == (0, size)
        shares = size if m.op in IN_SHARES else 1
        assert m.nbytes == m.count * 4 * shares
        assert m.algbw_gbs == pytest.approx(m.nbytes / m.time_us / 1e3)
        assert m.busbw_gbs == pytest.approx(m.algbw_gbs * busbw_factor(m.op, size))


@pytest.mark.parametrize("world", deep_but(["2 arena"], WORLDS), indirect=True)
def test_a_sweep_of_every_dtype(world):
    pytest.importorskip("ml_dtypes")
    assert len(DTYPES) == 15
    ops = [op for op in OPERATIONS if op != "barrier"]
    for measured in world.run(bench_cells.swept, ops, list(DTYPES), [5000]):
        assert {m.dtype for m in measured} == set(DTYPES)
        assert [m for m in measured if m.n_wrong] == []


@pytest.mark.parametrize(
    ("op", "dtype", "nbytes"),
    [
        # Halves are summed in float32, which is nothing that could have come with the header.
        ("all_sum", "bfloat16", 1024),
        ("sum_scatter", "float16", 1024),
        ("all_max", "bfloat16", 1024),
        ("all_sum", "float32", 1024),
        # What all ranks give is more than goes inline or through the mesh, what one gives is not.
        ("all_gather", "float32", 24 << 10),
        ("all_gather", "float32", 120 << 10),
    ],
)
def test_the_algorithm_that_is_named_is_the_one_that_was_taken(world, op, dtype, nbytes):
    for named, seen in world.run(bench_cells.named_and_traced, op, dtype, nbytes):
        assert seen == {named}


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op not in ("barrier", "all_gather")])
def test_one_wrong_element_on_one_rank_is_counted(rank_pool, op):
    world = rank_pool(2)
    assert world.run(bench_cells.sweep_broken, op, 70_000) == [2, 2]  # before and after the timing


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op not in ("barrier", "sendrecv")])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "complex128"])
def test_an_output_that_was_not_written_is_wrong(rank_pool, op, dtype):
    lazy, busy = rank_pool(2).run(bench_cells.idle, op, 40_000, dtype)
    n_elements = 40_000 // np.dtype(dtype).itemsize // (2 if op == "sum_scatter" else 1)
    assert lazy > n_elements * (0.4 if dtype == "bool" else 0.9)
    assert busy == 0


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1), (0, 1, 2)])
def test_the_wire_between_hosts_is_measured(rank_pool, hosts):
    (limit,), *others = rank_pool(len(hosts), hosts).run(bench_cells.limits)
    assert set(others) == {()}  # rank 0 tells
    assert (limit.name, limit.transport) == ("wire between hosts", "tcp")
    assert limit.seconds >= 0.05  # as long as was asked for
    assert limit.nbytes > 0
    assert limit.gbs == pytest.approx(limit.nbytes / limit.seconds / 1e9)
    if max(hosts) == 1:
        assert limit.how.startswith("one plain tcp stream from host0 to host1; ")
    else:
        assert "the slowest of 3 such ways around the hosts" in limit.how


@pytest.mark.parametrize(("transport", "name"), [("any", "memory copy"), ("tcp", "tcp loopback")])
def test_ranks_of_one_host_measure_what_bounds_them_there(rank_pool, transport, name):
    (limit,), none = rank_pool(2, (0, 0), transport).run(bench_cells.limits)
    assert (limit.name, none) == (name, ())
    mean_gbs = limit.nbytes / limit.seconds / 1e9
    if name == "memory copy":
        assert limit.gbs >= mean_gbs / 2  # no median is more than twice the mean
    else:
        assert limit.gbs == pytest.approx(mean_gbs)


@pytest.mark.parametrize(
    ("what", "rank"), [("connect_links", 0), ("connect_links", 1), ("_send_stream", 0)]
)
def test_a_wire_that_lets_no_stream_through_is_not_known(rank_pool, what, rank):
    found = rank_pool(2, (0, 1)).run(bench_cells.limits_without, what, rank)
    assert found == [((unknown_limit("host0", "host1"),), 2), ((), 2)]


def test_a_small_budget_means_fewer_calls():
    (m,) = sweep("all_sum", [1 << 20], iterations=1000, budget_s=1e-6)
    assert m.iterations == 5


def test_shifted_data_is_noticed():
    pattern = request_module._pattern(3, np.dtype("float32"))
    data = request_module._repeat(pattern, 200_000)
    assert request_module._count_other(data, pattern) == 0
    for shift in (1, 1024, 65_536):
        assert request_module._count_other(np.roll(data, shift), pattern) > 150_000
