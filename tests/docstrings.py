"""Hold the docstrings of the public names to numpydoc: `tests/run lint` calls this.

It knows where public names are defined. Which checks there are is said in pyproject.toml
(tool.numpydoc_validation), and what they mean by numpydoc.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from numpydoc.hooks.validate_docstrings import run_hook

import phalanx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kernel_ext" / "phalanx"


def public_files() -> list[Path]:
    """Return the files of this checkout in which a public name, or a base of one, is written."""
    things = [getattr(phalanx, name) for name in phalanx.__all__]
    files = set()
    for thing in things:
        for one in inspect.getmro(thing) if inspect.isclass(thing) else [thing]:
            if getattr(one, "__module__", "").startswith("phalanx."):
                files.add(here(Path(inspect.getfile(one))))
    return sorted(files)


def here(installed: Path) -> Path:
    """Return the source in this checkout, which may not be what is installed."""
    if installed.resolve().is_relative_to(PACKAGE):
        return installed.resolve()
    return PACKAGE / installed.relative_to(Path(phalanx.__file__).parent)


def main() -> int:
    """Check everything of what ranks call, and of all else what its parameters are."""
    files = [path.relative_to(ROOT).as_posix() for path in public_files()]
    called = [name for name in files if "/distributed/" in name]
    others = [name for name in files if name not in called]
    wrong = run_hook(called, config=str(ROOT))
    return run_hook(others, config=str(ROOT), ignore=["EX01", "RT01"]) or wrong


if __name__ == "__main__":
    sys.exit(main())
