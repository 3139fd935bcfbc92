r"""Draw the README's chart: the time of one `all_sum` by size, for Phalanx and its peers.

    python tests/bench/peers/beside_peers.py --harness FOLDER run --out sums.jsonl --ranks 2,4 \
        --peers phalanx,openmpi,mpich,impi,gloo,mlx-ring --ops all_reduce:fresh
    python tests/bench/peers/chart.py sums.jsonl --output notebooks/guide/pictures/all_sum

writes `all_sum_light.svg` and `all_sum_dark.svg`. A point is the median over launches of the
median over calls; a launch with a wrong result is an error. The date, the machine and the command
stand below the chart.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

NAMES = {
    "phalanx": "Phalanx",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "impi": "Intel MPI",
    "gloo": "Gloo (torch)",
    "mlx-ring": "MLX ring",
}


@dataclass(frozen=True)
class Theme:
    """Colors of a chart: one for text, one for the grid, one for each peer in order of `NAMES`."""

    text: str
    grid: str
    lines: tuple[str, ...]


# Both sets of six hues are told apart with any common color blindness (Okabe and Ito 2008); the
# dark set is lighter, for 4.5:1 against GitHub's dark page.
THEMES = {
    "light": Theme("#1f2328", "#d1d9e0", ("#cf222e", "#0072b2", "#b8860b", "#009e73", "#8250df", "#57606a")),
    "dark": Theme("#f0f6fc", "#3d444d", ("#ff7b72", "#79c0ff", "#e3b341", "#56d364", "#d2a8ff", "#9198a1")),
}  # fmt: skip


def read_medians(path: Path) -> dict[int, dict[str, dict[int, float]]]:
    """Read the harness's lines: microseconds by rank count, peer and size in bytes."""
    launches: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["op"] != "all_reduce" or record["mode"] != "fresh" or record["peer"] not in NAMES:
            continue
        if not record["correct"]:
            msg = f"chart: wrong result of {record['peer']} at {record['bytes']} bytes"
            raise SystemExit(msg)
        key = record["ranks"], record["peer"], record["bytes"]
        launches[key].append(record["median_us"])
    found: dict[int, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for (ranks, peer, nbytes), times in sorted(launches.items()):
        found[ranks][peer][nbytes] = median(times)
    if not found:
        msg = f"chart: {path} has no fresh all_reduce of a known peer"
        raise SystemExit(msg)
    return found


def size_text(nbytes: float, _: int | None = None) -> str:
    """Write a number of bytes in the largest unit below it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.0f} {name}"
    return f"{nbytes:.0f} B"


def time_text(us: float, _: int | None = None) -> str:
    """Write microseconds as µs or ms."""
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} µs"


def draw_panel(axes: Axes, peers: dict[str, dict[int, float]], ranks: int, theme: Theme) -> None:
    """Draw one line a peer."""
    for (peer, name), color in zip(NAMES.items(), theme.lines, strict=True):
        if peer in peers:
            sizes = sorted(peers[peer])
            is_ours = peer == "phalanx"
            axes.plot(
                sizes, [peers[peer][size] for size in sizes], label=name, color=color,
                marker="o", markersize=5 if is_ours else 3, linewidth=2.6 if is_ours else 1.3,
                zorder=3 if is_ours else 2,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26])
    axes.xaxis.set_major_formatter(FuncFormatter(size_text))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(time_text))
    axes.set_title(f"{ranks} ranks", color=theme.text, fontsize=11)
    axes.tick_params(colors=theme.text, labelsize=8, which="both")
    axes.tick_params(axis="x", rotation=40)
    axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_facecolor("none")
    for spine in axes.spines.values():
        spine.set_color(theme.grid)


def draw(found: dict[int, dict[str, dict[int, float]]], caption: str, theme: Theme) -> Figure:
    """Draw one panel for each number of ranks."""
    figure = Figure(figsize=(9.2, 4.4), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (ranks, peers) in zip(panels, sorted(found.items()), strict=True):
        draw_panel(axes, peers, ranks, theme)
    panels[0].set_ylabel("time of one all_sum (float32, new result)", color=theme.text, fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(NAMES),
        frameon=False, labelcolor=theme.text, fontsize=9,
    )  # fmt: skip
    figure.supxlabel(caption, color=theme.text, fontsize=7)
    figure.patch.set_alpha(0)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="lines that beside_peers.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="path without _light.svg")
    parser.add_argument("--caption", required=True, help="date, machine, versions, command")
    options = parser.parse_args()
    found = read_medians(options.results)
    # The same file for the same data: no date and no random ids in it.
    mpl.rcParams["svg.hashsalt"] = "phalanx"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: a quarter of the bytes
    for name, theme in THEMES.items():
        target = options.output.with_name(f"{options.output.name}_{name}.svg")
        draw(found, options.caption, theme).savefig(target, metadata={"Date": None})
        print(target)


if __name__ == "__main__":
    main()
