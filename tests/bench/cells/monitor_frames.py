"""How many of the frames that the kernel sends the monitor shows, with many ranks made up.

Samples of ranks that do as much as a sample can hold go through the widget's own Python code to
its own module in Chromium, five a second. A frame is shown when the lanes are painted after it
came. The longest pause is what a person who scrolls the page would feel.
"""

from __future__ import annotations

import base64
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from bench.common import arguments, numbers, percentile, print_machine, print_table, write_json
from support.notebooks.browser import chromium_page
from support.notebooks.widget_page import play
from support.ranks.worlds import make_world

from phalanx.protocol import CellTime, LateRank, RankSample, Samples, Span, Waiting
from phalanx.widgets.frames.monitor import MonitorFrameBuilder
from phalanx.widgets.frames.topology import world_of
from phalanx.workspace import SampleView

INTERVAL_S = 0.2
_OPS = ("all_sum", "all_gather", "sum_scatter", "broadcast")

_COUNT = """() => {
    window.seen = { sent: 0, shown: 0, took: [], gap: 0 };
    let is_new = false;
    const clear = CanvasRenderingContext2D.prototype.clearRect;
    CanvasRenderingContext2D.prototype.clearRect = function (...where) {
        if (is_new) window.seen.shown += 1;
        is_new = false;
        return clear.apply(this, where);
    };
    window.show = text => {
        const begun = performance.now();
        window.seen.sent += 1;
        is_new = true;
        window.put("frame", text);
        requestAnimationFrame(() => setTimeout(() => window.seen.took.push(performance.now() - begun)));
    };
    let last = performance.now();
    const tick = now => {
        window.seen.gap = Math.max(window.seen.gap, now - last);
        last = now;
        requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
}"""


def made_up(n_ranks: int, number: int, dice: random.Random) -> Samples:
    """A sample of ranks of which each has as many spans as one can have."""
    now_ns = 10**12 + int(number * INTERVAL_S * 1e9)
    step = int(INTERVAL_S * 1e9) // 16
    ranks = []
    for rank in range(n_ranks):
        spans = []
        for at in range(16):
            begun = now_ns - (16 - at) * step + dice.randrange(step // 4)
            inside = dice.randrange(step // 4, step // 2)
            spans.append(
                Span(16 * number + at, dice.choice(_OPS), begun, begun + inside, inside, inside // 3,
                     1 << 20, 16 * number + at, count=dice.choice((1, 1, 40)))
            )  # fmt: skip
        ranks.append(
            RankSample(rank, 1000 + rank, "busy", "", 16 * number, number << 24, number * 10**8,
                       number * 4 * 10**7, {(rank + 1) % n_ranks: (number << 22, 0)}, tuple(spans))
        )  # fmt: skip
    return Samples(
        number, now_ns, float(number), 1, tuple(ranks),
        (CellTime("c", 10**12, tuple(range(n_ranks)), {}),), 256,
        (LateRank(3 % n_ranks, 200, 10**8, 10**7),),
        (Waiting((0,), (n_ranks - 1,), "all_sum #9", now_ns - 10**9),),
    )  # fmt: skip


def measure(n_ranks: int, seconds: float) -> dict[str, Any]:
    """Send frames for so long, and ask the page what it made of them."""
    lanes, dice = MonitorFrameBuilder(), random.Random(7)
    nbytes = []
    with chromium_page(viewport={"width": 1280, "height": 1100}) as page:
        play(page, "monitor", {"world": msgspec.json.encode(world_of(make_world(1, n_ranks)))})
        page.evaluate(_COUNT)
        session = page.context.new_cdp_session(page)
        # Seconds that the page's own thread computes: also on a machine that others keep busy.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before_s = _task_s(session)
        start_s = time.monotonic()
        number = 0
        while time.monotonic() < start_s + seconds:
            number += 1
            frame = lanes.take(SampleView((made_up(n_ranks, number, dice),)))
            encoded = msgspec.json.encode(frame)
            nbytes.append(len(encoded))
            page.evaluate("text => window.show(text)", base64.b64encode(encoded).decode())
            time.sleep(max(0.0, start_s + number * INTERVAL_S - time.monotonic()))
        page.wait_for_function("() => window.seen.took.length === window.seen.sent")
        seen = page.evaluate("() => window.seen")
        cpu_ms = 1000 * (_task_s(session) - before_s) / number
    return {
        "ranks": n_ranks,
        "frame_nbytes": sum(nbytes) // len(nbytes),
        "cpu_ms": cpu_ms,
        **seen,
    }


def _task_s(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(its["value"] for its in metrics if its["name"] == "TaskDuration")


def main() -> None:
    options = arguments(
        "Frames that the monitor shows of those that are sent, five a second.",
        ranks=("4,64", "numbers of ranks"),
        seconds=(30.0, "how long"),
    ).parse_args()
    print_machine()
    records = [measure(n, options.seconds) for n in numbers(options.ranks)]
    header = (
        "ranks",
        "bytes/frame",
        "sent",
        "shown",
        "cpu ms/frame",
        "median ms",
        "p99 ms",
        "longest pause, ms",
    )
    print_table(
        header,
        [
            (
                its["ranks"],
                its["frame_nbytes"],
                its["sent"],
                its["shown"],
                f"{its['cpu_ms']:.1f}",
                f"{percentile(its['took'], 50):.1f}",
                f"{percentile(its['took'], 99):.1f}",
                f"{its['gap']:.0f}",
            )
            for its in records
        ],
    )
    write_json(options.json, records)


if __name__ == "__main__":
    main()
