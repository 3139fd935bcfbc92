// What the pages of all views are made of: a button, buttons with one tab stop, and what to undo when a view closes.

import { Component, createElement, type ComponentChild, type ComponentChildren, type JSX, type VNode } from "preact";

type ButtonProps = Omit<JSX.ButtonHTMLAttributes<HTMLButtonElement>, "onClick"> & { press: () => void; is_off?: boolean };

/** A button; one that is off keeps the focus, so that keys are not lost. */
class Button extends Component<ButtonProps> {
  override render({ press, is_off = false, ...attributes }: ButtonProps): ComponentChild {
    const has_focus = document.activeElement === this.base;
    const look = { disabled: is_off && !has_focus, "aria-disabled": (is_off && has_focus) || undefined };
    const on_click = (event: Event): void => (is_off ? event.preventDefault() : press());
    return <button type="button" class="px-button" {...attributes} {...look} onClick={on_click} />;
  }
}

/** Return a button; `title` also names one whose words are only a symbol. */
export function button(words: string, title: string, press: () => void, more: Partial<ButtonProps> = {}): VNode {
  const label = words.length === 1 ? { "aria-label": title } : {};
  return (
    <Button title={title || undefined} press={press} {...label} {...more}>
      {words}
    </Button>
  );
}

interface TabStopProps extends JSX.HTMLAttributes<HTMLElement> {
  tag: "div" | "tbody";
  children: ComponentChildren;
}

/** Buttons, each with its `data-rank`, of which Tab goes to one; arrows, Home and End lead on from it. */
export class TabStop extends Component<TabStopProps> {
  private stop: HTMLButtonElement | undefined;

  override render({ tag, ...attributes }: TabStopProps): ComponentChild {
    const on_focus = ({ target }: Event): void => {
      this.stop = target as HTMLButtonElement;
      this.keep_one();
    };
    return createElement(tag, {
      ...attributes,
      onFocusIn: on_focus,
      onKeyDown: (event: KeyboardEvent) => this.on_key(event),
    });
  }

  override componentDidMount(): void {
    this.keep_one();
  }

  override getSnapshotBeforeUpdate(): boolean {
    return document.activeElement === this.stop;
  }

  /** Keep the focus: a button that was moved on the page loses it, and one that is gone leaves it to the nearest rank. */
  override componentDidUpdate(_before: unknown, _state: unknown, had_focus: boolean): void {
    this.keep_one();
    if (had_focus && document.activeElement !== this.stop) this.stop?.focus();
  }

  private get buttons(): HTMLButtonElement[] {
    return [...(this.base as Element).querySelectorAll("button")];
  }

  private keep_one(): void {
    const { buttons } = this;
    const rank = ({ dataset }: HTMLElement): number => Number(dataset["rank"]);
    if (!this.stop || !buttons.includes(this.stop)) {
      const wanted = this.stop ? rank(this.stop) : 0;
      const far = (button: HTMLElement): number => Math.abs(rank(button) - wanted);
      this.stop = buttons.reduce<typeof this.stop>((best, its) => (best && far(best) <= far(its) ? best : its), undefined);
    }
    for (const button of buttons) {
      const index = button === this.stop ? "0" : "-1";
      if (button.getAttribute("tabindex") !== index) button.setAttribute("tabindex", index);
    }
  }

  /** Return the buttons in rows: those of the table, or as they stand on the page. */
  private rows(): HTMLButtonElement[][] {
    const rows = new Map<unknown, HTMLButtonElement[]>();
    for (const button of this.buttons) {
      const row = button.closest("tr") ?? button.getBoundingClientRect().top;
      rows.set(row, [...(rows.get(row) ?? []), button]);
    }
    return [...rows.values()];
  }

  private on_key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = event.target as HTMLButtonElement;
    const rows = this.rows();
    const all = rows.flat();
    const at = all.indexOf(from);
    const row = rows.findIndex((buttons) => buttons.includes(from));
    const column = rows[row]?.indexOf(from) ?? 0;
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

  on_resize(element: Element, call: () => void): void {
    const observer = new ResizeObserver(call);
    observer.observe(element);
    this.add(() => observer.disconnect());
  }

  every(seconds: number, call: () => void): void {
    const timer = setInterval(call, seconds * 1000);
    this.add(() => clearInterval(timer));
  }

  run(): void {
    while (this.undo.length) this.undo.pop()?.();
  }
}
