"""The debugger panel on ranks: the requests that JupyterLab sends, to a real kernel."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.promise import PATIENCE_S
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SUM = "%%distributed\n\nx = rank * 10\ntotal = px.all_sum(x)\nprint(total + 1)"


class Panel:
    """Somebody in front of the debugger panel."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.running = None
        self._numbers = itertools.count(1)

    def ask(self, command, **arguments):
        """Send a request; return the reply's body."""
        request = {"type": "request", "seq": next(self._numbers)}
        request |= {"command": command, "arguments": arguments}
        reply = self.kernel.ask("debug_request", request, channel="control", timeout=PATIENCE_S)
        assert reply["success"], reply
        assert reply["request_seq"] == request["seq"], reply
        return reply.get("body", {})

    def open(self):
        self.ask("initialize", clientID="jupyterlab", adapterID="python3", pathFormat="path")
        self.ask("attach")
        self.ask("configurationDone")

    def close(self):
        self.ask("disconnect", restart=False, terminateDebuggee=False)

    def set(self, code, *lines):
        """Set a cell's breakpoints; return its path."""
        path = self.ask("dumpCell", code=code)["sourcePath"]
        breakpoints = [{"line": line} for line in lines]
        made = self.ask("setBreakpoints", source={"path": path}, breakpoints=breakpoints)
        places = [(its["source"]["path"], its["line"]) for its in made["breakpoints"]]
        assert places == [(path, line) for line in lines]
        return path

    def run(self, code):
        """Send a cell."""
        self.kernel.debug_events.clear()
        self.running = self.kernel.submit(code)

    def result(self):
        return self.running.result(PATIENCE_S)

    def see(self, n=2, event="stopped"):
        """Wait for ``n`` events since the last step; return their threads in order."""

        def seen():
            self.kernel.take(0.05)
            assert not self.running.is_done, self.running.result_so_far.text
            found = [its for its in self.kernel.debug_events if its["event"] == event]
            return len(found) >= n and sorted(its["body"]["threadId"] for its in found)

        return wait_until(seen, f"{n} times {event}", PATIENCE_S)

    def move(self, command, thread):
        self.kernel.debug_events.clear()
        self.ask(command, threadId=thread)

    def places(self, thread):
        """Return name, path and line of each frame that is shown."""
        frames = self.ask("stackTrace", threadId=thread)["stackFrames"]
        return [(its["name"], its["source"]["path"], its["line"]) for its in frames]

    def variables(self, frame, scope=0):
        reference = self.ask("scopes", frameId=frame)["scopes"][scope]["variablesReference"]
        found = self.ask("variables", variablesReference=reference)["variables"]
        return {its["name"]: its["value"] for its in found}


def said(result):
    """Return what ranks have printed, however their lines were shown together."""
    return {line.partition("] ")[2] for line in result.stdout.splitlines() if line.strip()}


@pytest.fixture(scope="module")
def kernel():
    with NotebookKernel() as driver:
        yield driver


@pytest.fixture
def panel(kernel):
    """The open panel, with two ranks; afterwards nothing of it is left on the ranks."""
    kernel.need_ranks("-n 2")
    panel = Panel(kernel)
    panel.open()
    yield panel
    kernel.stop_cells()
    panel.close()
    assert said(kernel.run("%%distributed\nimport sys\nprint(sys.gettrace())")) == {"None"}


def test_ranks_stop_are_shown_and_step(panel):
    path = panel.set(SUM, 4)
    assert panel.ask("debugInfo")["breakpoints"] == [{"source": path, "breakpoints": [{"line": 4}]}]
    panel.run(SUM)
    first, second = panel.see()
    assert panel.ask("debugInfo")["stoppedThreads"] == [first, second]
    # A front end without a list of threads, as JupyterLab, is shown the frames of all.
    expected = [(f"rank {rank}: <module>", path, 4) for rank in range(2)]
    assert panel.places(first) == panel.places(second) == expected
    threads = {its["id"]: its["name"] for its in panel.ask("threads")["threads"]}
    assert (threads[first], threads[second]) == ("rank 0", "rank 1")
    for rank, thread in enumerate((first, second)):
        (frame,) = panel.ask("stackTrace", threadId=thread)["stackFrames"]
        assert (frame["source"]["path"], frame["line"], frame["name"]) == (path, 4, "<module>")
        for scope in range(2):
            seen = panel.variables(frame["id"], scope)
            assert (seen["rank"], seen["x"]) == (str(rank), str(10 * rank))
            assert not seen.keys() & {"In", "Out", "get_ipython", "total"}
        frame = {"frameId": frame["id"]}
        assert panel.ask("evaluate", expression="x + rank", **frame)["result"] == str(11 * rank)
        shown = panel.ask("richInspectVariables", variableName="x", **frame)
        assert shown == {"data": {"text/plain": str(10 * rank)}, "metadata": {}}
    panel.ask("evaluate", expression="x = 30", context="repl", **frame)  # on rank 1
    panel.move("next", second)  # a collective: a rank alone would not come out of it
    assert panel.see() == [first, second]
    assert panel.places(first) == panel.places(second) == [("<module>", path, 5)]
    panel.move("continue", 1)  # JupyterLab has forgotten the thread by then
    assert said(panel.result()) == {"31"}
    assert [its["event"] for its in panel.kernel.debug_events] == ["continued"] * 2
    assert panel.ask("debugInfo")["stoppedThreads"] == []


