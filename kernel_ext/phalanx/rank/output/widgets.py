"""Put what a rank shows within an ``Output`` widget into the widget.

In a plain kernel the page does that: it knows the request, and the widget names the request. The
page does not know a rank's requests. So the rank keeps that output back and adds it to the widget's
``outputs``, which the page draws.
"""

from __future__ import annotations

import sys
from typing import Any

Message = dict[str, Any]

CAPTURED = frozenset({"stream", "display_data", "execute_result", "error", "clear_output"})
MOST_OUTPUTS = 1000  # of one widget; the oldest go first
MOST_CHARACTERS = 1 << 20  # of one piece of text; its end is kept


class OutputWidgets:
    """The ``Output`` widgets of a rank that capture output now."""

    is_on = False  # without a page for widgets, their output is shown as any other

    def __init__(self) -> None:
        self._all: set[str] = set()  # comm ids
        self._capturing: dict[str, str] = {}  # comm id -> the captured request; innermost last
        self._will_clear: set[str] = set()  # with the next output

    def take(self, kind: str, content: Message, request: Any) -> bool:
        """Take a message to be sent; return whether a widget has it."""
        if kind.startswith("comm_"):
            self._look_at(kind, content)
        elif self.is_on and self._capturing and kind in CAPTURED:
            for comm_id, captured in reversed(self._capturing.items()):
                if captured == request and (widget := _find_widget(comm_id)) is not None:
                    self._add(comm_id, widget, kind, content)
                    return True
        return False

    def _look_at(self, kind: str, content: Message) -> None:
        comm_id = content["comm_id"]
        if kind == "comm_close":
            self._all.discard(comm_id)
            self._capturing.pop(comm_id, None)
            self._will_clear.discard(comm_id)
            return
        state = (content.get("data") or {}).get("state") or {}
        if kind == "comm_open" and state.get("_model_name") == "OutputModel":
            self._all.add(comm_id)
        if comm_id in self._all and "msg_id" in state:
            self._capturing.pop(comm_id, None)
            if state["msg_id"]:
                self._capturing[comm_id] = state["msg_id"]
            if self.is_on:
                state["msg_id"] = ""  # the page has nothing to capture

    def _add(self, comm_id: str, widget: Any, kind: str, content: Message) -> None:
        if kind == "clear_output":
            if content.get("wait"):
                self._will_clear.add(comm_id)
            else:
                widget.outputs = ()
            return
        before = () if comm_id in self._will_clear else tuple(widget.outputs)
        self._will_clear.discard(comm_id)
        widget.outputs = add_output(before, kind, content)


def add_output(outputs: tuple[Message, ...], kind: str, content: Message) -> tuple[Message, ...]:
    """Return the outputs of an ``Output`` widget with another one.

    Text that follows text of the same stream is added to it.

    Examples
    --------
    >>> text = {"name": "stdout", "text": "a"}
    >>> add_output(add_output((), "stream", text), "stream", text)
    ({'output_type': 'stream', 'name': 'stdout', 'text': 'aa'},)
    """
    if kind == "stream":
        last = outputs[-1] if outputs else {}
        text = content["text"]
        if last.get("output_type") == "stream" and last["name"] == content["name"]:
            outputs, text = outputs[:-1], last["text"] + text
        new = {"name": content["name"], "text": text[-MOST_CHARACTERS:]}
    elif kind == "error":
        new = {name: content[name] for name in ("ename", "evalue", "traceback")}
    else:
        new = {"data": content["data"], "metadata": content.get("metadata") or {}}
        kind = "display_data"  # a widget has no numbered results
    return (*outputs, {"output_type": kind, **new})[-MOST_OUTPUTS:]


def _find_widget(comm_id: str) -> Any:
    module = sys.modules.get("ipywidgets.widgets.widget")
    return None if module is None else module._instances.get(comm_id)
