"""Times every pair of addresses, with the engine itself, by a small program on each host.

It starts the programs (over ssh, or here), lets two of them meet at a time, and reads their times;
pairs that share no host go on at once. What is made of the times is `_measured`'s.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import phalanx
from phalanx.errors import DistributedError

from ._gather import command_for, why_ssh
from ._host import Host
from ._networks import Network

__all__ = ["PathTimes", "measure"]

_START_S = 30.0  # to start Python over ssh on a busy host
_END_S = 1.0  # what measures has nothing to save
_ANSWER_S = 20.0  # the programs themselves give up a pair after 8 s without an answer


@dataclass(frozen=True)
class PathTimes:
    """The path between two hosts on one network; ``failure`` says why there are no times.

    ``a < b``; the bandwidths are GB/s from a to b, and back.
    """

    a: int
    b: int
    network: str
    latency_us: float = 0.0
    there_gbs: float = 0.0
    back_gbs: float = 0.0
    failure: str = ""


def measure(
    hosts: Sequence[Host],
    local: Collection[Host],
    networks: Sequence[Network],
    *,
    python: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> list[PathTimes]:
    """Time all pairs of hosts on each network they share.

    Parameters
    ----------
    hosts : sequence of Host
        Each gets one program.
    local : collection of Host
        Which of them are this machine.
    networks : sequence of Network
        Whose pairs are timed.
    python : str
        The interpreter there; by default the path of this one.
    say : callable
        Hears each result.

    Raises
    ------
    DistributedError
        On some hosts the program cannot be started (all of them are named).
    """
    key = secrets.token_bytes(32)
    probes: list[_Probe] = []
    try:
        # One after the other, so that those that run are ended should the next not start.
        probes.extend(_Probe(host, host in local, python or sys.executable) for host in hosts)
        failures = _start_all(probes, key)
        if failures:
            msg = f"cannot measure: {'; '.join(failures)}"
            raise DistributedError(msg)
        found = []
        for pairs in _rounds(len(hosts), networks):
            for times in _time_at_once(hosts, probes, pairs):
                found.append(times)
                say(_line(hosts, times))
    finally:
        for probe in probes:
            probe.end()
        end_s = time.monotonic() + _END_S
        for probe in probes:
            probe.close(end_s)
    return found


def _line(hosts: Sequence[Host], t: PathTimes) -> str:
    path = f"{hosts[t.a].ssh} - {hosts[t.b].ssh} on {t.network}"
    if t.failure:
        return f"{path}: {t.failure}"
    return f"{path}: {t.latency_us:.0f} us, {t.there_gbs:.2f} GB/s, back {t.back_gbs:.2f} GB/s"


def _rounds(n: int, networks: Sequence[Network]) -> Iterator[list[tuple[int, int, Network]]]:
    """Yield pairs that may be timed at once, as no host is in two: a tournament's rounds.

    n - 1 rounds (n if it is odd) for each network: de Werra 1981,
    doi:10.1016/S0304-0208(08)73478-9.
    """
    seats = n + n % 2
    for network in networks:
        for turn in range(seats - 1):
            ring = [(turn + k) % (seats - 1) for k in range(seats - 1)]
            pairs = [(seats - 1, ring[0])]
            pairs += [(ring[k], ring[-k]) for k in range(1, seats // 2)]
            on_it = [
                (min(a, b), max(a, b), network)
                for a, b in pairs
                if a in network.members and b in network.members
            ]
            if on_it:
                yield on_it


class _Probe:
    """The program on one host."""

    def __init__(self, host: Host, is_local: bool, python: str) -> None:
        # Named, not imported: the engine's room is above this one.
        self._host = host
        run = f"exec {shlex.quote(python)} -m phalanx.distributed"
        command = (
            [python, "-m", "phalanx.distributed"] if is_local else command_for(host, run, _START_S)
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            head, _, record = line.partition(" ")
            if head == "phalanx":  # anything else is a login's message
                self._lines.put(record)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def tell(self, record: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it is dead of comes with its answer
            self._process.stdin.write(json.dumps(record) + "\n")
            self._process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Return its next answer; one with an ``error`` if there is none in time."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return {"error": f"it has not answered within {timeout_s:g} s"}
        if line is None:
            self._lines.put(None)
            self._threads[1].join(1.0)
            status = self._process.wait(1.0)
            return {"error": why_ssh(self._host, "".join(self._errors), status)}
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        return record if isinstance(record, dict) else {"error": "it has said what cannot be read"}

    def end(self) -> None:
        """End its input, upon which it ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self, end_s: float) -> None:
        """Wait for its end, and make one at that time."""
        try:
            self._process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread, pipe in zip(
            self._threads, (self._process.stdout, self._process.stderr), strict=True
        ):
            thread.join(1.0)
            if pipe is not None and not thread.is_alive():
                pipe.close()


def _start_all(probes: Sequence[_Probe], key: bytes) -> list[str]:
    """Hand out the key; returns why programs have not started, a text a host."""
    failures = []
    end_s = time.monotonic() + _START_S
    for probe in probes:
        answer = probe.hear(max(0.1, end_s - time.monotonic()))
        version = answer.get("version")
        if "error" in answer:
            failures.append(f"{probe._host.ssh}: {answer['error']}")
        elif version != phalanx.__version__:
            failures.append(
                f"{probe._host.ssh}: it has phalanx {version}, here is {phalanx.__version__}"
            )
        probe.tell({"key": key.hex()})
    return failures


def _time_at_once(
    hosts: Sequence[Host], probes: Sequence[_Probe], pairs: Sequence[tuple[int, int, Network]]
) -> list[PathTimes]:
    found: list[PathTimes | None] = [None] * len(pairs)

    def go(place: int) -> None:
        a, b, network = pairs[place]
        found[place] = _time_one(hosts, (probes[a], probes[b]), a, b, network)

    threads = [
        threading.Thread(target=go, args=(place,), daemon=True) for place in range(len(pairs))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [times for times in found if times is not None]


def _time_one(
    hosts: Sequence[Host], both: tuple[_Probe, _Probe], a: int, b: int, network: Network
) -> PathTimes:
    """Let two programs meet, and carry between them what they tell each other."""
    names = [hosts[a].ssh, hosts[b].ssh]
    for rank, (probe, host) in enumerate(zip(both, (a, b), strict=True)):
        probe.tell({"rank": rank, "address": network.members[host][1], "names": names})
    answers = [probe.hear(_ANSWER_S) for probe in both]
    while all("share" in answer for answer in answers):
        shares = [answer["share"] for answer in answers]
        for probe in both:
            probe.tell({"shares": shares})
        answers = [probe.hear(_ANSWER_S) for probe in both]
    for place, answer in enumerate(answers):
        if "share" in answer:  # the other has failed, and it waits for it
            both[place].tell({"error": f"{names[1 - place]} has failed"})
            both[place].hear(_ANSWER_S)
    failed = [(names[i], answer["error"]) for i, answer in enumerate(answers) if "error" in answer]
    if failed:
        return PathTimes(a, b, network.prefix, failure=f"{failed[0][0]}: {failed[0][1]}")
    times = answers[0].get("times")
    if (
        not isinstance(times, list)
        or len(times) != 3
        or not all(isinstance(value, (int, float)) for value in times)
    ):
        return PathTimes(a, b, network.prefix, failure=f"{names[0]}: it has said no times")
    latency_us, there, back = map(float, times)
    return PathTimes(a, b, network.prefix, latency_us, there, back)
