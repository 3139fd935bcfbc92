// Elements, made with text only: nothing from outside is ever parsed as HTML.
// It knows the document, nothing of ranks.

type Attributes = Record<string, string | number | boolean | null | undefined>;
type Child = Node | string;

const SVG = "http://www.w3.org/2000/svg";

/** Set attributes; false, null and undefined take one away. */
export function set_attributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) {
      element.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (element.getAttribute(name) !== text) element.setAttribute(name, text);
    }
  }
}

/** Make an element; strings among its children become text. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  set_attributes(element, attributes);
  element.append(...children);
  return element;
}

/** Make an element of a drawing. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag) as SVGElementTagNameMap[K];
  set_attributes(element, attributes);
  element.append(...children);
  return element;
}

/** Show a text, leaving the document alone where it is shown already. */
export function set_text(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Put a button out of use, or in use. One that has the focus keeps it: keys must not go astray. */
export function disable(button: HTMLButtonElement, is_off: boolean): void {
  const has_focus = document.activeElement === button;
  button.disabled = is_off && !has_focus;
  set_attributes(button, { "aria-disabled": is_off && has_focus ? "true" : null });
}

/** What `disable` has put out of use hears no click. */
export function guard(root: HTMLElement, cleanup: Cleanup): void {
  const stop = (event: Event): void => {
    if (!(event.target instanceof Element) || !event.target.closest('[aria-disabled="true"]')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  root.addEventListener("click", stop, true);
  cleanup.add(() => root.removeEventListener("click", stop, true));
}

/** Things to undo when a view goes: listeners, timers, observers. */
export class Cleanup {
  private readonly undo: (() => void)[] = [];

  add(undo: () => void): void {
    this.undo.push(undo);
  }

  on<E extends Event>(target: EventTarget, name: string, handle: (event: E) => void): void {
    target.addEventListener(name, handle as EventListener);
    this.add(() => target.removeEventListener(name, handle as EventListener));
  }

  every(seconds: number, call: () => void): void {
    const timer = setInterval(call, seconds * 1000);
    this.add(() => clearInterval(timer));
  }

  run(): void {
    while (this.undo.length) this.undo.pop()?.();
  }
}
