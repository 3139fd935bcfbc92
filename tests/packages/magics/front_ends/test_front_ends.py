"""Run notebooks in front ends other than JupyterLab: VS Code's protocol, nbclient, papermill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nbclient
import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellExecutionError
from support.inside import root_pid_code
from support.patience import ASKED_TOGETHER, TOGETHER, asked_within
from support.programs.processes import wait_gone
from support.promise import BOUND_S, check
from support.runs.tiers import deep_but
from support.waiting import wait_until

pytestmark = pytest.mark.slow

START = (
    f"%load_ext phalanx\n{ASKED_TOGETHER}\n{TOGETHER}",
    "%distributed start -n 2 --linger 0",
)
NOBODY = "nobody can answer '[0-1] who? ': this front end has no input"


class PlainClient:
    """A front end as VS Code's: one cell at a time, no subshells, ``stop_on_error``.

    It sends every message without ``subshell_id`` (whatever kernel_info says of subshells), opens
    an input box for input_request, answers it on stdin, and interrupts as the kernel's spec says.
    """

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.boxes: list[str] = []

    def info(self) -> dict[str, Any]:
        sent = self.client.kernel_info()
        return self._reply(sent, 10)["content"]

    def _reply(self, sent: str, timeout: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.0, deadline_s - time.monotonic()))
            if reply["parent_header"].get("msg_id") == sent:
                return reply

    def execute(self, code: str, answers: tuple[str, ...] = (), on_output=None) -> tuple[str, str]:
        """Run one cell; its status and all that it showed."""
        lines = iter(answers)
        text: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] in {"display_data", "execute_result"}:
                text.append(content["data"].get("text/plain", "") + "\n")
            elif message["msg_type"] == "error":
                text.append(f"{content['ename']}: {content['evalue']}\n")
            if on_output is not None:
                on_output("".join(text))

        def stdin(message: dict[str, Any]) -> None:
            self.boxes.append(message["content"]["prompt"])
            answer = next(lines, None)
            if answer is None and on_output is not None:
                on_output("waits")
            elif answer is not None:
                self.client.input(answer)

        reply = self.client.execute_interactive(
            code,
            allow_stdin=True,
            stop_on_error=True,
            timeout=60,
            output_hook=hook,
            stdin_hook=stdin,
        )
        return reply["content"]["status"], "".join(text)

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()


@contextmanager
def plain_client(interrupt_mode: str) -> Iterator[PlainClient]:
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.interrupt_mode = interrupt_mode
    manager.start_kernel()
    front_end = None
    try:
        front_end = PlainClient(manager)
        yield front_end
    finally:
        if front_end is not None:
            front_end.client.stop_channels()
        manager.shutdown_kernel(now=False)
        manager.cleanup_resources()
        manager.context.destroy(linger=0)


# All other tests of this folder stop cells by the signal.
@pytest.fixture(scope="module", params=[pytest.param("signal", marks=pytest.mark.deep), "message"])
def vscode(request):
    """A client without subshells, whose kernel has two ranks."""
    with plain_client(request.param) as client:
        assert client.info()["status"] == "ok"
        for code in START:
            status, text = client.execute(code)
            assert status == "ok", text
        yield client


def test_a_client_without_subshells_answers_questions(vscode):
    vscode.boxes.clear()
    status, text = vscode.execute(
        "%%distributed\nprint('hello', input('who? '))\nprint(input('more? '))", ("ann", "yes")
    )
    assert status == "ok", text
    assert {line.partition("] ")[2] for line in text.splitlines()} == {"hello ann", "yes"}
    assert vscode.boxes == ["[0-1] who? ", "[0-1] more? "]


def test_a_client_without_subshells_debugs(vscode):
    vscode.boxes.clear()
    status, text = vscode.execute(
        "%%distributed\nfor x in [rank]:\n    breakpoint()\n    pass",
        ("p x + 10", "@1 p x + 20", "c"),
    )
    assert status == "ok", text
    assert vscode.boxes == ["[0-1] ipdb> "] * 3
    assert {"[0] 10", "[1] 11", "[1] 21"} <= set(text.splitlines())
    assert "[0] 20" not in text


def test_a_client_without_subshells_goes_on_after_an_error(vscode):
    status, text = vscode.execute("%%distributed\n1 / (rank - 1)")
    assert status == "error"
    assert text.endswith("ZeroDivisionError: rank 1: ZeroDivisionError: division by zero\n")
    assert vscode.execute("%%distributed\nrank") == ("ok", "[0] Out: 0\n[1] Out: 1\n")


@pytest.mark.promise
@pytest.mark.parametrize(
    "cell", ["while True: pass", "input('never? ')", "px.all_sum(1) if rank else input('x')"]
)
def test_a_client_without_subshells_stops_a_cell(vscode, cell):
    vscode.execute(asked_within(0.1))  # in the last of these cells a rank runs on
    began_s: list[float] = []

    def on_output(text: str) -> None:
        is_there = ("waits" if "input" in cell else "] go\n") in text
        if is_there and not began_s:
            began_s.append(time.monotonic())
            vscode.interrupt()

    status, text = vscode.execute(f"%%distributed\nprint('go')\n{cell}", on_output=on_output)
    check(time.monotonic() - began_s[0])
    assert status == "error"
    assert "KeyboardInterrupt" in text
    assert vscode.execute("%%distributed\npx.all_sum(1)") == ("ok", "[0-1] Out: 2\n")
    vscode.execute(ASKED_TOGETHER)


def test_a_widget_of_a_client_without_subshells(vscode, tmp_path):
    """The module comes as text; frames come during a cell, clicks are heard after it."""
    client = vscode.client
    opened: list[dict[str, Any]] = []
    client.execute_interactive("%distributed topology", timeout=60, output_hook=opened.append)
    state = next(
        message["content"]["data"]["state"]
        for message in opened
        if message["msg_type"] == "comm_open" and "_esm" in message["content"]["data"]["state"]
    )
    assert "export{" in state["_esm"]
    assert state["_css"].count("{") > 10
    shown, still = (its["content"]["data"] for its in opened if its["msg_type"] == "display_data")
    comm = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "<svg" in still["image/svg+xml"]
    flag = tmp_path / "flag"
    cell = client.execute(
        "%%distributed\nimport pathlib, time\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.02)"
    )
    ask = {"kind": "ask", "id": "7", "action": "stacks", "rank": 1}
    content = {"comm_id": comm, "data": {"method": "custom", "content": ask}}
    client.shell_channel.send(client.session.msg("comm_msg", content))
    seen = []
    for event in _until_answered(client, comm, cell):
        seen.append(event)
        if event == "frame" and "busy" in seen:
            flag.touch()
    before, after = seen[: seen.index("idle")], seen[seen.index("idle") :]
    assert "frame" in before[before.index("busy") :]
    assert "ack" not in before
    assert {"ack", "answer"} <= set(after)


def _until_answered(client: Any, comm: str, cell: str) -> Iterator[str]:
    """What a widget's page is told, and how the cell stands, until its question is answered."""
    while True:
        message = client.get_iopub_msg(timeout=30)
        content = message["content"]
        if message["msg_type"] == "status" and message["parent_header"].get("msg_id") == cell:
            yield content["execution_state"]
        elif message["msg_type"] == "comm_msg" and content["comm_id"] == comm:
            data = content["data"]
            if data["method"] == "custom":
                yield data["content"]["kind"]
                if data["content"]["kind"] == "answer":
                    return
            elif ["frame"] in data.get("buffer_paths", ()):
                yield "frame"


