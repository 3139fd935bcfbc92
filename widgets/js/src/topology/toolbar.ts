// The controls of the topology: zoom, and the measurement of all links.

import { button, disable, el, set_text, type Disposables } from "../shared/dom";
import type { Requests } from "../shared/requests";
import type { Frame } from "./state";

const STEPS = [0.6, 0.75, 1, 1.25, 1.5, 2, 3];
const MEASURE_S = 3600; // 64 ranks have 2016 links, measured in turn on a small machine; Stop ends it
const STOP_S = 15;

/** Keeps the zoom of one view, changed by two buttons, the keys + - 0, and the wheel with Ctrl; `on_change` redraws. */
export class Zoom {
  readonly element: HTMLElement;
  private at = STEPS.indexOf(1);
  private readonly out = button("−", "smaller", () => this.step(-1));
  private readonly into = button("+", "larger", () => this.step(1));

  constructor(
    stage: HTMLElement,
    disposables: Disposables,
    private readonly on_change: () => void,
  ) {
    this.element = el("span", { class: "px-modes", role: "group", "aria-label": "zoom" }, this.out, this.into);
    disposables.on<WheelEvent>(stage, "wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.step(event.deltaY < 0 ? 1 : -1);
    });
    disposables.on<KeyboardEvent>(stage, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "+" || event.key === "=") this.step(1);
      else if (event.key === "-") this.step(-1);
      else if (event.key === "0") this.step(STEPS.indexOf(1) - this.at);
    });
  }

  get scale(): number {
    return STEPS[this.at] ?? 1;
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

/** Requests the measurement; the world brings the results, the answer brings the words. */
export class Measure {
  readonly element: HTMLElement;
  private readonly press = button("Measure the links", "latency and bandwidth of each link, one after the other", () => void this.ask());
  private readonly stop = button("Stop", "stop measuring; what was measured until then is not kept", () => void this.end());
  private readonly said = el("div", { class: "px-measured", role: "status", "aria-live": "polite", hidden: true });
  private readonly far = el("span", { class: "px-soft" }); // not read aloud: it changes all the time
  private is_asking = false;

  constructor(private readonly requests: Requests) {
    this.stop.hidden = true;
    const buttons = el("div", { class: "px-buttons" }, this.press, this.stop, this.far);
    this.element = el("div", { class: "px-measure" }, buttons, this.said);
  }

  /** Show progress and the stop button in all views, even if another view sent the request. */
  show(frame: Frame, is_live: boolean): void {
    const is_measuring = is_live && frame.measuring !== "";
    const is_off = !is_live || this.is_asking || is_measuring;
    set_text(this.far, is_measuring ? frame.measuring : "");
    disable(this.press, is_off);
    if (!is_measuring && document.activeElement === this.stop) {
      // Do not leave the focus on a button that disappears.
      disable(this.press, false);
      this.press.focus();
      disable(this.press, is_off);
    }
    this.stop.hidden = !is_measuring;
  }

  private say(text: string, is_failure: boolean): void {
    this.said.hidden = false;
    this.said.classList.toggle("px-failed", is_failure);
    set_text(this.said, text);
  }

  private async ask(): Promise<void> {
    this.is_asking = true;
    disable(this.press, true);
    this.say("measuring …", false);
    const answer = await this.requests.ask("links", {}, MEASURE_S, (text) => this.say(text, false));
    this.is_asking = false;
    disable(this.press, false);
    this.say(answer.text, !answer.ok);
  }

  private async end(): Promise<void> {
    disable(this.stop, true);
    const answer = await this.requests.ask("stop_links", {}, STOP_S);
    if (!answer.ok) this.say(answer.text, true);
    disable(this.stop, false);
  }
}
