"""Compare Phalanx with ipyparallel and jupyter-distributed: time, size, and what a user sees.

Each tool runs 4 ranks behind a real kernel, driven as a front end does; they take turns in each
round. A number is the median over rounds with its spread; other values are shown as they were seen.
jupyter-distributed has an environment of its own: --rival names its Python; without it, it is left
out. JupyterLab's pages, other hosts and MCP are not compared here.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (0, 1, 2)]

from common import arguments, median, print_machine, print_table, spread, write_json
from rows import OWN, SHARED, Seen
from sides import IPyParallel, JupyterDistributed, Phalanx, Side

log = logging.getLogger("rivals")


def measure(side: Side, only: list[str]) -> Seen:
    """Do everything once on one tool; a row that fails says so and the others go on."""
    seen: Seen = {}

    def take(name: str, row: Any, *given: Any) -> bool:
        try:
            seen.update(row(side, *given))
        except Exception as error:
            log.exception("%s: %s failed", side.name, name)
            seen[f"{name} failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
            return False
        return True

    for row in OWN:
        if not only or row.__name__ in only:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                take(row.__name__, row, Path(folder))
    rows = [row for row in SHARED if not only or row.__name__ in only]
    while rows:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            side.open(Path(folder)) as kernel,
        ):
            while rows:
                row = rows.pop(0)
                if not take(row.__name__, row, kernel, Path(folder)):
                    break  # the rest in a fresh kernel
    return seen


def words(values: list[Any]) -> str:
    """A median with its spread, or the values that were seen."""
    if not values:
        return "-"
    if all(isinstance(its, float) for its in values):
        return f"{median(values):.3g} ({spread(values)})" if len(values) > 1 else f"{values[0]:.3g}"
    distinct = list(dict.fromkeys(map(str, values)))
    return " / ".join({"True": "yes", "False": "no"}.get(its, its) for its in distinct)


def main() -> None:
    """Measure the tools in turns and print the table."""
    options = arguments(
        __doc__ or "",
        rounds=(2, "how often everything is done"),
        rival=(
            "",
            "Python of an environment with jupyter-distributed, to measure that, too",
        ),
        only=(
            "",
            "names of rows, with commas: " + ", ".join(row.__name__ for row in (*OWN, *SHARED)),
        ),
    ).parse_args()
    print_machine()
    sides: list[Side] = [Phalanx(), IPyParallel()]
    if options.rival:
        sides.append(JupyterDistributed(options.rival))
    only = options.only.split(",") if options.only else []
    records: list[dict[str, Any]] = []
    for n in range(options.rounds):
        for side in sides if n % 2 == 0 else reversed(sides):
            print(f"round {n + 1}: {side.name}", file=sys.stderr, flush=True)
            records.append({"side": side.name, "round": n, "seen": measure(side, only)})
    names = list(dict.fromkeys(name for record in records for name in record["seen"]))
    rows = []
    for name in names:
        found = [(r["side"], r["seen"][name]) for r in records if name in r["seen"]]
        rows.append(
            [name, *(words([value for its, value in found if its == side.name]) for side in sides)]
        )
    print_table(("what", *(side.name for side in sides)), rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
