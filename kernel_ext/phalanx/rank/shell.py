"""Prepare IPython's shell in a rank, and bind our names there."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

import phalanx
from phalanx.distributed.bootstrap.supervised import join

from .cell import CELL, cell_name
from .debugger import prepare_debuggers
from .visual_debugger import VisualDebugger

JOIN_TIMEOUT_S = 30.0
_OF_THE_WORLD = ("rank", "size", "world")  # not px and np: to rebind these is an import
_HINT = "ends the cell, not the rank; %distributed stop ends the ranks"
_WHERE = "a cell of the notebook"
_MAGICS = ("distributed", "autodistributed", "local")
_NOTEBOOK_BARS = "tqdm.notebook"


def prepare_shell(
    shell: Any, panel: VisualDebugger, has_widgets: Callable[[], bool]
) -> Callable[[str, int], None]:
    """Fit IPython's shell to a rank; return the function that numbers cells.

    That function takes the client and the number of each cell before it runs; 0: the cell has no
    number. Of an earlier client's cells no number is shown: another notebook counts anew.
    """
    _keep_no_outputs(shell)
    sys.meta_path.insert(0, _TextBars(has_widgets))
    prepare_debuggers(shell, panel)
    _prepare_exit(shell)
    for name in _MAGICS:
        shell.register_magic_function(_refusal(name), "line_cell", name)
    return _prepare_cell_names(shell)


class OwnNames:
    """The names ``rank size world px np`` that we bind for the cells.

    A name that the user has bound is left alone.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> shell = SimpleNamespace(user_ns={})
    >>> names = OwnNames(shell, 0, 2)
    >>> shell.user_ns["size"] = 100
    >>> names.warning()
    'phalanx: size is not of this world any more, this cell has rebound it; del size brings it back'
    >>> names.warning()
    ''
    """

    def __init__(self, shell: Any, rank: int, size: int) -> None:
        self._shell = shell
        self._names: dict[str, Any] = {"rank": rank, "size": size, "px": phalanx, "np": np}
        self._has_warned = False
        self.restore()

    def restore(self) -> None:
        """Bind the missing names again: `%reset` deletes ours too."""
        for name, value in self._names.items():
            self._shell.user_ns.setdefault(name, value)

    def enter(self) -> None:
        """Join the present world, and bind its names.

        Called when the ranks are up, and again before a cell after an epoch has ended.
        """
        world = join(JOIN_TIMEOUT_S)
        self._names |= {"world": world, "rank": world.rank(), "size": world.size()}
        self.restore()

    def warning(self) -> str:
        """Return one warning about names that the user has rebound, or ""."""
        bound = self._shell.user_ns
        rebound = [
            name
            for name in _OF_THE_WORLD
            if name in self._names.keys() & bound and not _is_same(bound[name], self._names[name])
        ]
        if self._has_warned or not rebound:
            return ""
        self._has_warned = True
        are, them = ("is", "it") if len(rebound) == 1 else ("are", "them")
        return (
            f"phalanx: {' and '.join(rebound)} {are} not of this world any more, this cell has "
            f"rebound {them}; del {', '.join(rebound)} brings {them} back"
        )


def _is_same(value: object, own: object) -> bool:
    return value is own or (type(value) is int and type(own) is int and value == own)


def _prepare_cell_names(shell: Any) -> Callable[[str, int], None]:
    """Name cells by a hash; in tracebacks by the notebook's number.

    A cell has the same file name on all ranks, so that equal output is equal. IPython's own count
    is of the cells of this rank, and the notebook has another count.
    """
    from IPython.core import oinspect

    newest = ""
    now = "", 0
    numbers: dict[str, tuple[str, int]] = {}  # by file name

    def begin(client: str, number: int) -> None:
        nonlocal now
        now = client, number

    def name_of(_raw: str, transformed_code: str, _number: int) -> str:
        nonlocal newest
        newest = cell_name(transformed_code)
        numbers[newest] = now
        return newest

    def words_for(name: str) -> tuple[str, str] | None:
        if not name.startswith(CELL):
            return None  # not a cell: IPython names the file
        client, number = numbers.get(name, ("", 0))
        if number and client == now[0]:
            return "Cell", f"In[{number}]"
        return ("This" if name == newest else "Earlier"), "cell"

    def file_of(thing: Any) -> str | None:
        found = find_file(thing)
        return _WHERE if found is not None and f"/{CELL}" in found else found

    find_file = oinspect.find_file
    oinspect.find_file = file_of  # the original joins a cell's name to the current folder
    shell.compile.get_code_name = name_of
    shell.compile.format_code_name = words_for
    return begin


def _prepare_exit(shell: Any) -> None:
    """Have `exit` and `quit` raise SystemExit, as in a script.

    IPython's own would end this process a moment after the cell, during the next cell.
    """
    from IPython.core.autocall import ZMQExitAutocall

    class LeaveCell(ZMQExitAutocall):  # type: ignore[misc]
        """Exit the cell; works by its bare name too, as IPython's does."""

        def __call__(self, code: object = None, *, keep_kernel: bool = False) -> None:
            raise SystemExit(code)

    shell.exiter = LeaveCell(shell)  # `%reset` binds `exit` from here
    shell.user_ns["exit"] = shell.user_ns["quit"] = shell.exiter
    # IPython's advice for a terminal does not apply here.
    warnings.filterwarnings("ignore", "To exit: use 'exit', 'quit'", UserWarning)


