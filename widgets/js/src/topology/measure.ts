// A button that measures each link, and what came of it in words.

import { disable, el, set_text } from "../shared/dom";
import type { Requests } from "../shared/requests";

const MEASURE_S = 300; // 64 ranks have 2016 links

/** Asks for the measurement; what it finds comes with the world, the words with the answer. */
export class Measure {
  readonly element: HTMLElement;
  private readonly press = el(
    "button",
    { type: "button", class: "px-button", title: "latency and bandwidth of each link, one after the other" },
    "Measure the links",
  );
  private readonly said = el("div", { class: "px-measured", role: "status", "aria-live": "polite", hidden: true });

  constructor(private readonly requests: Requests) {
    this.press.addEventListener("click", () => void this.ask());
    this.element = el("div", { class: "px-measure" }, this.press, this.said);
  }

  enable(is_live: boolean): void {
    disable(this.press, !is_live || this.press.dataset["asking"] === "yes");
  }

  private say(text: string, is_failure: boolean): void {
    this.said.hidden = false;
    this.said.classList.toggle("px-failed", is_failure);
    set_text(this.said, text);
  }

  private async ask(): Promise<void> {
    this.press.dataset["asking"] = "yes";
    disable(this.press, true);
    this.say("measuring …", false);
    const answer = await this.requests.ask("links", {}, MEASURE_S, (text) => this.say(text, false));
    this.press.dataset["asking"] = "";
    disable(this.press, false);
    this.say(answer.text, !answer.ok);
  }
}
