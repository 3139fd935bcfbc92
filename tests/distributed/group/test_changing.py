"""What is written to while it is sent over a wire looks damaged; the error says what it may be."""

from __future__ import annotations

import pytest
from distributed.cells import changing_cells


@pytest.mark.parametrize("op", ["all_sum", "all_gather", "all_to_all", "send"])
def test_an_array_that_changes_while_it_is_sent_is_an_error_that_says_so(rank_pool, op):
    said = rank_pool(2, transport="tcp").run(changing_cells.change_meanwhile, op, 20.0)
    assert "or changed while it was being sent: x must stay as it is" in said[1]
    assert "no error" not in said[0]
