"""What is compared: each function does one thing on one tool, and returns what it measured and saw.

Numbers are medians later; a text or truth value is what a user sees. A function that needs a kernel
of its own takes the folder; the others share one kernel a round. Values are checked where a tool computes some:
"right" is False otherwise.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
import psutil
from nbconvert import HTMLExporter
from sides import ALL, N_RANKS, CountingKernel, Side
from support.notebooks.kernel_driver import CellResult, RunningCell

Seen = dict[str, Any]
RANK = "import os\nrank = int(os.environ['RANK'])\n"
LIMIT_S = 25.0  # a tool that takes longer than this hangs, for a user


def _run(side: Side, kernel: CountingKernel, code: str, **how: Any) -> CellResult:
    return kernel.run(side.cell(RANK + code), timeout=120, **how)


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _end(cell: RunningCell, limit_s: float = LIMIT_S) -> str:
    """Wait for a cell; return its status, or that it hangs."""
    try:
        return cell.result(limit_s).status
    except (TimeoutError, ConnectionError):
        return "hangs"


def _wait_in(kernel: CountingKernel, folder: Path, name: str, n: int = N_RANKS) -> None:
    """Wait until each rank has made its file, as `IN` does."""
    deadline = time.monotonic() + LIMIT_S
    while len(list(folder.glob(f"{name}-*"))) < n and time.monotonic() < deadline:
        kernel.take(0.02)


def _in(folder: Path, name: str) -> str:
    return f"open({str(folder)!r} + f'/{name}-{{rank}}', 'w').close()\n"


def _pictures(result: CellResult) -> int:
    """Count what a front end without extensions shows as a picture."""
    public = [o["data"] for o in result.outputs if "data" in o]
    return sum(("image/png" in data) + data.get("text/html", "").count("<img") for data in public)


# -- of a kernel of its own --------------------------------------------------------------------


def start(side: Side, folder: Path) -> Seen:
    """From nothing to the first answer of all ranks; then what it holds, and what a shutdown leaves."""
    begun = time.perf_counter()
    with side.open(folder) as kernel:
        result = _run(side, kernel, "print(rank * 11)")
        took = time.perf_counter() - begun
        right = side.texts(result) == {rank: f"{rank * 11}\n" for rank in ALL}
        family = kernel.family()
        pss = sum(process.memory_full_info().pss for process in family) / 1e6
        before = _cpu_s(family)
        time.sleep(5)
        idle = (_cpu_s(family) - before) / 5 * 100
    time.sleep(1)
    return {
        "start to first answer, s": took,
        "first answer is right": right,
        "processes": len(family),
        "memory (PSS), MB": pss,
        "idle CPU, %": idle,
        "processes 1 s after a shutdown": len(kernel.family()),
    }


def _cpu_s(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family if process.is_running())


def kernel_killed(side: Side, folder: Path) -> Seen:
    """SIGKILL to the notebook's kernel: which processes are there 3 s later."""
    with side.open(folder) as kernel:
        _run(side, kernel, "pass")
        kernel.kill()
        time.sleep(3)
        family = kernel.family()
        for process in family:
            process.kill()
    return {"processes 3 s after the kernel is killed": len(family)}


def rank_killed(side: Side, folder: Path) -> Seen:
    """One rank is killed in a cell; the next cell; the replacement."""
    with side.open(folder) as kernel:
        _run(side, kernel, "kept = rank + 100")
        code = "import signal, time\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(2)\nprint('done', rank)"
        cell = kernel.submit(side.cell(RANK + code))
        status = _end(cell)
        result = cell.result_so_far
        text = side.seen(result)
        done = sum("done" in words for words in side.texts(result).values())
        try:
            after = side.texts(kernel.run(side.cell("print(kept)"), timeout=LIMIT_S))
        except TimeoutError:
            after = {}
        begun = time.perf_counter()
        side.replace_dead(kernel)
        survivors = side.texts(_run(side, kernel, "print(globals().get('kept'))"))
        return {
            "a killed rank: the cell ends as": status,
            "a killed rank: names it and how it ended": bool(
                re.search(r"rank 2.*(SIGKILL|signal 9|killed)", text, re.IGNORECASE)
            ),
            "a killed rank: others that finish (of 3)": done,
            "a killed rank: ranks of the next cell": len(after),
            "a killed rank: to the first cell of all ranks, s": time.perf_counter() - begun,
            "a killed rank: ranks that kept their variables": sum(
                words != "None\n" for words in survivors.values()
            ),
        }


