"""Derivatives of operations between ranks, and those that there cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import phalanx as px

pytest.importorskip("mlx.core")


def scattered() -> list[float]:
    """Each rank weighs its share of the sum by its own number and one."""
    import mlx.core as mx

    world = px.init()
    x = mx.ones(2 * world.size())
    gradient: Any = mx.grad(lambda x: (px.sum_scatter(x) * (world.rank() + 1)).sum())(x)
    return list(gradient.tolist())


def exchanged() -> list[float]:
    """Each rank weighs what it got from rank i by ten times its own number and i."""
    import mlx.core as mx

    world = px.init()
    weights = mx.array([10.0 * world.rank() + i for i in range(world.size())])
    gradient: Any = mx.grad(lambda x: (px.all_to_all(x) * weights).sum())(mx.ones(world.size()))
    return list(gradient.tolist())


def sent() -> str:
    """Rank 0 differentiates what it has sent to rank 1."""
    import mlx.core as mx

    x = mx.ones(2)
    if px.init().rank() == 1:
        return str(px.recv_like(x, 0).tolist())
    if px.init().rank() > 1:
        return ""
    try:
        mx.grad(lambda x: px.send(x, 1).sum())(x)
    except px.NotSupported as error:
        return str(error)
    return "no error"


def test_the_gradient_of_a_share_is_the_shares_of_all(rank_pool):
    for gradient in rank_pool(3).run(scattered):
        assert gradient == [1, 1, 2, 2, 3, 3]


def test_the_gradient_of_an_exchange_goes_back_to_whom_it_came_from(rank_pool):
    for rank, gradient in enumerate(rank_pool(3).run(exchanged)):
        assert gradient == [10 * peer + rank for peer in range(3)]


def test_the_derivative_of_what_was_sent_is_refused(rank_pool):
    refused, received, _ = rank_pool(3).run(sent)
    assert refused.startswith("send has no such derivative")
    assert received == "[1.0, 1.0]"
