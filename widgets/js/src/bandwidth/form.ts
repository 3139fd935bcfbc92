// The form for a sweep, and its two buttons.

import { type Disposables, disable, el, set_text } from "../shared/dom";
import type { SweepRequest, Frame } from "./state";

export interface FormHandlers {
  run(asked: SweepRequest): void;
  stop(): void;
}

function choice(label: string): HTMLSelectElement {
  return el("select", { "aria-label": label });
}

function field(label: string, width: number): HTMLInputElement {
  return el("input", { type: "text", "aria-label": label, size: width, spellcheck: "false" });
}

export class Form {
  readonly element = el("form", { class: "px-form", "aria-label": "the sweep" });
  private readonly op = choice("operation");
  private readonly dtype = choice("dtype");
  private readonly begin = field("first size", 5);
  private readonly end = field("last size", 5);
  private readonly factor = field("factor from size to size", 2);
  private readonly iters = field("timed calls per size", 4);
  private readonly run = el("button", { type: "submit", class: "px-button" }, "Run");
  private readonly stop = el("button", { type: "button", class: "px-button px-alarm" }, "Stop");
  private is_filled = false;
  private waits = "";
  private is_live = false;
  private is_on = false;

  constructor(disposables: Disposables, handlers: FormHandlers) {
    const labelled = (words: string, control: HTMLElement): HTMLElement => el("label", {}, `${words} `, control);
    this.element.append(
      labelled("operation", this.op),
      labelled("of", this.dtype),
      labelled("from", this.begin),
      labelled("to", this.end),
      labelled("×", this.factor),
      labelled("calls", this.iters),
      this.run,
      this.stop,
    );
    disposables.on(this.element, "submit", (event) => {
      event.preventDefault();
      if (this.can_run) handlers.run(this.asked());
    });
    disposables.on(this.stop, "click", () => handlers.stop());
  }

  private get can_run(): boolean {
    return this.is_live && !this.is_on && this.waits === "";
  }

  private asked(): SweepRequest {
    return {
      op: this.op.value,
      dtype: this.dtype.value,
      begin: this.begin.value,
      end: this.end.value,
      factor: Number(this.factor.value),
      iters: Number(this.iters.value),
    };
  }

  /** Show on a button that its answer is pending; "" for none. */
  wait(action: string): void {
    this.waits = action;
    this.enable();
  }

  show(frame: Frame, is_live: boolean, is_on: boolean): void {
    if (!this.is_filled || (is_on && !this.is_on)) this.fill(frame);
    this.is_live = is_live;
    this.is_on = is_on;
    this.enable();
  }

  /** Fill in at first and when a sweep begins only, to keep a person's input. */
  private fill(frame: Frame): void {
    this.is_filled = true;
    const fill = (select: HTMLSelectElement, names: string[], chosen: string): void => {
      select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
      select.value = chosen;
    };
    fill(this.op, frame.ops, frame.asked.op);
    fill(this.dtype, frame.dtypes, frame.asked.dtype);
    this.begin.value = frame.asked.begin;
    this.end.value = frame.asked.end;
    this.factor.value = String(frame.asked.factor);
    this.iters.value = String(frame.asked.iters);
  }

  private enable(): void {
    disable(this.run, !this.can_run);
    disable(this.stop, !this.is_live || !this.is_on || this.waits === "stop");
    set_text(this.run, this.waits === "run" ? "Starting…" : "Run");
    set_text(this.stop, this.waits === "stop" ? "Stopping…" : "Stop");
  }
}
