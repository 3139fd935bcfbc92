"""Give tests a kernel with the extension whose ranks go from one test to the next."""

from __future__ import annotations

import os

from support.notebooks.kernel_driver import KernelDriver


class NotebookKernel(KernelDriver):
    """A kernel with the extension; ``first`` are cells that it runs before all others."""

    def __init__(self, *first: str, cwd: str | os.PathLike[str] | None = None, **env: str) -> None:
        super().__init__(cwd=cwd, **env)
        self._ranks = ""
        try:
            for code in ("%load_ext phalanx", *first):
                self._run_well(code)
        except BaseException:
            self.close()
            raise

    def _run_well(self, code: str) -> None:
        result = self.run(code)
        assert result.status == "ok", result.text

    def need_ranks(self, options: str) -> bool:
        """Start ranks with these options, unless the test before has left such ranks.

        Return whether the ranks are new.
        """
        if self._ranks == options:
            return False
        self.end_ranks()
        self._run_well(f"%distributed start --linger 0 {options}")
        self._ranks = options
        return True

    def end_ranks(self) -> None:
        """Stop the ranks, if there are any; what is left of broken ones goes as well."""
        self.run("%distributed stop")
        self._ranks = ""
