"""`tqdm.notebook` in a rank: a bar of text, which moves; a widget of a rank has no front end.

It knows how modules are found, and tqdm's classes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

__all__ = ["prepare_bars"]

NOTEBOOK = "tqdm.notebook"


def prepare_bars() -> None:
    """Have `tqdm.notebook` (and so `tqdm.auto`) draw as `tqdm` does."""
    sys.meta_path.insert(0, _TextBars())


class _TextBars(MetaPathFinder, Loader):
    """Finds that module, and makes it of tqdm's bars for terminals."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Take this one name; others are for those who come after."""
        return spec_from_loader(fullname, self) if fullname == NOTEBOOK else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill it. What `tqdm.auto` looks for in it is missing: it takes the bars for terminals."""
        std: Any = importlib.import_module("tqdm.std")

        class TextBar(std.tqdm):  # type: ignore[misc]
            """A bar of text, with the words of a notebook's."""

            def __init__(self, *args: Any, display: bool = True, **options: Any) -> None:
                options.setdefault("disable", not display)
                super().__init__(*args, **options)

        def text_range(*args: int, **options: Any) -> Any:
            return TextBar(range(*args), **options)

        names = {"tqdm": TextBar, "trange": text_range}
        names |= {"tqdm_notebook": TextBar, "tnrange": text_range}
        vars(module).update(names)
