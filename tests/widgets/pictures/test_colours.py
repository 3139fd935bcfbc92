"""The colours of operations: each its own, told apart with every kind of colour vision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import phalanx.widgets
from phalanx import _native
from phalanx.widgets.stills.monitor import OPERATION_COLOURS

_STATIC = Path(phalanx.widgets.__file__).with_name("static")
# Of linear RGB, for who lacks a kind of cones: Machado et al. 2009, doi:10.1109/TVCG.2009.113.
_VISIONS = {
    "all": np.eye(3),
    "no long": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no middle": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = np.array([0.95047, 1.0, 1.08883])
LEAST_APART = 10.0  # in CIELAB: 2.3 is what an eye just sees between colours side by side


def _lab(colour: str, vision) -> np.ndarray:
    shown = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(_XYZ @ (np.asarray(vision) @ linear).clip(0, 1) / _WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _themes() -> list[dict[str, str]]:
    """The colours of the live view: light and dark."""
    css = (_STATIC / "monitor.css").read_text(encoding="utf-8")
    pattern = r"--px-op-([a-z-]+):\s*var\(--px-in-light, (#\w+)\) var\(--px-in-dark, (#\w+)\)"
    found = [(name.replace("-", "_"), *colours) for name, *colours in re.findall(pattern, css)]
    return [{name: _full(pair[theme]) for name, *pair in found} for theme in (0, 1)]


def _full(colour: str) -> str:
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


def test_each_operation_of_the_engine_has_one():
    assert set(_native.trace_names()["op"].values()) == set(OPERATION_COLOURS)
    light, _ = _themes()
    assert light == OPERATION_COLOURS


def _rules(css: str) -> Iterator[tuple[str, frozenset[str], dict[str, str]]]:
    """Each rule: the medium it is for, its selectors, what it sets."""
    pattern = r"(@media[^{]+)\{((?:[^{}]+\{[^{}]*\})*)\}|([^{}]+)\{([^{}]*)\}"
    for medium, inside, selectors, body in re.findall(pattern, css):
        if medium:
            its = re.sub(r"\s", "", medium)
            yield from ((its, *rest) for _, *rest in _rules(inside))
            continue
        pairs = (its.partition(":") for its in body.split(";") if ":" in its)
        sets = {name.strip(): value.strip() for name, _, value in pairs}
        yield "", frozenset(its.replace('"', "").strip() for its in selectors.split(",")), sets


@pytest.mark.parametrize("widget", ["topology", "monitor", "bandwidth"])
def test_a_dark_page_has_the_dark_colours(widget):
    """Of the two colours of a line the one whose switch is `initial` counts."""
    css = (_STATIC / f"{widget}.css").read_text(encoding="utf-8")
    switched = {
        (medium, selectors): (sets["--px-in-light"], sets["--px-in-dark"])
        for medium, selectors, sets in _rules(css)
        if {"--px-in-light", "--px-in-dark"} & set(sets)
    }
    front_ends = {
        "body[data-jp-theme-light=false] .phalanx",
        "body.vscode-dark .phalanx",
        "body.vscode-high-contrast:not(.vscode-high-contrast-light) .phalanx",
    }
    no_theme = "body:not([data-jp-theme-light]):not(.vscode-light):not(.vscode-high-contrast-light)"
    dark = "", "initial"
    assert switched == {
        ("", frozenset({".phalanx"})): ("initial", ""),
        ("", frozenset(front_ends)): dark,
        ("@media(prefers-color-scheme:dark)", frozenset({f"{no_theme} .phalanx"})): dark,
        (
            "@media(forced-colors:active)and(prefers-color-scheme:dark)",
            frozenset({"html body .phalanx.phalanx"}),
        ): dark,
    }


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("vision", _VISIONS)
def test_no_two_look_alike(theme, vision):
    colours = {op: _lab(colour, _VISIONS[vision]) for op, colour in _themes()[theme].items()}
    apart = {
        pair: float(np.linalg.norm(colours[pair[0]] - colours[pair[1]]))
        for pair in combinations(colours, 2)
    }
    assert min(apart.values()) > LEAST_APART, min(apart, key=apart.__getitem__)
