"""Fixtures of this room: ranks as real processes."""

from __future__ import annotations

from distributed.conftest import farm, rank_pool

__all__ = ["farm", "rank_pool"]