def test_breakpoints_in_functions_and_cells_that_are_alike(panel):
    body = "def double(a):\n    b = 2 * a\n    return b\nprint(double(rank))"
    first, second = f"%%distributed\n{body}", f"%%distributed --ranks 1\n\n\n{body}"
    panel.set(first, 3)
    path = panel.set(second, 6, 7)
    panel.run(second)
    (thread,) = panel.see(1)
    called = ("rank 1: <module>", path, 7)
    assert panel.places(thread) == [called]
    panel.move("continue", thread)
    panel.see(1)
    assert panel.places(thread) == [("rank 1: double", path, 6), called]
    panel.move("stepOut", thread)
    panel.see(1)
    panel.move("continue", thread)
    assert said(panel.result()) == {"2"}


def test_a_stop_ends_a_cell_at_a_breakpoint(panel):
    panel.set(SUM, 4)
    panel.run(SUM)
    panel.see()
    panel.kernel.interrupt()
    result = panel.result()
    assert result.error == "KeyboardInterrupt: "
    assert "pydevd" not in result.text
    assert panel.ask("debugInfo")["stoppedThreads"] == []
    assert said(panel.kernel.run("%%distributed\nprint(x)")) == {"0", "10"}  # stops nowhere


def test_ranks_that_are_new_stop_too(panel):
    panel.set(SUM, 4)
    panel.run(SUM)
    panel.move("continue", panel.see()[0])
    assert panel.result().status == "ok"
    assert panel.kernel.run("%distributed restart 1 --force").status == "ok"
    panel.run(SUM)
    panel.move("continue", panel.see()[0])
    assert said(panel.result()) == {"11"}


def test_closing_the_panel_lets_ranks_go_on(panel):
    panel.set(SUM, 4)
    panel.run(SUM)
    panel.see()
    panel.close()
    assert said(panel.result()) == {"11"}
    # `breakpoint` opens the text debugger, as without a panel.
    code = "%%distributed\nfor x in [rank]:\n    breakpoint()\n    pass"
    result = panel.kernel.run(code, stdin=lambda prompt: "c")
    assert [its.text for its in result.prompts] == ["[0-1] ipdb> "]
    panel.open()
    panel.run(code)
    panel.move("continue", panel.see()[0])
    assert panel.result().prompts == []


def test_cells_of_the_kernel_stop_as_before(panel):
    code = "a = 1\nb = 2\nc = 3"
    path = panel.set(code, 2)
    panel.run(code)
    (thread,) = panel.see(1)
    assert panel.places(thread)[0] == ("<module>", path, 2)
    panel.move("continue", thread)
    assert panel.result().status == "ok"


def test_an_exception_stops_ranks_and_nothing_in_the_kernel(panel):
    options = [{"path": [{"names": ["Python Exceptions"]}], "breakMode": "always"}]
    panel.ask("setExceptionBreakpoints", filters=["raised"], exceptionOptions=options)
    code = "%%distributed\ndef share():\n    return 1 // rank\nshare()"
    panel.run(code)
    (thread,) = panel.see(1)
    frames = panel.places(thread)
    assert [(name, line) for name, _, line in frames] == [
        ("rank 0: share", 3), ("rank 0: <module>", 4)
    ]  # fmt: skip
    panel.ask("setExceptionBreakpoints", filters=[])
    panel.move("continue", thread)
    assert "ZeroDivisionError" in panel.result().text
    names = [its["name"] for its in panel.ask("threads")["threads"]]
    assert not [name for name in names if name.startswith(("phalanx", "rank"))]


@pytest.mark.deep
def test_ranks_go_on_when_the_kernel_dies_at_a_breakpoint(tmp_path):
    with NotebookKernel("%distributed start -n 2 --linger 60 --name left") as kernel:
        panel = Panel(kernel)
        panel.open()
        path = tmp_path / "done"
        code = f"%%distributed --ranks 0\nopen({str(path)!r}, 'w').close()"
        panel.set(code, 2)
        panel.run(code)
        panel.see(1)
        kernel.kill()
        wait_until(Path(path).exists, "rank 0 goes on", PATIENCE_S)
        with NotebookKernel("%distributed attach left") as other:
            assert said(other.run("%%distributed\nprint(px.all_sum(1))")) == {"2"}
            other.run("%distributed stop")
