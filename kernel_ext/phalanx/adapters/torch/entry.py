"""Register the backend ``"phalanx"`` with torch.

torch calls `register` while it is imported (entry point group ``torch.backends``). So this module
imports nothing else of phalanx and `register` never raises.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

BACKEND = "phalanx"
# Backends for which init_process_group() asks us for rank, size and store. "undefined" is torch's
# name for a call without a backend.
_OURS = (BACKEND, f"cpu:{BACKEND}", "undefined")
_OLDEST = (2, 13)  # the first torch that lets a process group make its subgroups (`new_group`)
_log = logging.getLogger(__name__)


def register() -> None:
    """Register the backend and the rendezvous; log one line on failure."""
    try:
        _register()
    except Exception as error:  # noqa: BLE001  # torch must be importable whatever fails here
        _log.warning("the backend %r of torch.distributed is not registered: %s", BACKEND, error)


def _register() -> None:
    import torch

    words = torch.__version__.split(".")
    if (int(words[0]), int(words[1])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        _log.warning(
            "the backend %r needs torch %s or newer, this is torch %s",
            BACKEND,
            oldest,
            torch.__version__,
        )
        return
    dist = torch.distributed
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    # The module's name in the package is hidden by the function of the same name.
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = partial(_rendezvous, handlers["env"])


def _create(options: Any, _backend_options: object) -> Any:
    from phalanx.adapters.torch.process_group import create

    return create(options)


def _rendezvous(of_torch: Callable[..., Iterator[Any]], url: str, **options: Any) -> Iterator[Any]:
    """Yield store, rank and size for ``env://``.

    Ours for our backend, torch's for every other.
    """
    backend = _backend_of_caller()
    if backend not in _OURS:
        return of_torch(url, **options)
    if backend == "undefined" and os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS"):
        return of_torch(url, **options)
    from phalanx.adapters.torch.init_process_group import meet

    return meet(backend == "undefined", of_torch, url, options)


def _backend_of_caller() -> str:
    """Return the backend that `init_process_group` is about to make.

    torch does not tell it to the handler.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "backend" in frame.f_locals:
            return str(frame.f_locals["backend"])
        frame = frame.f_back
    return ""
