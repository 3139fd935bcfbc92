"""Measure whether the tests find faults: undo fixes of the history, and put in new ones.

``power.py draw --seed N`` draws commits that changed source and tests, and writes the reverse of each
source part to ``build/power/patches``; what no longer reverts is named, to be replaced by hand with
the same fault. ``tests/tools/power_faults`` holds faults that were used: fixes undone (h: as drawn,
r: in place of a drawn commit that mended no fault), and faults chosen from the source alone (f). The
first lines of a patch say what a user sees, and ``# near: tests/a.py native`` where to look first.

``power.py run`` applies each patch to a checkout of its own and runs the nearest tests, then the first
tier, then the deep tier, until one fails. A test that failed is run alone, with the fault and without it, to confirm the
find. ``build/power/results.jsonl`` has a line for each patch; one that no longer applies is an ``error`` there: port it,
or delete it. ``power_faults/RESULTS.md`` has the last results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "power"
SOURCES = ("kernel_ext", "native", "widgets")
BUNDLES = (":!widgets/static", ":!widgets/labextension")  # no sources: git leaves them out
MOST_LINES = 80  # of a source part: what is larger is a feature, not a fix


def git(*words: str, cwd: Path = ROOT, check: bool = True) -> str:
    done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=False)
    if check and done.returncode:
        msg = f"git {' '.join(words)}: {done.stderr}"
        raise RuntimeError(msg)
    return done.stdout


# -- drawing ------------------------------------------------------------------------------------


def candidates() -> list[str]:
    """Commits that changed both source and tests, and not much source."""
    found = []
    for commit in git("log", "--no-merges", "--format=%H").split():
        rows = [
            row.split("\t") for row in git("show", "--format=", "--numstat", commit).splitlines()
        ]
        rows = [row for row in rows if len(row) == 3 and "static/" not in row[2]]
        source = [row for row in rows if row[2].startswith(SOURCES) and re.search(r"\.(py|cpp|hpp|ts)$", row[2])]  # fmt: skip
        lines = sum(int(row[0]) + int(row[1]) for row in source if row[0] != "-")
        if source and lines <= MOST_LINES and any(row[2].startswith("tests/") for row in rows):
            found.append(commit)
    return found


def near(commit: str) -> list[str]:
    """The test files that a commit changed and that are still there, and C++ or the widgets' side."""
    names = git("show", "--format=", "--name-only", commit).split()
    found = [n for n in names if re.fullmatch(r"tests/.*test_\w+\.py", n) and (ROOT / n).exists()]
    if any(name.startswith(("native/", "tests/native/")) for name in names):
        found.append("native")
    if any(name.startswith("widgets/js/") for name in names):
        found.append("widgets")
    return found


def draw(seed: int, n: int) -> None:
    """Write the patches of ``n`` drawn commits; name those that do not revert."""
    folder = PLACE / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    commits = candidates()
    print(f"seed {seed}, {len(commits)} candidates")
    for number, commit in enumerate(random.Random(seed).sample(commits, n)):
        subject = git("log", "-1", "--format=%s", commit).strip()
        patch = git("diff", "-M", commit, f"{commit}^", "--", *SOURCES, *BUNDLES)
        check = ["git", "apply", "--check", "--recount", "-"]
        applies = not subprocess.run(check, cwd=ROOT, input=patch, text=True, capture_output=True, check=False).returncode  # fmt: skip
        name = f"h{number:02}-{commit[:9]}"
        head = f"# {subject}\n# near: {' '.join(near(commit))}\n"
        (folder / f"{name}{'.patch' if applies else '.by-hand'}").write_text(head + patch)
        print(f"{name} {'reverts' if applies else 'BY HAND'}  {subject}")


# -- running ------------------------------------------------------------------------------------


