"""`phalanx bench`: sweep a collective and print each measurement."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
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
from phalanx.errors import did_you_mean
from phalanx.hosts import (
    add_host_arguments,
    count_of,
    host_options,
    launcher_lines,
    named_hosts,
    recognise_job,
)
from phalanx.widgets import HEADER, format_measurement, sweep_model, sweep_words

from .machine import machine_header

if TYPE_CHECKING:
    from phalanx.protocol import Measurement
    from phalanx.workspace import Sweep

DESCRIPTION = (
    "Starts ranks on this machine or on several hosts, measures an operation at growing sizes, "
    "verifies every result against numpy and prints nccl-tests' columns. Times are the slowest rank's "
    "medians. Below them: what this machine can do without us, the cost model that fits, and where "
    "the algorithm changes."
)
EPILOG = f"""\
{launcher_lines()}

examples:
  phalanx bench -n 4 --op all_gather -e 256M
  phalanx bench --hosts a,b -n 2
"""


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
    text = "number of ranks (default 2), or of ranks on each host (default: its slots, else 1)"
    add_host_arguments(parser.add_argument, helps={"-n": text})
    parser.add_argument("--ranks", dest="n", type=int, metavar="N", help="the same as -n")
    parser.add_argument(
        "--op",
        type=_one_of("operation", OPERATIONS),
        default="all_sum",
        help=f"{', '.join(OPERATIONS)}; sendrecv: each rank to the next, at once",
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
        default="float32",
        help=f"of the elements: {', '.join(DTYPES)}",
    )
    parser.add_argument(
        "--iters", type=count_of("the number of calls"), default=20, help="timed calls per size"
    )
    parser.add_argument(
        "--transport",
        choices=("any", "tcp"),
        help="tcp: the ranks do not share memory (default: PHALANX_TRANSPORT, else any)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON record per line")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Measure and print; return 1 if any element was wrong."""
    # Check before starting ranks, so that a mistake is reported at once.
    sizes = sizes_between(options.begin, options.end, options.factor)
    note = recognise_job(options, options.n)
    is_here = named_hosts(options) is None and not options.nodes
    if is_here:
        options.n = options.n or 2
        check_request(options.op, options.dtype, options.iters, ranks=options.n)
        check_memory(sizes, options.n, available_memory())
    from phalanx.workspace import TerminalStatus, Workspace

    hosts = host_options(options)
    with Workspace.start(**hosts, linger=0.0, transport=options.transport) as workspace:
        _print_header(options, workspace.size, note)
        sweep = workspace.bench(
            options.op,
            begin=options.begin,
            end=options.end,
            factor=options.factor,
            dtype=options.dtype,
            iterations=options.iters,
        )
        status = TerminalStatus(sys.stderr)
        status.show(f"# {sweep.progress.text}")
        try:
            for measurement in sweep:
                status.lift()
                _print_measurement(measurement, as_json=options.json)
                status.show(f"# {sweep.progress.text}")
        finally:
            status.lift()
    _print_footer(sweep, as_json=options.json)
    n_wrong = sum(m.n_wrong for m in sweep.points)
    if n_wrong:
        print(f"phalanx bench: {n_wrong} wrong elements", file=sys.stderr)
    return 1 if n_wrong else 0


def _print_footer(sweep: Sweep, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"model": sweep_model(sweep.run)}).decode(), flush=True)
    else:
        print("".join(f"# {line}\n" for line in sweep_words(sweep.points, sweep.limits)), end="")


def _print_header(options: argparse.Namespace, n_ranks: int, note: str) -> None:
    machine = machine_header()
    if options.json:
        print(json.dumps({"machine": machine}), flush=True)
        return
    for name, value in machine.items():
        print(f"# {name}: {value}")
    if note:
        print(f"# {note}")
    hosts = options.hosts or options.hostfile or options.launcher
    where = f" on {hosts}" if hosts else ""
    print(f"# {n_ranks} ranks{where}, {options.iters} iterations, median of the slowest rank")
    print(HEADER, flush=True)


def _print_measurement(measurement: Measurement, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(measurement).decode(), flush=True)
    else:
        print(format_measurement(measurement), flush=True)
