// The form for a sweep, and its two buttons.

import type { VNode } from "preact";

import { button } from "../shared/dom";
import type { Frame, SweepRequest } from "./state";

type Fields = { [name in keyof SweepRequest]: string };

const EMPTY: Fields = { op: "", dtype: "", begin: "", end: "", factor: "", iters: "" };

export class Form {
  private fields: Fields = EMPTY; // as typed
  private choices: { op: string[]; dtype: string[] } = { op: [], dtype: [] };
  private is_running = false;
  private waits = ""; // the action whose answer is pending

  constructor(
    private readonly update: () => void,
    private readonly ask: (action: string, args: object) => Promise<void>,
  ) {}

  /** Fill in at first and when a sweep begins only, to keep a person's input. */
  take({ asked, ops, dtypes, state }: Frame): void {
    const is_running = state === "waiting" || state === "measuring";
    if (this.fields === EMPTY || (is_running && !this.is_running)) {
      this.fields = { ...asked, factor: String(asked.factor), iters: String(asked.iters) };
      this.choices = { op: ops, dtype: dtypes };
    }
    this.is_running = is_running;
  }

  view(is_live: boolean, is_on: boolean): VNode {
    const can_run = is_live && !is_on && !this.waits;
    const submit = (event: Event): void => {
      event.preventDefault();
      if (can_run) this.send("run", { ...this.fields, factor: Number(this.fields.factor), iters: Number(this.fields.iters) });
    };
    return (
      <form class="px-row" aria-label="the sweep" onSubmit={submit}>
        {this.choice("op", "operation", "operation")}
        {this.choice("dtype", "of", "dtype")}
        {this.field("begin", "from", "first size", 5)}
        {this.field("end", "to", "last size", 5)}
        {this.field("factor", "×", "factor from size to size", 2)}
        {this.field("iters", "calls", "timed calls per size", 4)}
        {button(this.waits === "run" ? "Starting…" : "Run", "", () => undefined, { type: "submit", is_off: !can_run })}
        {button(this.waits === "stop" ? "Stopping…" : "Stop", "", () => this.send("stop", {}), {
          class: "px-button px-alarm",
          is_off: !is_live || !is_on || this.waits === "stop",
        })}
      </form>
    );
  }

  private choice(name: "op" | "dtype", words: string, label: string): VNode {
    return (
      <label class="px-soft">
        {words}{" "}
        <select aria-label={label} value={this.fields[name]} onInput={(event) => this.put(name, event.currentTarget.value)}>
          {this.choices[name].map((its) => (
            <option value={its}>{its}</option>
          ))}
        </select>
      </label>
    );
  }

  private field(name: keyof Fields, words: string, label: string, size: number): VNode {
    return (
      <label class="px-soft">
        {words}{" "}
        <input
          type="text"
          aria-label={label}
          size={size}
          spellcheck={false}
          value={this.fields[name]}
          onInput={(event) => this.put(name, event.currentTarget.value)}
        />
      </label>
    );
  }

  private put(name: keyof Fields, value: string): void {
    this.fields = { ...this.fields, [name]: value };
    this.update();
  }

  private send(action: string, args: object): void {
    const wait = (waits: string): void => {
      this.waits = waits;
      this.update();
    };
    wait(action);
    void this.ask(action, args).then(() => wait(""));
  }
}