def say_left(value: str) -> str:
    """Say that the cell ended with SystemExit, and its value.

    Examples
    --------
    >>> say_left("3")
    '3 (ends the cell, not the rank; %distributed stop ends the ranks)'
    """
    return f"{value} ({_HINT})" if value and value != "None" else f"it {_HINT}"


def _refusal(name: str) -> Callable[..., NoReturn]:
    """Return a magic that says where ours are used.

    IPython would say that there are none.
    """
    from IPython.core.error import UsageError

    def refuse(line: str, cell: str | None = None) -> NoReturn:  # noqa: ARG001
        """Refuse the magic and say where to use it."""
        magic = f"%{name}" if cell is None else f"%%{name}"
        msg = (
            f"{magic} is the notebook's, and this cell runs on the ranks: give it a cell of its own"
        )
        raise UsageError(msg)

    return refuse


class _NoOutputs(dict[int, Any]):
    """Give a new list for each key and keep none."""

    def __missing__(self, key: int) -> list[Any]:
        return []

    def __setitem__(self, key: int, value: Any) -> None:
        pass


def _keep_no_outputs(shell: Any) -> None:
    """Make IPython keep no copy of the output and errors of cells.

    IPython 9 and later keep all output for `%notebook`: a rank grew by 185 bytes with each `print`.
    They also format each error once more, and lose the error if its class or text raises then.
    """
    history = shell.history_manager
    for name in ("outputs", "exceptions"):
        if hasattr(history, name):
            setattr(history, name, _NoOutputs())
    shell._format_exception_for_storage = lambda *_, **__: {}


class _TextBars(MetaPathFinder, Loader):
    """Make `tqdm.notebook` (and so `tqdm.auto`) draw text without widgets.

    ``has_widgets`` is asked when the module is imported: where widgets are live, bars are, too.
    """

    def __init__(self, has_widgets: Callable[[], bool]) -> None:
        self._has_widgets = has_widgets

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find `tqdm.notebook`; leave other names to the next finder."""
        if fullname != _NOTEBOOK_BARS or self._has_widgets():
            return None
        return spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with text bars.

        `tqdm.auto` looks for a name that is missing here and then uses the bars for terminals.
        """
        std: Any = importlib.import_module("tqdm.std")

        class TextBar(std.tqdm):  # type: ignore[misc]
            """Bar of text that takes the arguments of a notebook's bar."""

            def __init__(self, *args: Any, display: bool = True, **options: Any) -> None:
                options.setdefault("disable", not display)
                super().__init__(*args, **options)

        def text_range(*args: int, **options: Any) -> Any:
            return TextBar(range(*args), **options)

        names = {"tqdm": TextBar, "trange": text_range}
        names |= {"tqdm_notebook": TextBar, "tnrange": text_range}
        vars(module).update(names)
