// The measurement of all links: its button, progress and end.

import { createRef, type VNode } from "preact";

import { button } from "../shared/dom";
import type { Requests } from "../shared/requests";
import type { Frame } from "./state";

const MEASURE_S = 3600; // 64 ranks have 2016 links, measured in turn on a small machine; Stop ends it
const STOP_S = 15;

/** Requests the measurement; the world brings the results, the answer brings the words. */
export class LinkMeasurement {
  private readonly buttons = createRef<HTMLDivElement>();
  private is_asking = false;
  private is_stopping = false;
  private said = "";
  private is_failure = false;

  constructor(
    private readonly requests: Requests,
    private readonly update: () => void,
  ) {}

  /** Return progress and the stop button in all views, even if another view sent the request. */
  view(frame: Frame, is_live: boolean): VNode {
    const is_measuring = is_live && frame.measuring !== "";
    const look = this.is_failure ? "px-measured px-failed" : "px-measured";
    const is_off = !is_live || this.is_asking || is_measuring;
    const [press, stop] = this.buttons.current?.querySelectorAll("button") ?? [];
    if (press && !is_measuring && document.activeElement === stop) {
      // Do not leave the focus on a button that disappears.
      press.disabled = false;
      press.focus();
    }
    return (
      <div class="px-measure">
        <div class="px-buttons" ref={this.buttons}>
          {button("Measure the links", "latency and bandwidth of each link, one after the other", () => void this.ask(), {
            is_off,
          })}
          {button("Stop", "stop measuring; what was measured until then is not kept", () => void this.stop(), {
            is_off: this.is_stopping,
            hidden: !is_measuring,
          })}
          {/* Not read aloud: it changes all the time. */}
          <span class="px-soft">{is_measuring ? frame.measuring : ""}</span>
        </div>
        <div class={look} role="status" aria-live="polite" hidden={!this.said}>
          {this.said}
        </div>
      </div>
    );
  }

  private say(text: string, is_failure = false): void {
    Object.assign(this, { said: text, is_failure });
    this.update();
  }

  private async ask(): Promise<void> {
    this.is_asking = true;
    this.say("measuring …");
    const answer = await this.requests.ask("links", {}, MEASURE_S, (text) => this.say(text));
    this.is_asking = false;
    this.say(answer.text, !answer.ok);
  }

  private async stop(): Promise<void> {
    this.is_stopping = true;
    this.update();
    const answer = await this.requests.ask("stop_links", {}, STOP_S);
    this.is_stopping = false;
    if (!answer.ok) this.say(answer.text, true);
    else this.update();
  }
}
