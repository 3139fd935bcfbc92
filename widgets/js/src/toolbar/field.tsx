// The field: number of ranks, their states, and whether every cell is distributed.

import { render, type ComponentChildren, type VNode } from "preact";

import { count, ranges } from "../shared/words";
import { STATES } from "../topology/state";
import { UNKNOWN, type Frame, type RankState } from "./kernel_link";

/** What the notebook's metadata keeps, under "phalanx". */
export interface Wish {
  ranks?: number;
  autodistributed?: boolean;
}

/** The notebook around the field. */
export interface Host {
  is_busy(): boolean;
  wish(): Wish;
  keep(wish: Wish): void;
  set_auto(on: boolean): void;
  /** Run code in a visible cell; resolves at its end. */
  run(code: string): Promise<unknown>;
  confirm(title: string, body: string, action: string): Promise<boolean>;
}

const USUAL = 4;
const MOST = 9999;
const MOST_DOTS = 16;
const ORDER: RankState[] = ["dead", "starting", "busy", "idle"];

/** Return the ranks of each state, those that need attention first. */
function by_state(ranks: RankState[]): [RankState, number[]][] {
  const all = ranks.map((_, rank) => rank);
  return ORDER.map((state): [RankState, number[]] => [state, all.filter((rank) => ranks[rank] === state)]).filter(
    ([, some]) => some.length > 0,
  );
}

const SWITCH_TITLE =
  "Every cell runs on the ranks, as after %autodistributed on; %%local runs one in the notebook. Kept in the notebook";

export class RankField {
  readonly node = document.createElement("div");
  private frame = UNKNOWN;
  private typed: string | null = null; // the person's number; null: the ranks'
  private is_waiting = false; // a cell of the field waits or runs
  private note = "";
  private asked_auto: boolean | null = null; // until the kernel has taken it, which may be after a long cell

  constructor(private readonly host: Host) {
    this.node.className = "px-ranks";
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-label", "Phalanx ranks");
    this.draw();
  }

  close(): void {
    render(null, this.node);
  }

  /** Show a state of the kernel. While ranks run, the kernel knows best whether cells are distributed. */
  take(frame: Frame): void {
    this.frame = frame;
    if (frame.ranks.length === 0 || frame.is_auto === this.asked_auto) this.asked_auto = null;
    const is_news = frame.ranks.some((state) => state !== "starting") && this.asked_auto === null;
    if (is_news && frame.is_auto !== Boolean(this.host.wish().autodistributed)) {
      this.host.keep({ autodistributed: frame.is_auto });
    }
    this.draw();
  }

  /** Show the notebook's wishes after they have changed. */
  draw(): void {
    render(this.view(), this.node);
  }

  private get number(): string {
    return this.typed ?? String(this.frame.ranks.length || this.host.wish().ranks || USUAL);
  }

  /** The number that the person wants; null for anything else than a number. */
  private get wanted(): number | null {
    const text = this.number.trim();
    return /^\d{1,4}$/.test(text) && Number(text) <= MOST ? Number(text) : null;
  }

  private view(): ComponentChildren {
    const { wanted } = this;
    const now = this.frame.ranks.length;
    const action = wanted === now || wanted === null ? "" : now === 0 ? "Start" : wanted === 0 ? "Stop" : "Restart";
    return (
      <>
        <label>
          {"ranks "}
          <input
            type="text"
            inputMode="numeric"
            maxLength={4}
            aria-label="number of ranks"
            aria-invalid={wanted === null || undefined}
            title="Number of ranks: Enter starts them, 0 stops them"
            value={this.number}
            onInput={(event) => this.type(event.currentTarget.value)}
            onKeyDown={(event) => this.on_key(event)}
          />
        </label>
        <button class="px-apply" type="button" hidden={!action} disabled={this.is_waiting} onClick={() => void this.change()}>
          {action}
        </button>
        {this.dots()}
        <label title={SWITCH_TITLE}>
          <input
            type="checkbox"
            checked={Boolean(this.host.wish().autodistributed)}
            onChange={(event) => this.switch_auto(event.currentTarget.checked)}
          />
          every cell
        </label>
        <span class="px-note" role="status">
          {this.note}
        </span>
      </>
    );
  }

  private dots(): VNode {
    const { ranks } = this.frame;
    const states = by_state(ranks);
    const dot = (state: RankState): VNode => <i data-state={state} />;
    const said = states.map(([state, some]) => `${STATES[state].words}: ${ranges(some)}`).join("; ");
    const title = `${count(ranks.length, "rank")}. ${said}. Click to show the topology`;
    return (
      <button
        class="px-dots"
        type="button"
        hidden={ranks.length === 0}
        title={title}
        aria-label={title}
        onClick={() => void this.host.run("%distributed topology")}
      >
        {ranks.length > MOST_DOTS ? states.map(([state, some]) => [dot(state), some.length]) : ranks.map(dot)}
      </button>
    );
  }

  private type(typed: string | null): void {
    this.typed = typed;
    this.draw();
  }

  private on_key(event: KeyboardEvent): void {
    event.stopPropagation(); // the toolbar moves the focus with the arrows
    if (event.key === "Escape") this.type(null);
    if (event.key !== "Enter") return;
    event.preventDefault(); // else the dialog that opens takes this Enter for its answer
    void this.change();
  }

  private switch_auto(on: boolean): void {
    this.asked_auto = on;
    this.host.keep({ autodistributed: on });
    this.host.set_auto(on);
  }

  /** Start, restart or stop ranks. */
  private async change(): Promise<void> {
    const { wanted } = this;
    const now = this.frame.ranks.length;
    if (wanted === null || wanted === now || this.is_waiting) return;
    const start = `%distributed start -n ${wanted}`;
    let code = this.frame.is_loaded ? start : `%load_ext phalanx\n${start}`;
    if (now > 0) {
      code = wanted === 0 ? "%distributed stop" : `%distributed stop\n${start}`;
      const title = wanted === 0 ? `Stop ${count(now, "rank")}?` : `Restart with ${count(wanted, "rank")}?`;
      const body = `All variables on the ${count(now, "rank")} will be lost.`;
      if (!(await this.host.confirm(title, body, wanted === 0 ? "Stop" : "Restart"))) {
        this.type(null);
        return;
      }
    }
    if (wanted > 0) this.host.keep({ ranks: wanted });
    this.is_waiting = true;
    this.note = this.host.is_busy() ? "after the running cell" : "";
    this.draw();
    try {
      await this.host.run(code);
    } finally {
      this.is_waiting = false;
      this.note = "";
      this.type(null);
    }
  }
}
