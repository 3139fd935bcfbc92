"""A Linux without what is its own: `sitecustomize` for processes that a test starts.

What macOS has not is not there: calls of os, signal and the C library, /proc, /sys. psutil still
finds its way, as it would there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

for module, names in (
    (os, "pidfd_open eventfd eventfd_read eventfd_write memfd_create sched_getaffinity pipe2"),
    (signal, "pidfd_send_signal SIGRTMIN SIGRTMAX"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

_symbol = ctypes.CDLL.__getattr__


def _portable_symbol(self, name):
    if name in {"prctl", "tgkill", "fallocate64"}:
        raise AttributeError(name)
    return _symbol(self, name)


ctypes.CDLL.__getattr__ = _portable_symbol


def _hide(name):
    method = getattr(Path, name)

    def without(self, *args, **options):
        if str(self).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return method(self, *args, **options)

    setattr(Path, name, without)


for name in [
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "stat",
    "lstat",
    "iterdir",
    "readlink",
]:
    _hide(name)

# The process that sweeps is started without our environment; it must be of this kind as well.
_start = subprocess.Popen.__init__


def _start_with_us(self, args, *rest, **options):
    if not isinstance(args, str) and any(str(word).endswith("sweep_main.py") for word in args):
        args = [word for word in args if word not in {"-I", "-S"}]
    _start(self, args, *rest, **options)


subprocess.Popen.__init__ = _start_with_us
