"""What cells are called on a rank: in tracebacks, in descriptions, as files.

It knows IPython's compiler and inspector, nothing of debuggers.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["CELL", "prepare_cell_names"]

CELL = "<cell "  # how the file names of cells begin
_WHERE = "a cell of the notebook"


def prepare_cell_names(shell: Any) -> None:
    """Name cells by their text, and tell the one that runs from those before it.

    A cell has the same file name on all ranks, so that equal output is equal. IPython's words,
    ``In[7]``, would be how many cells this rank has run, which is another one in the notebook.
    """
    from IPython.core import oinspect

    newest = ""

    def name_of(_raw: str, transformed_code: str, _number: int) -> str:
        nonlocal newest
        digest = hashlib.sha256(transformed_code.encode(errors="replace")).hexdigest()
        newest = f"{CELL}{digest[:8]}>"
        return newest

    def words_for(name: str) -> tuple[str, str] | None:
        if not name.startswith(CELL):
            return None  # IPython says which file it is
        return ("This" if name == newest else "Earlier"), "cell"

    def file_of(thing: Any) -> str | None:
        found = find_file(thing)
        return _WHERE if found is not None and f"/{CELL}" in found else found

    find_file = oinspect.find_file
    oinspect.find_file = file_of  # it makes a path of a cell's name, in the current folder
    shell.compile.get_code_name = name_of
    shell.compile.format_code_name = words_for
