// A button that measures each link, how far that is, one that stops it, and what came of it in words.

import { disable, el, set_text } from "../shared/dom";
import type { Requests } from "../shared/requests";
import type { Frame } from "./state";

const MEASURE_S = 3600; // 64 ranks have 2016 links, which take turns on a small machine; Stop ends it
const STOP_S = 15;

/** Asks for the measurement; what it finds comes with the world, the words with the answer. */
export class Measure {
  readonly element: HTMLElement;
  private readonly press = this.button("Measure the links", "latency and bandwidth of each link, one after the other");
  private readonly stop = this.button("Stop", "stop measuring; what was measured until then is not kept");
  private readonly said = el("div", { class: "px-measured", role: "status", "aria-live": "polite", hidden: true });
  private readonly far = el("span", { class: "px-soft" }); // not spoken: it changes all the time
  private is_asking = false;

  constructor(private readonly requests: Requests) {
    this.press.addEventListener("click", () => void this.ask());
    this.stop.addEventListener("click", () => void this.end());
    this.stop.hidden = true;
    const buttons = el("div", { class: "px-buttons" }, this.press, this.stop, this.far);
    this.element = el("div", { class: "px-measure" }, buttons, this.said);
  }

  private button(words: string, title: string): HTMLButtonElement {
    return el("button", { type: "button", class: "px-button", title }, words);
  }

  /** Whoever has asked for it: how far it is, and the way to stop it, are for all who look. */
  show(frame: Frame, is_live: boolean): void {
    const is_measuring = is_live && frame.measuring !== "";
    const is_off = !is_live || this.is_asking || is_measuring;
    set_text(this.far, is_measuring ? frame.measuring : "");
    disable(this.press, is_off);
    if (!is_measuring && document.activeElement === this.stop) {
      // Who has just pressed it is not left on a button that goes away.
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
