"""A committed bundle on a page of its own, with a model that the test plays: no server, no kernel.

What the view sends is in ``window.sent``; `put` is a trait that comes from the kernel.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from support.places import ROOT

_STATIC = ROOT / "widgets" / "static"
_PLAY = """async ([code, css, values]) => {
    const style = document.createElement('style');
    style.textContent = css;
    const root = document.createElement('div');
    const button = name => Object.assign(document.createElement('button'), {textContent: name});
    document.body.replaceChildren(style, button('before'), root, button('after'));
    const bytes = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
    const known = {selected: -1, mode: ''};
    const heard = {};
    const tell = (name, ...said) => { for (const handle of [...heard[name] ?? []]) handle(...said); };
    window.put = (name, text) => { known[name] = bytes(text); tell('change:' + name); };
    for (const [name, text] of Object.entries(values)) window.put(name, text);
    window.sent = [];
    window.answer = (ok, text) => {
        const id = window.sent.filter(its => its.kind === 'ask').pop().id;
        tell('msg:custom', {kind: 'answer', id, ok, text});
    };
    const model = {
        get: name => known[name],
        set: (name, value) => { known[name] = value; tell('change:' + name); },
        save_changes() {},
        send: content => window.sent.push(content),
        off() {},
        on: (name, handle) => { (heard[name] ??= []).push(handle); },
    };
    const url = URL.createObjectURL(new Blob([code], {type: 'text/javascript'}));
    window.close_it = (await import(url)).default.render({model, el: root});
    URL.revokeObjectURL(url);
}"""


def _packed(record: bytes) -> str:
    return base64.b64encode(record).decode()


def play(page: Any, name: str, traits: Mapping[str, bytes], *, policy: str = "") -> None:
    """Show a widget alone, between a button before and one after it; `policy` is the page's own."""
    head = f"<meta http-equiv='Content-Security-Policy' content=\"{policy}\">" if policy else ""
    page.set_content(f"{head}<body style='margin:0'></body>")
    page.evaluate(
        _PLAY,
        [
            (_STATIC / f"{name}.js").read_text(encoding="utf-8"),
            (_STATIC / f"{name}.css").read_text(encoding="utf-8"),
            {trait: _packed(record) for trait, record in traits.items()},
        ],
    )


def put(page: Any, trait: str, record: bytes) -> None:
    """Have a trait come from the kernel."""
    page.evaluate("([name, text]) => window.put(name, text)", [trait, _packed(record)])


def focused(page: Any) -> dict[str, Any]:
    """What has the focus: its name, and whether a person sees that it has."""
    return page.evaluate("""() => {
        const its = document.activeElement, look = getComputedStyle(its), box = its.getBoundingClientRect();
        return {
            name: its.getAttribute('aria-label') ?? (its.textContent || its.tagName).trim(),
            ring: look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) >= 1,
            shown: box.width > 0 && box.height > 0,
            place: [box.top + scrollY, box.left],
        };
    }""")
