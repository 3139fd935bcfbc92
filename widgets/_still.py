"""A picture that needs no live widget: SVG for a notebook, text for a terminal.

It knows how a front end asks for a picture, not what is on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._svg import clean, extended

__all__ = ["StillPicture", "with_alarm"]


@dataclass(frozen=True)
class StillPicture:
    """One picture in two forms.

    Parameters
    ----------
    svg : str
        A whole SVG document; text from outside is escaped in it.
    text : str
        The same in characters.
    """

    svg: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"image/svg+xml": self.svg, "text/plain": self.text}
        wanted = set(include or bundle) - set(exclude or ())
        return {kind: data for kind, data in bundle.items() if kind in wanted}

    def __str__(self) -> str:
        return self.text

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file.

        Parameters
        ----------
        path : str or Path
            Ends in ``.svg`` or ``.txt``, which says the form.

        Returns
        -------
        Path
            Where it was written.

        Raises
        ------
        ValueError
            The name ends otherwise.
        """
        target = Path(path)
        forms = {".svg": self.svg, ".txt": self.text + "\n"}
        if target.suffix not in forms:
            msg = f"a still picture is saved as .svg or .txt, not as '{target.name}'"
            raise ValueError(msg)
        target.write_text(forms[target.suffix], encoding="utf-8")
        return target


def with_alarm(picture: StillPicture, words: str) -> StillPicture:
    """Return the picture with a line below it that somebody has to know of.

    Examples
    --------
    >>> from ._svg import picture, render
    >>> card = render(picture(420, 100, title="", description=""))
    >>> print(with_alarm(StillPicture(card, "a: 1 rank"), "it has gone"))
    a: 1 rank
      it has gone
    """
    return StillPicture(extended(picture.svg, words), f"{picture.text}\n  {clean(words)}")
