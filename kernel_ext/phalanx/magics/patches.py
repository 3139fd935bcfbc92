"""Change a shell and its kernel, and change them back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Patches(ExitStack):
    """Changes that `close` takes back, the last one first."""

    def add(self, values: list[Any], value: Any) -> None:
        values.append(value)
        self.callback(values.remove, value)

    def replace(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Replace a method; ours gets the replaced method as its first argument.

        A method that somebody else has installed since stays.
        """
        before, had_own = getattr(owner, name), name in vars(owner)

        def patched(*args: Any, **kwargs: Any) -> Any:
            return ours(before, *args, **kwargs)

        def restore() -> None:
            if getattr(owner, name) is patched:
                setattr(owner, name, before) if had_own else delattr(owner, name)

        setattr(owner, name, patched)
        self.callback(restore)
