"""How each tool is driven: a kernel with ranks, a cell on some of them, what each rank printed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
from support.notebooks.kernel_driver import CellResult, KernelDriver
from support.programs.processes import with_variable

Texts = dict[int, str]
ANSI = re.compile(r"\x1b\[[0-9;]*[a-zA-Z]")
N_RANKS = 4
ALL = tuple(range(N_RANKS))


class CountingKernel(KernelDriver):
    """A kernel whose messages are counted by their size."""

    n_bytes = 0
    mark = ""  # in the environment of all its processes

    def messages(self, seconds: float):
        """Count what a page would receive."""
        for channel, message in super().messages(seconds):
            self.n_bytes += len(json.dumps(message["content"]))
            yield channel, message

    def family(self) -> list[psutil.Process]:
        """Return the kernel and the processes that carry its environment."""
        return with_variable("RIVALS_MARK", self.mark)


class Side:
    """One tool, with ``N_RANKS`` ranks behind one kernel."""

    name = ""

    def open(self, folder: Path) -> CountingKernel:
        """Start a kernel and its ranks."""
        raise NotImplementedError

    def cell(self, code: str, ranks: tuple[int, ...] = ALL) -> str:
        """Return the cell that runs the code on these ranks; "": the tool cannot."""
        raise NotImplementedError

    def texts(self, result: CellResult) -> Texts:
        """Return what each rank has printed, as the saved notebook holds it."""
        raise NotImplementedError

    def seen(self, result: CellResult) -> str:
        """Return what a front end without extensions shows so far."""
        return ANSI.sub("", result.text)

    def replace_dead(self, kernel: CountingKernel) -> None:
        """Bring a dead rank back, as the tool's guide says."""
        msg = f"{self.name} replaces no dead rank"
        raise NotImplementedError(msg)

    def _kernel(self, folder: Path, **more: Any) -> CountingKernel:
        mark = os.urandom(8).hex()
        kernel = CountingKernel(
            cwd=folder,
            XDG_RUNTIME_DIR=str(folder),
            IPYTHONDIR=str(folder),
            RIVALS_MARK=mark,
            **more,
        )
        kernel.mark = mark
        return kernel


class Phalanx(Side):
    """`%distributed start` in the plain kernel of this environment."""

    name = "phalanx"

    def open(self, folder: Path) -> CountingKernel:
        kernel = self._kernel(folder)
        kernel.run(f"%load_ext phalanx\n%distributed start -n {N_RANKS}")
        return kernel

    def cell(self, code: str, ranks: tuple[int, ...] = ALL) -> str:
        some = "" if ranks == ALL else " --ranks " + ",".join(map(str, ranks))
        return f"%%distributed{some}\n{code}"

    def texts(self, result: CellResult) -> Texts:
        texts: Texts = {}
        for line in ANSI.sub("", result.stdout).splitlines(keepends=True):
            label, _, rest = line.partition("] ")
            for rank in _ranks_of(label) if label.startswith("[") else ():
                texts[rank] = texts.get(rank, "") + rest
        return texts

    def replace_dead(self, kernel: CountingKernel) -> None:
        kernel.run("%distributed restart")


def _ranks_of(label: str) -> list[int]:
    """``[0-2,4`` as numbers."""
    numbers = []
    for part in label[1:].replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not (first + last).isdigit():
            return []
        numbers += range(int(first), int(last or first) + 1)
    return numbers


class JupyterDistributed(Side):
    """jupyter-distributed's proxy kernel, as its server extension configures it."""

    name = "jupyter-distributed"
    MIME = "application/vnd.jupyter-distributed.rank+json"

    def __init__(self, python: str) -> None:
        self._python = python

    def open(self, folder: Path) -> CountingKernel:
        command = [self._python, "-m", "jupyter_distributed.kernel", "-f", "{connection_file}"]
        return self._kernel(
            folder,
            command=command,
            interrupt_mode="message",
            JUPYTER_DISTRIBUTED_WORLD_SIZE=str(N_RANKS),
        )

    def cell(self, code: str, ranks: tuple[int, ...] = ALL) -> str:
        if ranks == ALL:
            return code
        return f"%%rank {ranks[0]}\n{code}" if len(ranks) == 1 else ""

    def texts(self, result: CellResult) -> Texts:
        texts: Texts = {}
        for output in result.outputs:
            for rank in output.get("data", {}).get(self.MIME, {}).get("ranks", ()):
                parts = [
                    "".join(its["content"].get("text", ""))
                    for its in rank["outputs"]
                    if its["type"] == "stream"
                ]
                if parts:
                    texts[rank["rank"]] = "".join(parts)
        return texts

    def replace_dead(self, kernel: CountingKernel) -> None:
        kernel.restart()


class IPyParallel(Side):
    """A cluster of ipyparallel beside the plain kernel, and its ``%%px``."""

    name = "ipyparallel"
    _START = f"""import ipyparallel
cluster = ipyparallel.Cluster(n={N_RANKS}, log_level=50)
client = cluster.start_and_connect_sync(activate=True)
client[:].scatter('rank', range({N_RANKS}), flatten=True)
%px import os; os.environ['RANK'] = str(rank)"""

    def open(self, folder: Path) -> CountingKernel:
        kernel = self._kernel(folder)
        kernel.run(self._START, timeout=120)
        return kernel

    def cell(self, code: str, ranks: tuple[int, ...] = ALL) -> str:
        some = "" if ranks == ALL else " --targets " + ",".join(map(str, ranks))
        return f"%%px{some}\n{code}"

    def texts(self, result: CellResult) -> Texts:
        texts: Texts = {}
        for output in result.outputs:
            said = ANSI.sub("", output.get("data", {}).get("text/plain", ""))
            if label := re.match(r"\[stdout:(\d+)\] ", said):
                rank = int(label[1])
                texts[rank] = texts.get(rank, "") + said[label.end() :]
        return texts
