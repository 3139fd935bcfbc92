"""``phalanx bench --tune``: measures each algorithm by itself, and writes the selector's table.

Each way is measured on ranks of its own whose table allows no other. It knows which thresholds
part which ways (native/group/selector.hpp), nothing of how they work.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from phalanx.distributed import SELECTOR_VARIABLE, Selector, write_selector
from phalanx.protocol import Measurement
from phalanx.widgets import HEADER, format_measurement

from ._machine import machine_header

__all__ = ["table_from", "tune"]

_ALL = 1 << 62  # no message is longer
_INLINE_MAX = 32 << 10  # a rank's room in the arena's header
_MESH_MAX = 4 << 20  # each rank takes that much of every other; a mesh is long slower by then
_EQUAL = 1.03  # a way that is so little slower is as good: what one sweep may be off
Times = Mapping[int, float]

# By transport: what is measured, and the tables that leave one way only.
_WAYS = {
    "any": {
        "inline": ("all_sum", Selector(inline_bytes=_INLINE_MAX)),
        "staged": ("all_sum", Selector(inline_bytes=0)),
    },
    "tcp": {
        "mesh": ("all_sum", Selector(mesh_bytes=_ALL, direct_bytes=0)),
        "direct": ("all_sum", Selector(mesh_bytes=0, direct_bytes=_ALL)),
        "ring": ("all_sum", Selector(mesh_bytes=0, direct_bytes=0)),
        "mesh broadcast": ("broadcast", Selector(mesh_broadcast_bytes=_ALL)),
        "chain": ("broadcast", Selector(mesh_broadcast_bytes=0)),
    },
}


def tune(
    path: Path, *, ranks: int, begin: int, end: int, factor: int, iterations: int, transport: str
) -> Selector | None:
    """Measure and write; what is measured is printed as it comes.

    None, and nothing written, where an element was wrong: an algorithm that is fast and wrong must
    not be chosen for it.
    """
    from phalanx.workspace import Workspace

    taken: dict[str, Times] = {}
    rows: list[Measurement] = []
    for way, (op, only) in _WAYS[transport].items():
        if way == "direct" and ranks < 3:
            continue  # of two ranks it is the ring
        last = min(end, _MESH_MAX) if way.startswith("mesh") else end
        print(f"# {way}\n{HEADER}", flush=True)
        with _selected(only), Workspace.start(ranks, linger=0.0, transport=transport) as workspace:
            for m in workspace.bench(
                op, begin=begin, end=last, factor=factor, iterations=iterations
            ):
                print(format_measurement(m), flush=True)
                if m.n_wrong:
                    print(
                        f"phalanx bench: {m.n_wrong} wrong elements of {way}; {path} is not written, "
                        "and this machine's results are not to be trusted",
                        file=sys.stderr,
                    )
                    return None
                rows.append(m)
                taken[way] = {**taken.get(way, {}), m.nbytes: m.time_us}
    found = table_from(taken, ranks)
    write_selector(
        path,
        found,
        machine=machine_header(),
        ranks=ranks,
        measured=[
            {"op": m.op, "algorithm": m.algorithm, "nbytes": m.nbytes, "time_us": m.time_us}
            for m in rows
        ],
    )
    print("".join(f"# {name}: {nbytes}\n" for name, nbytes in found.table.items()), end="")
    print(f"# written to {path}; ranks take it from {SELECTOR_VARIABLE}={path.resolve()},")
    print("# which has to be the same on all hosts")
    return found


def table_from(taken: Mapping[str, Times], ranks: int) -> Selector:
    """Find the thresholds from each way's times by size.

    Examples
    --------
    >>> table_from({"inline": {8: 1.0, 64: 9.0}, "staged": {8: 2.0, 64: 3.0}}, 4).table
    {'inline_bytes': 8}
    """

    def last(way: str, *others: str, above: int = 0) -> int:
        """Return the size up to which a way is no slower than any of the others."""
        found = 0
        for nbytes in sorted(set(taken[way]).intersection(*(taken[other] for other in others))):
            if nbytes <= above:
                continue
            best = min(taken[other][nbytes] for other in others)
            if taken[way][nbytes] > _EQUAL * best:
                break
            found = nbytes
        return found

    if "inline" in taken:
        return Selector(inline_bytes=min(last("inline", "staged"), _INLINE_MAX))
    around = [way for way in ("direct", "ring") if way in taken]
    mesh = last("mesh", *around)
    return Selector(
        # The engine's limits are on what a rank sends in all.
        mesh_bytes=mesh * (ranks - 1),
        direct_bytes=last("direct", "ring", above=mesh) if "direct" in taken else None,
        mesh_broadcast_bytes=last("mesh broadcast", "chain") * (ranks - 1),
    )


@contextmanager
def _selected(table: Selector) -> Iterator[None]:
    """Ranks that are started within have this table."""
    before = os.environ.get(SELECTOR_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "only.json"
        write_selector(path, table)
        os.environ[SELECTOR_VARIABLE] = str(path)
        try:
            yield
        finally:
            if before is None:
                del os.environ[SELECTOR_VARIABLE]
            else:
                os.environ[SELECTOR_VARIABLE] = before
