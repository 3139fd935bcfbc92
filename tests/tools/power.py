"""Measure whether the tests find faults: put each patch of ``power_faults`` into a checkout and test it.

    tests/tools/power.py [PATCH ...]

A patch undoes a fix of the history (h, r) or has a fault that was chosen from the source alone (f). Its
first line says what a user sees; its ``# near:`` line names the tests to run: folders and files of
tests, ``native`` or ``widgets``. They run by the checkout's own `tests/run`, in an environment of its own.
A patch that no longer applies is an error: port it, or delete it. ``power_faults/RESULTS.md`` has the
last results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "tools" / "power_faults"
PLACE = ROOT / "build" / "power"
TREE = PLACE / "tree"
# What gate.py prints of a test that fails each time, and of too many to repeat.
_BROKEN = re.compile(r"^BROKEN: (.+?): failed,|^(tests of \d+ files failed)", re.MULTILINE)


def git(*words: str | Path, cwd: Path = TREE) -> None:
    """Run git, which must end well."""
    subprocess.run(["git", *words], cwd=cwd, check=True)


def groups(patch: Path) -> list[list[str]]:
    """Return the words for `tests/run` of each group of tests that is near a fault."""
    near = re.findall(r"^# near: (.*)$", patch.read_text(encoding="utf-8"), re.MULTILINE)
    names = " ".join(near).split()
    found = [[name] for name in names if name in {"native", "widgets"}]
    files = [name for name in names if name.startswith("tests/")]
    if missing := [name for name in files if not (TREE / name).exists()]:
        sys.exit(f"{patch.name} names tests that are not there: {missing}")
    return [*found, *([["python", *files]] if files else [])]


def finder_of(patch: Path) -> str:
    """Return the tests that fail with the fault; "" where all near it pass."""
    git("checkout", "-q", ".")
    git("apply", "--recount", patch.resolve())
    env = {**os.environ, "PHALANX_TEST_VENV": str(PLACE / "venv")}
    log = PLACE / f"{patch.stem}.log"
    for words in groups(patch):
        with log.open("w", encoding="utf-8") as output:
            status = subprocess.run(
                ["tests/run", *words], cwd=TREE, env=env, stdout=output, stderr=output, check=False
            ).returncode
        broken = ["".join(found) for found in _BROKEN.findall(log.read_text(encoding="utf-8"))]
        if status and not broken:
            sys.exit(f"{patch.name}: tests/run {words[0]} itself failed, see {log}")
        if broken:
            return ", ".join(broken)
    return ""


def main(words: Sequence[str]) -> int:
    """Look for each fault; return 1 if the tests near one do not find it."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if not TREE.exists():
        git("worktree", "add", "-q", "--detach", TREE, "HEAD", cwd=ROOT)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    git("checkout", "-q", "--force", "--detach", commit)
    n_missed = 0
    for patch in [Path(word) for word in words] or sorted(FAULTS.glob("*.patch")):
        finder = finder_of(patch)
        print(f"{patch.stem}: {finder or 'NOT FOUND'}", flush=True)
        n_missed += not finder
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
