"""What all benchmarks print and compute: the machine, a markdown table, medians.

It measures nothing; each benchmark says above its own code what a number means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from phalanx.cli.machine import machine_header


def arguments(description: str, **options: tuple[Any, str]) -> argparse.ArgumentParser:
    """A parser with options whose type is their default's, and ``--json FILE``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, (default, words) in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=words)
    parser.add_argument("--json", type=Path, help="also write every single measurement there")
    return parser


def numbers(text: str) -> list[int]:
    """``2,4,8`` as numbers."""
    return [int(word) for word in text.split(",")]


def print_machine() -> None:
    """Print where this is measured, as a markdown list."""
    for name, value in machine_header(Path(__file__).parent).items():
        print(f"- {name}: {value}")
    print(flush=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a markdown table with columns of equal width."""
    cells = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ["-" * (width - 1) + ":" for width in widths])
    for row in cells:
        print("| " + " | ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) + " |")


def spread(values: Sequence[float]) -> str:
    """Lowest to highest."""
    return f"{min(values):.3g}-{max(values):.3g}"


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile, also of one value."""
    return (
        quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
    )


def write_json(path: Path | None, records: Sequence[dict[str, Any]]) -> None:
    """Write the records as JSON lines, if a file was asked for."""
    if path is not None:
        lines = [json.dumps({"machine": machine_header(Path(__file__).parent)})]
        path.write_text("\n".join([*lines, *map(json.dumps, records)]) + "\n", encoding="utf-8")


__all__ = [
    "arguments",
    "median",
    "numbers",
    "percentile",
    "print_machine",
    "print_table",
    "spread",
    "write_json",
]