class Checkout:
    """A worktree with a fault in it, and the package built from it."""

    def __init__(self, folder: Path, at: str) -> None:
        self.commit = git("rev-parse", f"{at}^{{commit}}").strip()
        self.tree = folder / "tree"
        self.site = folder / "site"
        self.good_site = folder / f"site-{self.commit[:9]}"  # without a fault
        if not self.tree.exists():
            git("worktree", "add", "--detach", str(self.tree), self.commit)

    def take(self, patch: Path) -> None:
        """Apply the patch to the commit, and make the package of it."""
        self._reset()
        if not self.good_site.exists():
            self._build(self.good_site)
        git("apply", "--recount", str(patch.resolve()), cwd=self.tree)
        shutil.rmtree(self.site, ignore_errors=True)
        if re.search(r"^\+\+\+ b/native/", patch.read_text(), re.MULTILINE):
            self._build(self.site)
            return
        shutil.copytree(self.good_site, self.site)
        for name in git("diff", "--name-only", cwd=self.tree).split():
            target = self.site / name.replace("kernel_ext/", "").replace("widgets/", "phalanx/widgets/", 1)  # fmt: skip
            if (self.tree / name).exists() and target.parent.exists():
                shutil.copyfile(self.tree / name, target)
            else:
                target.unlink(missing_ok=True)

    def _reset(self) -> None:
        git("checkout", "-q", ".", cwd=self.tree)
        git("clean", "-fdq", *SOURCES, cwd=self.tree)
        git("checkout", "-q", "--detach", self.commit, cwd=self.tree)

    def _build(self, site: Path) -> None:
        """Build a wheel of the tree and unpack it; what a patch does not touch stays compiled."""
        wheel = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", "build/w", "."]
        shutil.rmtree(self.tree / "build" / "w", ignore_errors=True)
        subprocess.run(wheel, cwd=self.tree, check=True)
        (built,) = (self.tree / "build" / "w").glob("*.whl")
        shutil.unpack_archive(built, site, "zip")

    def first_failure(self, tests: Sequence[str], marks: str | None) -> str | None:
        """Run tests until one fails: which one. A run that is no test's failure is an error."""
        env = {**os.environ, "PYTHONPATH": str(self.site), "PHALANX_NO_HISTORY": "1"}
        files = [name for name in tests if name not in {"native", "widgets"}]
        if missing := [name for name in files if not (self.tree / name).exists()]:
            msg = f"the patch names tests that are not there: {missing}"
            raise RuntimeError(msg)
        if "native" in tests:
            words = ["timeout", "900", "tests/native/run", "plain"]
            if subprocess.run(
                words, cwd=self.tree, env=env, capture_output=True, check=False
            ).returncode:
                return "native"
        if "widgets" in tests:
            shutil.copytree(ROOT / "widgets/js/node_modules", self.tree / "widgets/js/node_modules", dirs_exist_ok=True, symlinks=True)  # fmt: skip
            words = ["bash", "-c", "npm run --silent check && npm test --silent"]
            where = self.tree / "widgets/js"
            if subprocess.run(
                words, cwd=where, env=env, capture_output=True, check=False
            ).returncode:
                return "widgets"
        if not files:
            return None
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "3", *files]
        command += [] if marks is None else ["-m", marks]
        said = subprocess.run(
            ["timeout", "-k", "20", "3000", *command],
            cwd=self.tree, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said.stdout, re.MULTILINE)
        if failed and said.returncode == 1:
            return str(failed[0])
        # As where a test took all of the time, or pytest did not understand what was asked: no find.
        if said.returncode not in {0, 5}:
            msg = f"pytest ended with {said.returncode}: {said.stdout[-300:]}"
            raise RuntimeError(msg)
        return None

    def confirms(self, test: str, patch: Path) -> bool:
        """Tell whether a test, run alone, fails with the fault and passes without it."""
        with_fault = self._passes(test, self.site)
        git("apply", "-R", "--recount", str(patch.resolve()), cwd=self.tree)
        return not with_fault and self._passes(test, self.good_site)

    def _passes(self, test: str, site: Path) -> bool:
        env = {**os.environ, "PYTHONPATH": str(site), "PHALANX_NO_HISTORY": "1"}
        command = ["timeout", "-k", "20", "300", sys.executable, "-m", "pytest", "-q", test]
        return not subprocess.run(
            command, cwd=self.tree, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL
        ).returncode  # fmt: skip


def tiers(patch: Path) -> Iterator[tuple[str, Sequence[str], str | None]]:
    head = re.search(r"^# near: (.*)$", patch.read_text(), re.MULTILINE)
    yield "near", (head[1].split() if head else []), "not deep"
    yield "first", ("native", "widgets", "tests"), "not deep"
    yield "deep", ("tests",), "deep"


def run(patches: Sequence[Path], last: str, at: str) -> None:
    """Look for each fault, nearest tests first; append what found it to the results."""
    checkout = Checkout(PLACE, at)
    for patch in patches:
        begin_s = time.monotonic()
        found: tuple[str, str] | None = None
        try:
            checkout.take(patch)
            for tier, tests, marks in tiers(patch):
                if test := checkout.first_failure(tests, marks):
                    found = tier, test
                    break
                if tier == last:
                    break
        except (RuntimeError, subprocess.CalledProcessError) as error:
            found = "error", str(error)
        tier, test = found or ("none", "")
        is_test = test.startswith("tests/")
        line = {
            "patch": patch.name,
            "tier": tier,
            "test": test,
            "is_confirmed": checkout.confirms(test, patch) if is_test else None,
            "seconds": round(time.monotonic() - begin_s),
        }
        with (PLACE / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    kinds = parser.add_subparsers(dest="what", required=True)
    drawing = kinds.add_parser("draw", help="draw commits and write their reverse patches")
    drawing.add_argument("--seed", type=int, default=None)
    drawing.add_argument("-n", type=int, default=30)
    running = kinds.add_parser("run", help="look for the faults of patches")
    running.add_argument("patches", nargs="*", type=Path)
    running.add_argument("--at", default="HEAD", help="the commit that gets the faults (default: %(default)s)")  # fmt: skip
    running.add_argument("--last", choices=["near", "first", "deep"], default="deep")
    options = parser.parse_args(words)
    if options.what == "draw":
        draw(random.randrange(10**6) if options.seed is None else options.seed, options.n)
    else:
        patches = options.patches or sorted((ROOT / "tests/tools/power_faults").glob("*.patch"))
        run(patches, options.last, options.at)


if __name__ == "__main__":
    main(sys.argv[1:])
