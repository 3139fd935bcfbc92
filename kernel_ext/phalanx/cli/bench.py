"""`phalanx bench`: sweep a collective and print each measurement.

With ``--tune``, each algorithm is measured on a separate set of ranks with a selector table that
allows only this algorithm. The thresholds of the table are those of native/group/selector.hpp.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed import SELECTOR_VARIABLE, Selector, write_selector
from phalanx.distributed.bench import (
    DTYPES,
    OPERATIONS,
    available_memory,
    check_memory,
    check_request,
    parse_size,
    sizes_between,
)
from phalanx.errors import did_you_mean
from phalanx.hosts import count_of
from phalanx.protocol import Measurement
from phalanx.widgets import HEADER, format_measurement, sweep_model, sweep_words

from .common import machine_header

if TYPE_CHECKING:
    from phalanx.protocol import Measurement
    from phalanx.workspace import Sweep

_ALL = 1 << 62  # more than the length of any message
_INLINE_MAX = 32 << 10  # bytes per rank in the arena's header
_MESH_MAX = 4 << 20  # each rank gets this much from every other rank; a mesh is slower well before
_EQUAL = 1.03  # ratio of times that count as equal: the error of one sweep
Times = Mapping[int, float]

# By transport and algorithm: the operation to measure and a table that allows one algorithm only.
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

DESCRIPTION = (
    "Starts ranks on this machine, measures an operation at growing sizes, verifies every result "
    "against numpy and prints nccl-tests' columns. Times are the slowest rank's medians. Below them: "
    "what this machine can do without us, the cost model that fits, and where the algorithm changes."
)

PASSES_ON = False


def tune(
    path: Path, *, ranks: int, begin: int, end: int, factor: int, iterations: int, transport: str
) -> Selector | None:
    """Measure each algorithm, print the rows and write the selector's table.

    If an element was wrong, write nothing and return None: a fast but wrong algorithm must not be
    chosen.
    """
    from phalanx.workspace import Workspace

    taken: dict[str, Times] = {}
    rows: list[Measurement] = []
    for way, (op, only) in _WAYS[transport].items():
        if way == "direct" and ranks < 3:
            continue  # with two ranks it is the same as the ring
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
    """Compute the thresholds from each algorithm's times by size.

    Examples
    --------
    >>> table_from({"inline": {8: 1.0, 64: 9.0}, "staged": {8: 2.0, 64: 3.0}}, 4).table
    {'inline_bytes': 8}
    """

    def last(way: str, *others: str, above: int = 0) -> int:
        """Return the largest size up to which ``way`` is not slower."""
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
        # The engine's limits apply to the total that a rank sends.
        mesh_bytes=mesh * (ranks - 1),
        direct_bytes=last("direct", "ring", above=mesh) if "direct" in taken else None,
        mesh_broadcast_bytes=last("mesh broadcast", "chain") * (ranks - 1),
    )


@contextmanager
def _selected(table: Selector) -> Iterator[None]:
    """Give this table to ranks started inside the block."""
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


_OP, _DTYPE = "all_sum", "float32"


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _one_of(what: str, names: Sequence[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in names:
            msg = f"there is no {what} '{text}'; {did_you_mean(text, names)}"
            raise argparse.ArgumentTypeError(msg)
        return text

    return check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx bench``."""
    parser.add_argument(
        "-n", "--ranks", type=count_of("the number of ranks"), default=2, help="ranks to start"
    )
    parser.add_argument(
        "--op",
        type=_one_of("operation", OPERATIONS),
        help=f"{', '.join(OPERATIONS)} (default all_sum); sendrecv: each rank to the next, at once",
    )
    parser.add_argument("-b", "--begin", type=_size, default="8", help="smallest size")
    parser.add_argument("-e", "--end", type=_size, default="64M", help="largest size")
    parser.add_argument(
        "-f",
        "--factor",
        type=count_of("the factor"),
        default=4,
        help="each size is so many times the one before",
    )
    parser.add_argument(
        "--dtype",
        type=_one_of("dtype", DTYPES),
        help=f"of the elements: {', '.join(DTYPES)} (default float32)",
    )
    parser.add_argument(
        "--iters", type=count_of("the number of calls"), default=20, help="timed calls per size"
    )
    parser.add_argument(
        "--transport",
        choices=("any", "tcp"),
        help="tcp: the ranks do not share memory (default: PHALANX_TRANSPORT, else any)",
    )
    parser.add_argument(
        "--tune",
        metavar="FILE",
        type=Path,
        help="measure each algorithm by itself, and write the selector's table (PHALANX_SELECTOR)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON record per line")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Measure and print; return 1 if any element was wrong."""
    # Check before starting ranks, so that a mistake is reported at once.
    if options.tune is not None and (problem := _not_with_tune(options)):
        print(f"phalanx bench: {problem}", file=sys.stderr)
        return 2
    options.op, options.dtype = options.op or _OP, options.dtype or _DTYPE
    sizes = sizes_between(options.begin, options.end, options.factor)
    check_request(options.op, options.dtype, options.iters, ranks=options.ranks)
    check_memory(sizes, options.ranks, available_memory())
    if options.tune is not None:
        return _tune(options)
    from phalanx.workspace import Workspace

    _print_header(options)
    with Workspace.start(options.ranks, linger=0.0, transport=options.transport) as workspace:
        sweep = workspace.bench(
            options.op,
            begin=options.begin,
            end=options.end,
            factor=options.factor,
            dtype=options.dtype,
            iterations=options.iters,
        )
        progress = _Progress()
        progress.show(sweep)
        try:
            for measurement in sweep:
                progress.erase()
                _print_measurement(measurement, as_json=options.json)
                progress.show(sweep)
        finally:
            progress.erase()
    _print_footer(sweep, as_json=options.json)
    n_wrong = sum(m.n_wrong for m in sweep.points)
    if n_wrong:
        print(f"phalanx bench: {n_wrong} wrong elements", file=sys.stderr)
    return 1 if n_wrong else 0


def _not_with_tune(options: argparse.Namespace) -> str:
    """Say why no table can be measured; "" if one can."""
    given = [f"--{name}" for name in ("op", "dtype", "json") if getattr(options, name)]
    if given:
        return (
            f"--tune measures all_sum and broadcast of {_DTYPE} and prints rows; "
            f"leave out {' and '.join(given)}"
        )
    if options.ranks < 2:
        return "one rank has no algorithm to choose; give -n 2 or more"
    if not options.tune.resolve().parent.is_dir():
        return f"there is no folder for {options.tune}"
    return ""


def _tune(options: argparse.Namespace) -> int:
    from phalanx.workspace import chosen_transport

    found = tune(
        options.tune,
        ranks=options.ranks,
        begin=options.begin,
        end=options.end,
        factor=options.factor,
        iterations=options.iters,
        transport=chosen_transport(options.transport),
    )
    return 1 if found is None else 0


class _Progress:
    """Shows the sweep's progress on a terminal's last line, nothing elsewhere."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, sweep: Sweep) -> None:
        """Write the line."""
        if self._is_shown:
            columns = shutil.get_terminal_size().columns
            print(f"# {sweep.progress.text}"[: columns - 1], end="", file=sys.stderr, flush=True)

    def erase(self) -> None:
        """Erase the line before a row is printed."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_footer(sweep: Sweep, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"model": sweep_model(sweep.run)}).decode(), flush=True)
    else:
        print("".join(f"# {line}\n" for line in sweep_words(sweep.points, sweep.limits)), end="")


def _print_header(options: argparse.Namespace) -> None:
    machine = machine_header()
    if options.json:
        print(json.dumps({"machine": machine}), flush=True)
        return
    for name, value in machine.items():
        print(f"# {name}: {value}")
    print(f"# {options.ranks} ranks, {options.iters} iterations, median of the slowest rank")
    print(HEADER, flush=True)


def _print_measurement(measurement: Measurement, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(measurement).decode(), flush=True)
    else:
        print(format_measurement(measurement), flush=True)
