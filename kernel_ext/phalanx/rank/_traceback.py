"""Tracebacks that end where the user's code does.

It knows frames by their module, nothing of how they are shown.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

__all__ = ["clear_own_frames", "without_own_frames"]


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


def clear_own_frames(error: BaseException | None) -> None:
    """Let go of what our frames at the end of an error's traceback hold: nobody looks at them.

    Arrays, and the group of an epoch that is over with its descriptors: an error that was shown is
    part of a cycle, and would keep them until garbage is collected.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append(traceback)
            traceback = traceback.tb_next
        while frames and _is_own(frames[-1]):
            with contextlib.suppress(RuntimeError):  # it runs: of a thread that is not through
                frames.pop().tb_frame.clear()
        error = error.__cause__ or error.__context__


def _is_own(traceback: TracebackType) -> bool:
    # By its name and not its file: installed in place, not all of us lies in one folder.
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == "phalanx"