# -- nobody types -------------------------------------------------------------------------------


def notebook(*cells: str) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


def shown(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells of a notebook that nbclient has run, and the processes that are left of it."""
    made = notebook(
        *START,
        "%distributed monitor",
        "%distributed topology",
        "%%distributed\nfor _ in range(5): px.all_sum(np.ones(100))",
        "%%distributed\nprint('hello', input('who? '))",
        "%%distributed\nprint('still', rank)",
        "%%distributed\nbreakpoint()",
        "%%distributed --ranks 1\nprint(rank)",
        "%%distributed\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)",
        "%distributed stop",
        "print('over')",
    )
    for index in (5, 7, 9):
        made.cells[index].metadata.tags = ["raises-exception"]
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    folder = tmp_path_factory.mktemp("nbclient")
    client = nbclient.NotebookClient(
        made, timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    return made.cells, wait_gone(left, BOUND_S)


@pytest.mark.promise
def test_nbclient_leaves_nothing(executed):
    _, left = executed
    assert left == []


def test_nbclient_is_told_that_nobody_answers_and_goes_on(executed):
    asked, still, broke, last = executed[0][5:9]
    assert asked.outputs[-1].ename == "RuntimeError"
    assert NOBODY in asked.outputs[-1].evalue
    assert sorted(shown(still).splitlines()) == ["[0] still 0", "[1] still 1"]
    assert "nobody can answer '[0-1] ipdb> '" in broke.outputs[-1].evalue
    assert shown(last) == "[1] 1\n"


def test_a_notebooks_file_has_what_came_after_a_widget_was_opened(executed):
    widgets = executed[0][2:4]
    for cell in widgets:
        live, still = cell.outputs
        assert live.data["application/vnd.jupyter.widget-view+json"]["model_id"]
        assert live.data["text/plain"] == ""
        assert set(still.data) == {"image/svg+xml", "text/plain"}
    lanes, world = (cell.outputs[1].data["text/plain"] for cell in widgets)
    assert "rank 0   idle: 5 operations" in lanes
    assert "rank 1   dead killed by signal 9 (SIGKILL): 5 operations" in lanes
    assert "dead" in world


def test_nbclient_ends_where_a_cell_fails_and_the_ranks_with_it(tmp_path):
    start = START[0], "%distributed start -n 2"  # which would leave them for ten minutes
    processes = f"print({root_pid_code('ws')}, *(its.pid for its in ws.topology().ranks))"
    made = notebook(*start, processes, "%%distributed\n1 / 0", "print('never')")
    client = nbclient.NotebookClient(made, timeout=60, resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="ranks 0-1:") as caught:
        client.execute()
    assert caught.value.ename == "ZeroDivisionError"
    assert made.cells[-1].outputs == []
    pids = [int(pid) for pid in shown(made.cells[2]).split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "root and ranks have ended")


@pytest.fixture
def papermill_run(tmp_path):
    """Run cells in papermill, with parameters that are not those of the notebook."""
    papermill = pytest.importorskip("papermill")

    def run(*cells: str) -> nbformat.NotebookNode:
        made = notebook(
            "n = 1\nwho = ''",
            "%load_ext phalanx",
            "%distributed start -n {n} --linger 0",
            *cells,
            "%distributed stop",
        )
        made.cells[0].metadata.tags = ["parameters"]
        path = tmp_path / "in.ipynb"
        nbformat.write(made, path)
        parameters = {"n": 2, "who": "ann"}
        return papermill.execute_notebook(
            path, tmp_path / "out.ipynb", parameters, progress_bar=False, cwd=tmp_path
        )

    return run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_papermill_gives_parameters(papermill_run):
    done = papermill_run(
        "ws.push({'who': who})", "%%distributed\nprint('hello', who, px.all_sum(1))"
    )
    assert "] hello ann 2\n" in shown(done.cells[5])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("last", deep_but(["print('over')"], ["print('over')", "1 / 0"]))
def test_papermills_end_ends_the_ranks_that_nobody_has_stopped(tmp_path, last):
    papermill = pytest.importorskip("papermill")
    processes = f"print({root_pid_code('ws')}, *(its.pid for its in ws.topology().ranks))"
    made = notebook(START[0], "%distributed start -n 2", processes, f"%%distributed\n{last}")
    path = tmp_path / "out.ipynb"
    nbformat.write(made, tmp_path / "in.ipynb")
    with contextlib.suppress(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            tmp_path / "in.ipynb", path, progress_bar=False, cwd=tmp_path, kernel_name="python3"
        )
    cells = nbformat.read(path, 4).cells  # with papermill's notes on an error
    *_, processes, ended = (cell for cell in cells if cell.cell_type == "code")
    assert ended.outputs[-1].output_type == ("error" if "/" in last else "stream")
    pids = [int(pid) for pid in shown(processes).split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "root and ranks have ended")


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_papermill_gives_no_answers(papermill_run):
    papermill = pytest.importorskip("papermill")
    with pytest.raises(papermill.PapermillExecutionError, match="this front end has no input"):
        papermill_run("%%distributed\ninput('who? ')")
