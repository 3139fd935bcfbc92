"""A terminal of our own, for tests of what is redrawn."""

from __future__ import annotations

import re


class Terminal:
    """Rows of a terminal that knows what `LabelledLines` uses."""

    def __init__(self, columns=40, rows=10):
        self.columns, self.n_rows = columns, rows
        self.rows, self.row, self.column = [""], 0, 0

    def size(self):
        return self.columns, self.n_rows

    def put(self, written):
        for _, data in written:
            for part in re.findall(r"\x1b\[\d*[AJ]|.", data.decode(), re.DOTALL):
                self._put(part)
            assert self.row > len(self.rows) - self.n_rows, "what has scrolled away cannot change"

    def _put(self, part):
        if part == "\n" or (self.column == self.columns and part not in "\r\x1b[J"):
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        if part.endswith("A") and len(part) > 1:
            self.row -= int(part[2:-1])
        elif part == "\x1b[J":
            assert self.column == 0
            self.rows[self.row :] = [""]
        elif part == "\r":
            self.column = 0
        elif part != "\n":
            text = self.rows[self.row]
            self.rows[self.row] = text[: self.column] + part + text[self.column + 1 :]
            self.column += 1

    def type(self, lines, text):
        """Echo a line that the user types."""
        self.put([("", text.encode() + b"\n")])
        self.put(lines.line_was_typed())
