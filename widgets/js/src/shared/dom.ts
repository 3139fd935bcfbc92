// Makes elements from text only: outside text is never parsed as HTML.

type Attributes = Record<string, string | number | boolean | null | undefined>;
type Child = Node | string;

const SVG = "http://www.w3.org/2000/svg";

/** Set attributes; false, null and undefined remove an attribute. */
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

/** Make a button; `title` also names one whose words are only a symbol. */
export function button(words: string, title: string, press: () => void): HTMLButtonElement {
  const made = el("button", { type: "button", class: "px-button", title: title || null }, words);
  if (words.length === 1) set_attributes(made, { "aria-label": title });
  made.addEventListener("click", press);
  return made;
}

/** Have as many children as there are items: update each, made by `make` where it is missing. */
export function fill<T>(parent: Element, items: readonly T[], make: () => Element, update: (child: Element, item: T) => void): void {
  while (parent.children.length > items.length) parent.lastElementChild?.remove();
  items.forEach((item, at) => update(parent.children[at] ?? parent.appendChild(make()), item));
}

/** Make an SVG element. */
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

/** Set an element's text; an only text node is kept, so that a new frame leaves no garbage nodes. */
export function set_text(element: Element, text: string): void {
  if (element.textContent === text) return;
  const only = element.childNodes.length === 1 ? element.firstChild : null;
  if (only instanceof Text) only.data = text;
  else element.textContent = text;
}

/** Disable or enable a button; it keeps the focus, so that keys are not lost. */
export function disable(button: HTMLButtonElement, is_off: boolean): void {
  const has_focus = document.activeElement === button;
  button.disabled = is_off && !has_focus;
  set_attributes(button, { "aria-disabled": is_off && has_focus ? "true" : null });
}

/** Block clicks on buttons that `disable` has disabled. */
export function ignore_disabled_clicks(root: HTMLElement, disposables: Disposables): void {
  const stop = (event: Event): void => {
    if (!(event.target instanceof Element) || !event.target.closest('[aria-disabled="true"]')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  root.addEventListener("click", stop, true);
  disposables.add(() => root.removeEventListener("click", stop, true));
}

/** Keeps one button of many as the one that Tab goes to; arrows, Home and End lead on from it. `rows` returns those shown. */
export class TabStop {
  constructor(
    private readonly root: HTMLElement,
    private readonly rows: () => HTMLButtonElement[][],
  ) {
    root.addEventListener("focusin", (event) => this.set(event.target as HTMLButtonElement));
    root.addEventListener("keydown", (event) => this.on_key(event));
  }

  get button(): HTMLButtonElement | null {
    return this.root.querySelector('button[tabindex="0"]');
  }

  set(button: HTMLButtonElement | undefined): void {
    if (this.button) this.button.tabIndex = -1;
    if (button) button.tabIndex = 0;
  }

  private on_key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = this.rows();
    const all = rows.flat();
    const at = all.indexOf(event.target as HTMLButtonElement);
    const row = rows.findIndex((buttons) => buttons.includes(event.target as HTMLButtonElement));
    const column = rows[row]?.indexOf(event.target as HTMLButtonElement) ?? 0;
    const below = (to: number): HTMLButtonElement | undefined => rows[to]?.[Math.min(column, rows[to].length - 1)];
    const targets: Record<string, HTMLButtonElement | undefined> = {
      ArrowLeft: all[at - 1],
      ArrowRight: all[at + 1],
      ArrowUp: below(row - 1),
      ArrowDown: below(row + 1),
      Home: all[0],
      End: all[all.length - 1],
    };
    if (at < 0 || !(event.key in targets)) return;
    event.preventDefault();
    targets[event.key]?.focus();
  }
}

/** Collects actions to undo when a view closes: listeners, timers, observers. */
export class Disposables {
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
