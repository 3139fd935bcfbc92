"""`%distributed config`: `phalanx config` as a program of its own, and its picture in the notebook.

A program, so that a host that hangs is interrupted as any cell; its words and texts are the command
line's.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from IPython.display import display

from ._arguments import UsageMistake

__all__ = ["show_config"]

_PREFIX = "phalanx config: "


def show_config(line: str) -> None:
    """Run it with these words; prints what it prints, and shows the picture.

    Raises
    ------
    UsageMistake
        It has failed; the text is its own.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        msg = f"{error} in: {line}"
        raise UsageMistake(msg) from None
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        path = Path(folder) / "hosts.svg"
        own = [] if any(word.startswith("--svg") for word in words) else ["--svg", str(path)]
        status, said = _run([sys.executable, "-m", "phalanx.cli", "config", *words, *own])
        if path.is_file():
            # Nothing as text: a terminal has the hostfile.
            display({"image/svg+xml": path.read_text(encoding="utf-8")}, raw=True)
    if status:
        raise UsageMistake(said or f"phalanx config has ended with status {status}")


def _run(command: list[str]) -> tuple[int, str]:
    """Return the exit status and the last line of stderr, which is not shown when it has failed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True
        )
        last = ""
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if last:
                    sys.stderr.write(last)
                last = line
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if not status and last:
            sys.stderr.write(last)
        out.seek(0)
        sys.stdout.write(out.read())
    return status, last.strip().removeprefix(_PREFIX)
