"""Any call of the contract suite, as hypothesis draws it for a world of so many ranks."""

from __future__ import annotations

from distributed.operations import contract
from distributed.operations.contract import Case
from hypothesis import strategies as st


@st.composite
def any_calls(draw, size: int) -> Case:
    op = draw(st.sampled_from(contract.OPS))
    is_divided = op in contract.DIVIDED
    lengths = st.lists(st.integers(0, 7), min_size=int(is_divided), max_size=3)
    layout = draw(st.sampled_from(contract.LAYOUTS))
    outs = ["none", "new"]
    if layout == "C" and op in contract.IN_PLACE:
        outs.append("x")
    return Case(
        op,
        shape=tuple(draw(lengths)),
        dtype=draw(st.sampled_from(contract.DTYPES)),
        seed=draw(st.integers(0, 2**32)),
        root=draw(st.integers(0, size - 1)),
        layout=layout,
        use_out=draw(st.sampled_from(outs)),
        with_nan=draw(st.booleans()),
        async_op=draw(st.booleans()),
    )
