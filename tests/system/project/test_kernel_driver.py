"""The driver stops what a failed test leaves, and notices a kernel that died."""

from __future__ import annotations

import pytest
from support.notebooks.kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


def test_what_a_failed_test_leaves_is_stopped():
    with KernelDriver() as kernel:
        waiting = kernel.submit("input('nobody answers ')")
        queued = kernel.submit("while True: pass")
        waiting.until(lambda so_far: bool(so_far.prompts))
        kernel.stop_cells()
        assert waiting.is_done
        assert queued.is_done
        assert kernel.run("1 + 1").text == "2\n"


def test_a_killed_kernel_is_noticed():
    with KernelDriver() as kernel:
        running = kernel.submit("print(1)\nwhile True: pass")
        running.until(lambda so_far: so_far.stdout == "1\n")
        kernel.kill()
        with pytest.raises(ConnectionError, match="the kernel died"):
            running.result()
