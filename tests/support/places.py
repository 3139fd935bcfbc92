"""Where things of this checkout are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
ARTIFACTS = TESTS / "artifacts"  # pictures that tests leave; git ignores them
