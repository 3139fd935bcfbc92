"""`all_sum`, or another operation, ours beside the peers, in the moments in which cores sit as asked.

    python tests/bench/placement_moments.py --harness FOLDER --out moments.jsonl --want near

Some hosts put this machine's cores beside each other for milliseconds only, now and then: too short
to start a peer, let alone all. So all peers are started first and sleep; a flag is sent between the
cores fifty times a second, and when it is as fast (near) or as slow (far) as asked, one peer runs
one size for 8 ms, the next peer after it, and so on while the cores stay where they are. What
counts is a moment whose flags before and after were both as asked. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from beside_peers import add_phalanx
from common import NEAR_NS, print_machine, print_table

from phalanx.distributed.bench import parse_size
from phalanx.widgets import format_size

_HERE = Path(__file__).resolve().parent
_PROBE_S = 0.02
_START_LIMIT_S = 120
_MPI = ("impi", "openmpi", "mpich")
_PEERS = "phalanx-tcp,impi-tcp,openmpi-tcp,mpich-tcp"
_SIZES = "8,1k,4k,16k,64k,256k,1m,4m"


class Peer:
    """All ranks of one peer, asleep between the moments."""

    def __init__(self, peer: Any, folder: Path, ranks: int, op: str, sizes: list[int]) -> None:
        import benchlib

        self.name = str(peer.name)
        out, sync = folder / f"{self.name}.out", folder / f"{self.name}.sync"
        benchlib.Sync.create(str(sync), ranks)
        orders = [Path(f"{out}.{rank}") for rank in range(ranks)]
        for path in (out, *orders):
            os.mkfifo(path)
        args = ["--peer", self.name, "--sync", str(sync), "--out", str(out)]
        args += ["--ops", op, "--sizes", ",".join(map(str, sizes))]
        # Both ways, so that opening waits for nobody.
        self._answers: IO[str] = os.fdopen(os.open(out, os.O_RDWR), "r")
        self._orders = [os.fdopen(os.open(p, os.O_RDWR), "w", buffering=1) for p in orders]
        self.log = folder / f"{self.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                peer.command(ranks, args),
                env=peer.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ask(self, order: str) -> None:
        for pipe in self._orders:
            pipe.write(order + "\n")

    def answer(self) -> dict[str, Any]:
        limit = time.monotonic() + _START_LIMIT_S
        while not select.select([self._answers], [], [], 1.0)[0]:
            if self.process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"{self.name} does not answer: {self.log.read_text()[-800:]}")
        return dict(json.loads(self._answers.readline()))

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.ask("")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def _flag(folder: Path) -> Iterator[Any]:
    """Nanoseconds a flag takes between two processes, asked whenever one likes."""
    import benchlib

    path = str(folder / "flag.sync")
    benchlib.Sync.create(path, 2)
    benchlib.build_shmsync()
    child, own = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(own)
            other = benchlib.Sync(path, 1, 2)
            while os.read(child, 1):
                other.barrier()
                other._oneway(other.address, 1, 200)
        finally:  # what is open here is the parent's to end
            os._exit(0)
    os.close(child)
    sync = benchlib.Sync(path, 0, 2)

    def ask() -> float:
        os.write(own, b".")
        sync.barrier()  # the other is awake
        took = float(sync._oneway(sync.address, 0, 200))
        sync.lib.shm_reset_ball(benchlib.ctypes.c_void_p(sync.address))
        return took

    try:
        yield ask
    finally:
        os.close(own)
        os.kill(pid, signal.SIGKILL)  # it may spin, waiting for a flag that does not come
        os.waitpid(pid, 0)


def _fits(flag_ns: float, want: str) -> bool:
    return (flag_ns < NEAR_NS) == (want == "near")


def _sample(peers: list[Peer], sizes: list[int], options: argparse.Namespace, folder: Path) -> None:
    turns = [(peer, size) for size in sizes for peer in peers]
    end = time.monotonic() + options.minutes * 60
    turn = good = looks = hits = 0
    with _flag(folder) as flag, options.out.open("a", buffering=1) as out:
        while time.monotonic() < end:
            looks += 1
            if not _fits(flag(), options.want):
                time.sleep(_PROBE_S)
                continue
            hits += 1
            is_good = True
            while is_good and time.monotonic() < end:
                peer, size = turns[turn % len(turns)]
                peer.ask(str(size))
                record = peer.answer()
                is_good = all(_fits(ns, options.want) for ns in record["flag_ns"])
                record["placement"] = options.want if is_good else "mixed"
                out.write(json.dumps(record) + "\n")
                good += is_good
                turn += is_good
    print(f"{looks} looks, {hits} found the cores {options.want}, {good} moments that count")


def _show(path: Path, op: str, want: str) -> None:
    found: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in path.open():
        record = json.loads(line)
        if not record["correct"]:
            sys.exit(f"a wrong result: {record}")
        if (record["op"], record["placement"]) == (op, want):
            key = (record["ranks"], record["bytes"])
            found[key][record["peer"]].append(statistics.median(record["took_us"]))
    names = sorted({name for its in found.values() for name in its})
    rows = []
    for (ranks, nbytes), its in sorted(found.items()):
        medians = {name: statistics.median(values) for name, values in its.items()}
        mpi = [us for name, us in medians.items() if name.startswith(_MPI)]
        ours = [us for name, us in medians.items() if name.startswith("phalanx")]
        cells = [f"{medians[n]:.1f} ({len(its[n])})" if n in medians else "" for n in names]
        ratio = f"{min(ours) / min(mpi):.2f}" if mpi and ours else ""
        rows.append([str(ranks), format_size(nbytes), *cells, ratio])
    print_table(["ranks", "size", *(f"{name} µs" for name in names), "ours/best MPI"], rows)
    print(f"\n{op}, {want}: medians of the moments' medians; in brackets: moments.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harness", type=Path, required=True, help="folder of compare.py")
    parser.add_argument("--out", type=Path, required=True, help="rows are added there")
    parser.add_argument("--want", choices=["near", "far"], default="near", help="how the cores sit")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to look (10)")
    parser.add_argument("--ranks", type=int, default=2, help="of each peer (2)")
    parser.add_argument("--peers", default=_PEERS, help=f"which, with commas ({_PEERS})")
    parser.add_argument("--op", default="all_reduce:inplace", help="as the harness calls it")
    parser.add_argument("--sizes", default=_SIZES, help=f"of an array, with commas ({_SIZES})")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the peers are ended, too
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        harness = folder / "harness"
        shutil.copytree(options.harness, harness, copy_function=shutil.copyfile)
        harness.chmod(0o700)
        shutil.copy(_HERE / "moment_rank.py", harness)
        with (harness / "benchlib.py").open("a") as benchlib:
            benchlib.write("\n\ndef run(adapter, args):\n")
            benchlib.write("    __import__('moment_rank').serve(adapter, args)\n")
        sys.path.insert(0, str(harness))
        add_phalanx(harness)
        from peers import PEERS

        by_name = {peer.name: peer for peer in PEERS}
        for name in options.peers.split(","):
            if name not in by_name:
                parser.error(f"there is no peer {name!r}; there are {', '.join(sorted(by_name))}")
        peers: list[Peer] = []
        try:
            for name in options.peers.split(","):
                peers.append(Peer(by_name[name], folder, options.ranks, options.op, sizes))
                peers[-1].answer()  # it is ready; the next one prepares alone
                print(f"{name} is ready", file=sys.stderr)
            _sample(peers, sizes, options, folder)
        finally:
            for peer in peers:
                peer.end()
    print_machine()
    _show(options.out, options.op, options.want)


if __name__ == "__main__":
    main()
