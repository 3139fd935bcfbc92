"""Tracebacks that end where the user's code does.

It knows frames by their file, nothing of how they are shown.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

__all__ = ["without_own_frames"]

_OWN = str(Path(__file__).resolve().parent.parent)


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Drop our frames from the end: where `px.all_sum` refuses an array, its call is the place.

    Frames of ours with a user's code below them (it was called by us) stay.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept = list(frames)
    while kept and _is_own(kept[-1]):
        kept.pop()
    if not kept:
        return frames[0] if frames else None
    result: TracebackType | None = None
    for frame in reversed(kept):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _is_own(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_filename.startswith(_OWN)
