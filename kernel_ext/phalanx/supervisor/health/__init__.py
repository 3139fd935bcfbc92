"""Detect frozen, stalled, deadlocked and silent ranks."""
