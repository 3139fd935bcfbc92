"""Run notebooks in front ends other than JupyterLab: VS Code's protocol, nbclient, papermill."""

from __future__ import annotations

from collections.abc import Iterator

import nbclient
import nbformat
import psutil
import pytest
from nbclient.exceptions import CellExecutionError
from support.inside import root_pid_code
from support.notebooks.kernel_driver import RunningCell
from support.notebooks.notebook_kernel import NotebookKernel
from support.patience import ASKED_TOGETHER, TOGETHER, asked_within
from support.programs.processes import wait_gone
from support.promise import BOUND_S, within
from support.waiting import wait_until

pytestmark = pytest.mark.slow

START = (
    f"%load_ext phalanx\n{ASKED_TOGETHER}\n{TOGETHER}",
    "%distributed start -n 2 --linger 0",
)
PROCESSES = f"print({root_pid_code('ws')}, *(its.pid for its in ws.topology().ranks))"
NOBODY = "nobody can answer '[0-1] who? ': this front end has no input"


@pytest.fixture(scope="module")
def vscode():
    """Two ranks of a kernel that is stopped by a message, as in VS Code; other tests use the signal."""
    with NotebookKernel(ASKED_TOGETHER, TOGETHER, interrupt_mode="message") as kernel:
        kernel.need_ranks("-n 2")
        yield kernel


@pytest.mark.promise
@pytest.mark.parametrize(
    "cell", ["while True: pass", "input('never? ')", "px.all_sum(1) if rank else input('x')"]
)
def test_a_stop_that_is_a_message_ends_a_cell(vscode, cell):
    vscode.run(asked_within(0.1))  # in the last of these cells a rank runs on
    running = vscode.submit(f"%%distributed\nprint('go')\n{cell}")
    running.until(lambda its: its.prompts if "input" in cell else "[0-1] go\n" in its.stdout)
    with within():
        vscode.interrupt()
        result = running.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert vscode.run("%%distributed\npx.all_sum(1)").stdout == "[0-1] Out: 2\n"
    vscode.run(ASKED_TOGETHER)


def test_a_widget_of_a_client_without_subshells(vscode, tmp_path):
    """The module comes as text; frames come during a cell, clicks are heard after it."""
    live, still = (o["data"] for o in vscode.run("%distributed topology").outputs)
    comm = live["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "export{" in vscode.models[comm]["_esm"]
    assert vscode.models[comm]["_css"].count("{") > 10
    assert "<svg" in still["image/svg+xml"]
    flag = tmp_path / "flag"
    cell = vscode.submit(
        "%%distributed\nimport pathlib, time\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.02)"
    )
    ask = {"kind": "ask", "id": "7", "action": "stacks", "rank": 1}
    vscode.say(comm, {"method": "custom", "content": ask})
    seen = []
    for event in _until_answered(vscode, comm, cell):
        seen.append(event)
        if event == "frame" and "busy" in seen:
            flag.touch()
    before, after = seen[: seen.index("idle")], seen[seen.index("idle") :]
    assert "frame" in before[before.index("busy") :]
    assert "ack" not in before
    assert {"ack", "answer"} <= set(after)


def _until_answered(kernel: NotebookKernel, comm: str, cell: RunningCell) -> Iterator[str]:
    """What a widget's page is told, and how the cell stands, until its question is answered."""
    while True:
        for channel, message in kernel.messages(1.0):
            kind, content = message["msg_type"], message["content"]
            if kernel.cells.get(message["parent_header"].get("msg_id")) is cell:
                cell.take(channel, kind, content)
                if kind == "status":
                    yield content["execution_state"]
            if kind == "comm_msg" and content["comm_id"] == comm:
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


def wait_ended(processes: nbformat.NotebookNode) -> None:
    """Wait until the processes that the cell `PROCESSES` has printed have ended."""
    pids = [int(pid) for pid in shown(processes).split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "root and ranks have ended")


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
    made = notebook(*start, PROCESSES, "%%distributed\n1 / 0", "print('never')")
    client = nbclient.NotebookClient(made, timeout=60, resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="ranks 0-1:") as caught:
        client.execute()
    assert caught.value.ename == "ZeroDivisionError"
    assert made.cells[-1].outputs == []
    wait_ended(made.cells[2])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_papermill_gives_parameters_and_its_end_ends_the_ranks(tmp_path):
    papermill = pytest.importorskip("papermill")
    made = notebook(
        "n = 1\nwho = ''",
        START[0],
        "%distributed start -n {n}",
        PROCESSES,
        "ws.push({'who': who})",
        "%%distributed\nprint('hello', who, px.all_sum(1))",
    )
    made.cells[0].metadata.tags = ["parameters"]
    nbformat.write(made, tmp_path / "in.ipynb")
    paths, parameters = (tmp_path / "in.ipynb", tmp_path / "out.ipynb"), {"n": 2, "who": "ann"}
    done = papermill.execute_notebook(*paths, parameters, progress_bar=False, cwd=tmp_path)
    *_, processes, _, said = done.cells
    assert "] hello ann 2\n" in shown(said)
    wait_ended(processes)