def hung_gloo(side: Side, folder: Path) -> Seen:
    """An all_reduce of gloo that one rank never enters; the stop button; the next cell."""
    with side.open(folder) as kernel:
        code = (
            "import torch, torch.distributed as dist\ntorch.set_num_threads(1)\ndist.init_process_group('gloo')\n"
            "x = torch.tensor([float(rank)])\ndist.all_reduce(x)\nprint(int(x))"
        )
        begun = time.perf_counter()
        result = _run(side, kernel, code)
        took = time.perf_counter() - begun
        right = side.texts(result) == dict.fromkeys(ALL, "6\n")
        cell = kernel.submit(
            side.cell(_in(folder, "gloo") + "if rank: dist.all_reduce(x)\nelse: pass")
        )
        _wait_in(kernel, folder, "gloo")
        time.sleep(
            0.5
        )  # in the call by now; a rank that is not yet in it only makes the stop easier
        begun = time.perf_counter()
        kernel.interrupt()
        status = _end(cell, 10)
        stopped = time.perf_counter() - begun
        after = kernel.submit(side.cell("print(rank)"))
        following = _end(after, 10)
        told = side.seen(after.result_so_far).strip().splitlines()
        return {
            "gloo: init and a sum, s": took,
            "gloo: the sum is right": right,
            "stop in a hung gloo call: the cell": status,
            "stop in a hung gloo call, s": stopped,
            "stop in a hung gloo call: the next cell": following,
            "stop in a hung gloo call: it says": told[-1][:70] if told else "nothing",
        }


def saved(side: Side, folder: Path) -> Seen:
    """2,000 lines, a figure, a bar and an error as a notebook on disk, and as HTML."""
    code = (
        "import matplotlib.pyplot as plt\nfrom tqdm.notebook import tqdm\n"
        "for i in range(2000): print('epoch', i, 'loss', 0.5)\n"
        "for i in tqdm(range(10)): pass\nplt.plot([rank, 1, 2]); plt.show()\n1 / 0"
    )
    with side.open(folder) as kernel:
        result = _run(side, kernel, code)
    outputs = [
        nbformat.from_dict(
            {key: value for key, value in its.items() if key != "display_id"} | _fill(its)
        )
        for its in result.outputs
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code, outputs=outputs)])
    nbformat.validate(notebook)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    return {
        "saved notebook, KB": len(nbformat.writes(notebook)) / 1e3,
        "saved notebook: pictures in the HTML": html.count("data:image/png"),
    }


def _fill(output: dict[str, Any]) -> dict[str, Any]:
    """Return what nbformat requires beside a message's content."""
    kind = output["output_type"]
    more = {"metadata": {}} if kind in {"display_data", "execute_result"} else {}
    return more | ({"execution_count": 1} if kind == "execute_result" else {})


# -- of a shared kernel ------------------------------------------------------------------------


