"""Hold the docstrings of the public names to numpydoc: `tests/run lint` calls this.

pyproject.toml (tool.numpydoc_validation) names the checks; numpydoc documents them.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from numpydoc.hooks.validate_docstrings import parse_config, process_file

import phalanx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kernel_ext" / "phalanx"


def public_names() -> dict[Path, set[str]]:
    """Return by file of this checkout the public names, and their bases, that it defines."""
    found: dict[Path, set[str]] = {}
    things = [getattr(module, name) for module in (phalanx, phalanx.nn) for name in module.__all__]
    for thing in things:
        for one in inspect.getmro(thing) if inspect.isclass(thing) else [thing]:
            if getattr(one, "__module__", "").startswith("phalanx."):
                path = checkout_path(Path(inspect.getfile(one)))
                found.setdefault(path, set()).add(one.__name__)
    return found


def checkout_path(installed: Path) -> Path:
    """Return the source in this checkout, which may differ from what is installed."""
    if installed.resolve().is_relative_to(PACKAGE):
        return installed.resolve()
    return PACKAGE / installed.relative_to(Path(phalanx.__file__).parent)


def findings(path: Path, names: set[str]) -> list[str]:
    """Return a line for each fault in the docstrings of ``names`` and of their members."""
    config = parse_config(ROOT)
    if path.relative_to(PACKAGE).parts[0] not in ("distributed", "nn"):
        config["checks"] -= {"EX01", "RT01"}  # examples and returns: of what ranks call
    return [
        f"{line}: {check} {description}"
        for line, item, check, description in process_file(path, config)
        if item.removeprefix(f"{path.stem}.").partition(".")[0] in names
    ]


def main() -> int:
    """Print all faults; return 1 if there is one."""
    lines = [line for path, names in sorted(public_names().items()) for line in findings(path, names)]  # fmt: skip
    print("\n".join(lines) or "no faults")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
