"""`phalanx bench`: a sweep on ranks started for it, printed line by line as it is measured.

It parses and prints; the ranks are the workspace's, the times are `phalanx.distributed.bench`'s.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed.bench import (
    DTYPES,
    OPERATIONS,
    available_memory,
    check_memory,
    check_request,
    parse_size,
    sizes_between,
)
from phalanx.widgets import HEADER, format_measurement, sweep_model, sweep_words

from ._machine import machine_header

if TYPE_CHECKING:
    from phalanx.protocol import Measurement
    from phalanx.workspace import Sweep

__all__ = ["DESCRIPTION", "HELP", "PASSES_ON", "add_arguments", "run"]

HELP = "measure an operation by size"
DESCRIPTION = (
    "Starts ranks on this machine, measures an operation at growing sizes, verifies every result "
    "against numpy and prints nccl-tests' columns. Times are the slowest rank's medians. Below them: "
    "what this machine can do without us, the cost model that fits, and where the algorithm changes."
)
PASSES_ON = False
_OP, _DTYPE = "all_sum", "float32"


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _one_of(what: str, names: Sequence[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in names:
            near = difflib.get_close_matches(text, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names)}"
            msg = f"there is no {what} '{text}'; {hint}"
            raise argparse.ArgumentTypeError(msg)
        return text

    return check


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"'{text}' is not a whole number of 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx bench``."""
    parser.add_argument("-n", "--ranks", type=_at_least_one, default=2, help="ranks to start")
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
        type=_at_least_one,
        default=4,
        help="each size is so many times the one before",
    )
    parser.add_argument(
        "--dtype",
        type=_one_of("dtype", DTYPES),
        help=f"of the elements: {', '.join(DTYPES)} (default float32)",
    )
    parser.add_argument("--iters", type=_at_least_one, default=20, help="timed calls per size")
    parser.add_argument(
        "--transport",
        choices=("any", "tcp"),
        default="any",
        help="tcp: the ranks do not share memory",
    )
    parser.add_argument(
        "--tune",
        metavar="FILE",
        type=Path,
        help="measure each algorithm by itself, and write the selector's table (PHALANX_SELECTOR)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON record per line")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Measure and print; 1 if any element was wrong."""
    # Checked before anything is started: a mistake costs no boot.
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
    """Say what stands in the way of a table, in one line; "" for nothing."""
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
    from ._tune import tune

    found = tune(
        options.tune,
        ranks=options.ranks,
        begin=options.begin,
        end=options.end,
        factor=options.factor,
        iterations=options.iters,
        transport=options.transport,
    )
    return 1 if found is None else 0


class _Progress:
    """How far the sweep is, on the last line of a terminal; nothing anywhere else."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, sweep: Sweep) -> None:
        """Write the line."""
        if self._is_shown:
            columns = shutil.get_terminal_size().columns
            print(f"# {sweep.progress.text}"[: columns - 1], end="", file=sys.stderr, flush=True)

    def erase(self) -> None:
        """Make room for a row."""
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