def cells(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """Empty cells on all ranks and on one."""

    def took(ranks: tuple[int, ...], n: int) -> list[float]:
        times = []
        for _ in range(n):
            begun = time.perf_counter()
            kernel.run(side.cell("pass", ranks))
            times.append(_ms(time.perf_counter() - begun))
        return times

    took(ALL, 5)
    return {"empty cell, ms": median(took(ALL, 30)), "cell of one rank, ms": median(took((1,), 15))}


def _lines(side: Side, kernel: CountingKernel, n: int, *, alike: bool = True) -> Seen:
    label = f"{n:,} {'equal' if alike else 'different'} lines a rank"
    text = "'epoch', i, 'loss', 0.5" if alike else "'rank', rank, 'epoch', i"
    kernel.n_bytes = 0
    begun = time.perf_counter()
    result = _run(side, kernel, f"for i in range({n}): print({text})")
    took = time.perf_counter() - begun
    expected = {
        rank: "".join(
            f"epoch {i} loss 0.5\n" if alike else f"rank {rank} epoch {i}\n" for i in range(n)
        )
        for rank in ALL
    }
    return {
        f"{label}, s": took,
        f"{label}, MB": kernel.n_bytes / 1e6,
        f"{label}: all there": _are_there(side, result, expected),
    }


def _are_there(side: Side, result: CellResult, expected: dict[int, str]) -> str:
    if side.texts(result) == expected:
        return "yes"
    hidden = re.search(r"[\d,]+ (more )?lines[^\n]*", side.seen(result))
    return f"no; it says: {hidden[0][:60]}" if hidden else "no"


def lines(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """Many lines: their time, the bytes a page receives, and whether all are there."""
    return (
        _lines(side, kernel, 2000)
        | _lines(side, kernel, 2000, alike=False)
        | _lines(side, kernel, 10_000)
    )


def many_lines(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """20,000 lines."""
    return _lines(side, kernel, 20_000)


def streaming(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """What a front end without extensions shows before a cell of 2 s ends."""
    code = "import time\nfor i in range(10): print('step', i, flush=True); time.sleep(0.2)"
    cell = kernel.submit(side.cell(RANK + code))
    shown = 0
    while not cell.is_done:
        kernel.take(0.05)
        if not cell.is_done:
            shown = max(shown, len(set(re.findall(r"step \d", side.seen(cell.result_so_far)))))
    return {"lines of 10 shown before the end": shown}


def errors(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """An error on one rank, and the same error on all."""
    one = _run(side, kernel, "print('kept', rank)\nif rank == 2: 1 / 0")
    every = _run(side, kernel, "1 / 0")
    kept = side.texts(one)
    return {
        "error of a rank: an error message": one.error.split("\n")[0][:60] or "none",
        "error of a rank: what others printed (of 3)": sum(
            "kept" in kept.get(rank, "") for rank in (0, 1, 3)
        ),
        "same error on all: tracebacks": max(1, len(re.findall("Traceback", side.seen(every)))),
        "traceback names the cell by its number": bool(
            re.search(r"(In ?|Cell )\[?\d+", side.seen(every))
        ),
    }


def widgets(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """A slider on each rank, moved on the page; tqdm's bar; an Output widget."""
    kernel.models.clear()
    code = (
        "import ipywidgets\nheard = []\nslider = ipywidgets.IntSlider(value=rank)\n"
        "slider.observe(lambda change: heard.append(change.new), 'value')\ndisplay(slider)"
    )
    _run(side, kernel, code)
    kernel.take(0.5)
    sliders = {
        state.get("value"): comm
        for comm, state in kernel.models.items()
        if state.get("_model_name") == "IntSliderModel"
    }
    for rank, comm in sliders.items():
        kernel.move(comm, value=77 + rank)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and len(kernel.echoes) < len(sliders):
        kernel.take(0.1)
    moved = side.texts(_run(side, kernel, "print(slider.value, heard)"))
    right = sum(moved.get(rank) == f"{77 + rank} [{77 + rank}]\n" for rank in ALL)
    kernel.models.clear()
    _run(side, kernel, "from tqdm.notebook import tqdm\nfor i in tqdm(range(20)): pass")
    kernel.take(0.5)
    bars = [its for its in kernel.models.values() if "Progress" in str(its.get("_model_name"))]
    full = sum(its.get("value") == 20 for its in bars)
    code = "out = ipywidgets.Output()\nwith out: print('inside')\n"
    _run(side, kernel, code)
    captured = side.texts(_run(side, kernel, "print(len(out.outputs))"))
    return {
        "sliders on the page": len(sliders),
        "sliders: right value and observe on their rank (of 4)": right,
        "tqdm.notebook: full bars on the page (of 4)": full,
        "Output widget captures (of 4)": sum(words == "1\n" for words in captured.values()),
    }


def displays(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """Pictures, a display that a later cell updates, clear_output, IPython's own things."""
    code = "import matplotlib.pyplot as plt\nplt.plot([rank, 1, 2]); plt.show()"
    pictures = _run(side, kernel, code)
    first = kernel.submit(side.cell(RANK + "handle = display(f'before {rank}', display_id=True)"))
    first.result()
    _run(side, kernel, "handle.update(f'after {rank}')")
    kernel.take(0.5)
    updated = sum(f"after {rank}" in str(first.result_so_far.outputs) for rank in ALL)
    code = "from IPython.display import clear_output\nprint('old')\nclear_output(wait=True)\nprint('new')"
    cleared = str(_run(side, kernel, code).outputs)
    code = "import asyncio\nfrom IPython.display import HTML\n%time 1 + 1\nawait asyncio.sleep(0)\n!echo from the shell\ndisplay(HTML('<b>bold</b>'))"
    its = _run(side, kernel, code)
    its_text = str(its.outputs)
    return {
        "figures: pictures any front end shows": _pictures(pictures),
        "display updated by a later cell (of 4)": updated,
        "clear_output(wait=True)": "new" in cleared and "old" not in cleared,
        "%time, await, !command, HTML": its.status == "ok"
        and all(word in its_text for word in ("Wall time", "from the shell", "<b>bold</b>")),
    }


def stops(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """The stop button in a sleep, and in numpy's C code."""
    seen: Seen = {}
    for name, code in (
        ("sleep", "import time\ntime.sleep(60)"),
        (
            "numpy",
            "import numpy as np\na = np.random.rand(200, 200)\nfor _ in range(2000): np.linalg.svd(a)",
        ),
    ):
        cell = kernel.submit(side.cell(RANK + _in(folder, name) + code))
        _wait_in(kernel, folder, name)
        begun = time.perf_counter()
        kernel.interrupt()
        seen[f"stop in {name}: the cell"] = _end(cell)
        seen[f"stop in {name}, s"] = time.perf_counter() - begun
    return seen


def asks(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """`input()` and `breakpoint()`."""
    result = _run(side, kernel, "name = input('who? ')\nprint('hello', name)", stdin=["Ada"])
    told = side.texts(result)
    stopped = _run(side, kernel, "x = rank\nbreakpoint()\nprint('on', x)", stdin=["x", "c"])
    return {
        "input(): questions": len(result.prompts),
        "input(): ranks that heard the answer (of 4)": sum(
            "hello Ada" in words for words in told.values()
        ),
        "breakpoint() without a panel: asks": len(stopped.prompts) > 0,
        "breakpoint(): the cell then ends": stopped.status,
    }


def debugger(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """JupyterLab's debugger panel: a breakpoint stops every rank; continue."""
    numbers = itertools.count(1)

    def ask(command: str, **arguments: Any) -> dict[str, Any]:
        request = {
            "type": "request",
            "seq": next(numbers),
            "command": command,
            "arguments": arguments,
        }
        return kernel.ask("debug_request", request, channel="control", timeout=LIMIT_S).get(
            "body", {}
        )

    def events(kind: str, n: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 10
        while len(found) < n and time.monotonic() < deadline:
            kernel.take(0.05)
            found = [its for its in kernel.debug_events if its["event"] == kind]
        return found

    kernel.ask("kernel_info_request", {})
    begun = time.perf_counter()
    ask("initialize", clientID="jupyterlab", adapterID="python3", pathFormat="path")
    ask("attach")
    code = side.cell("a = 1\nb = 2\nc = a + b")
    line = code.splitlines().index("c = a + b") + 1
    path = ask("dumpCell", code=code).get("sourcePath")
    ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}], sourceModified=False)
    ask("configurationDone")
    attached = time.perf_counter() - begun
    kernel.debug_events.clear()
    cell = kernel.submit(code)
    stopped = events("stopped", N_RANKS)
    if stopped:  # both tools let all ranks go on
        ask("continue", threadId=stopped[0]["body"]["threadId"])
    status = _end(cell)
    ask("disconnect", restart=False, terminateDebuggee=False)
    return {
        "debugger panel: to attach, s": attached,
        "debugger panel: ranks that stop at the line": len(stopped),
        "debugger panel: the cell then ends": status,
    }


def some_ranks(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """A cell on one rank, on three, and on a rank that is not there."""
    one = side.texts(kernel.run(side.cell("print('here')", (1,))))
    code = side.cell("print('here')", (0, 2, 3))
    three = side.texts(kernel.run(code)) if code else {}
    wrong = kernel.run(side.cell("print('here')", (9,)))
    return {
        "cell on rank 1 runs on": str(sorted(one)),
        "cell on ranks 0, 2, 3 runs on": str(sorted(three)) if code else "cannot",
        "cell on rank 9: the notebook says": side.seen(wrong).strip().splitlines()[-1][:60]
        if side.seen(wrong).strip()
        else "nothing",
    }


def typing(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """Tab and Shift-Tab, idle and while ranks are busy; the indent of a console."""
    _run(side, kernel, "import os\nsome_long_name = 3")
    code = side.cell("some_long_n")

    def tab() -> tuple[float, bool]:
        begun = time.perf_counter()
        matches = kernel.complete(code)["matches"]
        return _ms(time.perf_counter() - begun), "some_long_name" in str(matches)

    idle = [tab() for _ in range(7)]
    begun = time.perf_counter()
    found = kernel.inspect(side.cell("os.getcwd"))["found"]
    inspected = _ms(time.perf_counter() - begun)
    cell = kernel.submit(side.cell(RANK + _in(folder, "busy") + "import time\ntime.sleep(3)"))
    _wait_in(kernel, folder, "busy")
    busy = tab()
    cell.result()
    indent = kernel.ask("is_complete_request", {"code": side.cell("for i in x:")}).get("indent", "")
    return {
        "Tab, ms": median(ms for ms, _ in idle),
        "Tab finds the name": all(right for _, right in idle),
        "Shift-Tab, ms": inspected,
        "Shift-Tab finds the function": found,
        "Tab while ranks are busy, ms": busy[0],
        "indent after a colon": len(indent),
    }


def variables(side: Side, kernel: CountingKernel, folder: Path) -> Seen:
    """The variables that torchrun and JAX's launchers set."""
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_PROCESS_ID",
        "JAX_NUM_PROCESSES",
    )
    told = side.texts(
        _run(side, kernel, f"print([name for name in {names} if name not in os.environ])")
    )
    return {
        "torchrun's and JAX's variables": all(words == "[]\n" for words in told.values())
        and len(told) == N_RANKS
    }


SHARED: tuple[Callable[[Side, CountingKernel, Path], Seen], ...] = (
    cells, lines, streaming, errors, widgets, displays, some_ranks, typing, variables, stops, asks, many_lines, debugger,
)  # fmt: skip
OWN: tuple[Callable[[Side, Path], Seen], ...] = (
    start,
    rank_killed,
    hung_gloo,
    kernel_killed,
    saved,
)
