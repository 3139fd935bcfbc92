"""Derivatives of operations between ranks, and those that there cannot be."""

from __future__ import annotations

import pytest
from distributed.cells import gradient_cells

pytest.importorskip("mlx.core")


def test_the_gradient_of_a_share_is_the_shares_of_all(rank_pool):
    for gradient in rank_pool(3).run(gradient_cells.scattered):
        assert gradient == [1, 1, 2, 2, 3, 3]


def test_the_gradient_of_an_exchange_goes_back_to_whom_it_came_from(rank_pool):
    for rank, gradient in enumerate(rank_pool(3).run(gradient_cells.exchanged)):
        assert gradient == [10 * peer + rank for peer in range(3)]


def test_the_derivative_of_what_was_sent_is_refused(rank_pool):
    refused, received, _ = rank_pool(3).run(gradient_cells.sent)
    assert refused.startswith("send has no such derivative")
    assert received == "[1.0, 1.0]"
