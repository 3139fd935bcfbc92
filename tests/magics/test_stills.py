"""What a notebook's file keeps of live widgets: what was true when it was saved, in a real kernel."""

from __future__ import annotations

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.slow

_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0",
    "%distributed monitor",
    "%distributed topology",
    "%%distributed\nfor _ in range(5): px.all_sum(np.ones(100))",
    "%%distributed\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)",
    "%distributed stop",
    "print('over')",
)


def test_the_file_has_what_came_after_a_widget_was_opened():
    cells = [nbformat.v4.new_code_cell(source) for source in _CELLS]
    cells[5].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    for cell in (cells[2], cells[3]):
        live, still = cell.outputs
        assert live.data["application/vnd.jupyter.widget-view+json"]["model_id"]
        assert live.data["text/plain"] == ""
        assert set(still.data) == {"image/svg+xml", "text/plain"}
    lanes, world = (cell.outputs[1].data["text/plain"] for cell in (cells[2], cells[3]))
    assert "rank 0   idle: 5 operations" in lanes
    assert "rank 1   dead killed by signal 9 (SIGKILL): 5 operations" in lanes
    assert "dead" in world
