"""What a failed test in a browser leaves behind is ended with its server."""

from __future__ import annotations

import psutil
import pytest
from support.notebooks.jupyter_servers import end_ranks
from support.notebooks.kernel_driver import KernelDriver
from support.programs.processes import wait_gone
from support.runs.tiers import deep


@deep
@pytest.mark.slow
def test_ranks_of_a_kernel_that_has_ended_are_ended(tmp_path):
    with KernelDriver(XDG_RUNTIME_DIR=str(tmp_path)) as kernel:
        started = kernel.run("%load_ext phalanx\n%distributed start -n 2")
        assert started.status == "ok", started.text
        ranks = psutil.Process(kernel.pid).children(recursive=True)
        kernel.kill()  # a shutdown would end them
    assert any(process.is_running() for process in ranks)
    end_ranks(tmp_path)
    assert wait_gone(ranks) == []
    end_ranks(tmp_path)
