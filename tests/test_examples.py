"""The examples in docstrings run, and say what they print."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import phalanx

_MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(phalanx.__path__, "phalanx.")
    if not found.name.endswith("__main__")
)


@pytest.mark.parametrize("name", _MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
