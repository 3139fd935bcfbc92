"""Give `init_process_group` rank, size and store of this process's world."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.bootstrap.supervised import is_supervised
from phalanx.distributed.group.group import Group

from .entry import BACKEND


def meet(
    is_default: bool,
    of_torch: Callable[..., Iterator[Any]],
    url: str,
    options: dict[str, Any],
) -> Iterator[tuple[Any, int, int]]:
    """Return an iterator over store, rank and size.

    Every rank calls this. ``is_default``: no backend was named, so ours is chosen in a rank of
    Phalanx without accelerator, and torch's choice stands in any other process.

    Raises `NotConfigured`: variables name several ranks, and no supervisor started this process.
    Raises `ValueError`: the caller gave another rank or size than those of the world.
    """
    if is_default:
        if not is_supervised() or torch._C._get_accelerator().type != "cpu":
            return of_torch(url, **options)
        dist.Backend.default_device_backend_map["cpu"] = BACKEND
    group = join()
    _check(url, group)
    LazyStore.kept = store = LazyStore(lambda: next(of_torch(url, **options))[0])
    return iter([(store, group.rank(), group.size())])


def join() -> Group:
    """Join the world; alone, return a group of one.

    Raises `NotConfigured`: variables name several ranks, and no supervisor started this process.
    """
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    return init(strict=several and not is_supervised())


def _check(url: str, group: Group) -> None:
    """Compare rank and size that the caller gave with the world's."""
    _, _, query = url.partition("?")
    given = dict(word.split("=") for word in query.split("&") if word)
    for name, has in (("rank", group.rank()), ("world_size", group.size())):
        if name in given and int(given[name]) != has:
            msg = (
                f"init_process_group: {name}={given[name]} was given, but this process has "
                f"{name} {has} in its world of Phalanx; leave rank and world_size out"
            )
            raise ValueError(msg)


class LazyStore(dist.Store):  # type: ignore[misc]  # torch.distributed is not typed here
    """A store that is opened by its first use.

    The backend needs none: ranks meet in their world. torch's own store listens on all addresses of
    the machine without a password, so it is opened only for programs that use it.
    """

    kept: LazyStore | None = None  # the default group's: torch keeps only its C++ part

    def __init__(self, connect: Callable[[], Any]) -> None:
        super().__init__()
        self._connect = connect
        self._opened: Any = None
        self._timeout: timedelta | None = None

    def _store(self) -> Any:
        if self._opened is None:
            self._opened = self._connect()
            if self._timeout is not None:
                self._opened.set_timeout(self._timeout)
        return self._opened

    @property
    def timeout(self) -> Any:
        """Return how long `get` and `wait` wait."""
        return self._timeout or self._store().timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long `get` and `wait` wait."""
        self._timeout = timeout
        if self._opened is not None:
            self._opened.set_timeout(timeout)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._store().set(key, value)

    def get(self, key: str) -> Any:
        """Wait for a value and read it."""
        return self._store().get(key)

    def add(self, key: str, amount: int) -> Any:
        """Add to a counter and return it."""
        return self._store().add(key, amount)

    def check(self, keys: list[str]) -> Any:
        """Whether the store has these keys."""
        return self._store().check(keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
        """Write a value if the present one is as expected."""
        return self._store().compare_set(key, expected, desired)

    def delete_key(self, key: str) -> Any:
        return self._store().delete_key(key)

    def num_keys(self) -> Any:
        """Return the number of keys."""
        return self._store().num_keys()

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._store().wait(keys, *timeout)
