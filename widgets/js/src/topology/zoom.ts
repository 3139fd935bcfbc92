// How large the ranks are drawn: two buttons, the keys + - 0, and the wheel with Ctrl.

import { disable, el, type Cleanup } from "../shared/dom";

const STEPS = [0.6, 0.75, 1, 1.25, 1.5, 2, 3];

/** Holds the zoom of one view; `on_change` draws. */
export class Zoom {
  readonly element: HTMLElement;
  private at = STEPS.indexOf(1);
  private readonly out = this.button("−", "smaller", -1);
  private readonly into = this.button("+", "larger", 1);

  constructor(
    stage: HTMLElement,
    cleanup: Cleanup,
    private readonly on_change: () => void,
  ) {
    this.element = el("span", { class: "px-zoom", role: "group", "aria-label": "zoom" }, this.out, this.into);
    cleanup.on<WheelEvent>(stage, "wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.step(event.deltaY < 0 ? 1 : -1);
    });
    cleanup.on<KeyboardEvent>(stage, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "+" || event.key === "=") this.step(1);
      else if (event.key === "-") this.step(-1);
      else if (event.key === "0") this.step(STEPS.indexOf(1) - this.at);
    });
  }

  get scale(): number {
    return STEPS[this.at] ?? 1;
  }

  private button(sign: string, words: string, by: number): HTMLButtonElement {
    const made = el("button", { type: "button", class: "px-button", "aria-label": words, title: words }, sign);
    made.addEventListener("click", () => this.step(by));
    return made;
  }

  private step(by: number): void {
    const to = Math.min(STEPS.length - 1, Math.max(0, this.at + by));
    if (to === this.at) return;
    this.at = to;
    disable(this.out, to === 0);
    disable(this.into, to === STEPS.length - 1);
    this.on_change();
  }
}
