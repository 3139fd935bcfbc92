"""Every module can be imported, and the examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import phalanx

_ROOT = Path(phalanx.__file__).parents[1]
_FILES = [path for path in sorted(_ROOT.glob("phalanx/**/*.py")) if path.stem != "__main__"]


def _name_of(path: Path) -> str:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def test_every_module_can_be_imported():
    for path in _FILES:
        importlib.import_module(_name_of(path))


@pytest.mark.parametrize(
    "name", [_name_of(path) for path in _FILES if ">>> " in path.read_text(encoding="utf-8")]
)
def test_examples(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
