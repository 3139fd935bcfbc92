"""The soak's client: a process of its own that has the workspace, and that the soak kills.

Requests and answers are lines of JSON. One marked ``aside`` is done in a thread of its own, as a
person presses stop while a cell runs. It judges nothing and knows no seed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.inside import ask_root, root_pid

from phalanx.protocol import GetStacks
from phalanx.workspace import View, Workspace

_STOP = signal.SIGUSR1  # tells where the threads of a client are that does not answer


class _Notices(View):
    """Keeps our own lines, to explain a failure."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


class _Server:
    """Does what it is asked, and answers."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._view = _Notices()
        self.workspace: Workspace | None = None

    def serve(self, request: dict[str, Any]) -> None:
        number, do = request["id"], request["do"]
        begin_s = time.monotonic()
        try:
            said: dict[str, Any] = {"value": getattr(self, f"do_{do}")(**request["args"])}
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - it is the answer
            kinds = [kind.__name__ for kind in type(error).__mro__]
            failures = getattr(error, "failures", {})
            said = {
                "error": kinds,
                "text": str(error),
                "trace": traceback.format_exc(),
                "rank": getattr(error, "rank", -1),
                "failures": {rank: list(how[:2]) for rank, how in failures.items()},
            }
        said |= {"id": number, "seconds": time.monotonic() - begin_s}
        with self._lock:
            said["notices"], self._view.texts = self._view.texts, []
            self._answers.write(json.dumps(said) + "\n")
            self._answers.flush()

    def _mine(self, workspace: Workspace) -> int:
        self.workspace = workspace
        workspace.make_view = lambda: self._view
        return root_pid(workspace)

    def do_start(self, **options: Any) -> int:
        return self._mine(Workspace.start(**options))

    def do_attach(self, name: str, take: bool) -> int:
        return self._mine(Workspace.attach(name, take=take))

    def do_watch(self, name: str) -> dict[int, str]:
        """Where the ranks are, seen by one who does not own them."""
        (size,) = [info.size for info in Workspace.list() if info.name == name]
        stacks = ask_root(name, GetStacks(tuple(range(size)))).stacks
        return {rank: stack.text for rank, stack in stacks.items()}

    def do_join(self) -> list[str | None]:
        return [result.value for result in self._up.join()]

    def do_run(self, code: str, **options: Any) -> list[str | None]:
        return [result.value for result in self._up.run(code, **options)]

    def do_restart(self, **options: Any) -> list[int]:
        return list(self._up.restart(**options))

    def do_interrupt(self) -> None:
        self._up.interrupt()

    def do_ranks(self) -> list[dict[str, Any]]:
        ranks = self._up.topology().ranks
        return [{"pid": rank.pid, "state": rank.state, "detail": rank.detail} for rank in ranks]

    def do_exchange(self, name: str, value: list[int]) -> list[Any]:
        """What is pushed and pulled again: plain, in a class of ours, and in one of a cell."""
        up = self._up
        up.push({name: value, "box": _Box(value)})
        up.run(f"class Made: pass\nmade = Made()\nmade.x = np.array({name}) + rank")
        made = [it.x for it in up.pull("made")]
        for rank, x in enumerate(made):
            x[:] = x - rank  # what is pulled is ours to alter
        boxes = [box.total() for box in up.pull("box")]
        return [list(up.pull(name)), boxes, [x.tolist() for x in made]]

    def do_output(self, rank: int) -> str:
        return self._up.output(rank)[-100:]

    def do_call(self, items: list[int]) -> list[Any]:
        """What functions and expressions come to on the ranks."""
        up = self._up
        up.scatter("scattered", items)
        return [
            up.map(_square, items),
            up.apply(_add, items[0], b=1),
            up.gather("scattered"),
            up.pull("sum(scattered) * 2"),
            [result.object for result in up.run("{'rank': rank}")],
        ]

    def do_detach(self) -> None:
        self._up.detach()

    def do_stop(self) -> None:
        self._up.stop()

    @property
    def _up(self) -> Workspace:
        assert self.workspace is not None
        return self.workspace


class _Box:
    def __init__(self, values: list[int]) -> None:
        self.values = values

    def total(self) -> int:
        return sum(self.values)


def _square(item: int) -> int:
    return item * item


def _add(a: int, b: int) -> int:
    return a + b


def main() -> None:
    faulthandler.register(_STOP, file=sys.stderr, all_threads=True)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything here prints is no answer
    server = _Server(answers)
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if request["aside"]:
                threading.Thread(target=server.serve, args=(request,), daemon=True).start()
            else:
                requests.put(request)
        requests.put(None)
        # The soak is gone, perhaps in the midst of a cell.
        time.sleep(20.0)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while (request := requests.get()) is not None:
        server.serve(request)
    if server.workspace is not None:
        server.workspace.stop()


if __name__ == "__main__":
    main()
