// The field: number of ranks, their states, and whether every cell is distributed.

import { Disposables, el, set_attributes, set_text } from "../shared/dom";
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

export class RankField {
  readonly node: HTMLElement;
  private readonly disposables = new Disposables();
  private readonly number = el("input", {
    type: "text",
    inputmode: "numeric",
    maxlength: 4,
    "aria-label": "number of ranks",
    title: "Number of ranks: Enter starts them, 0 stops them",
  });
  private readonly apply = el("button", { class: "px-apply", type: "button" });
  private readonly dots = el("button", { class: "px-dots", type: "button" });
  private readonly auto = el("input", { type: "checkbox" });
  private readonly note = el("span", { class: "px-note", role: "status" });
  private frame = UNKNOWN;
  private is_typed = false; // the number is the person's, not the ranks'
  private is_waiting = false; // a cell of the field waits or runs
  private asked_auto: boolean | null = null; // until the kernel has taken it, which may be after a long cell

  constructor(private readonly host: Host) {
    const switch_title =
      "Every cell runs on the ranks, as after %autodistributed on; %%local runs one in the notebook. Kept in the notebook";
    this.node = el(
      "div",
      { class: "px-ranks", role: "group", "aria-label": "Phalanx ranks" },
      el("label", {}, "ranks ", this.number),
      this.apply,
      this.dots,
      el("label", { title: switch_title }, this.auto, "every cell"),
      this.note,
    );
    this.disposables.on(this.number, "input", () => {
      this.is_typed = true;
      this.draw();
    });
    this.disposables.on(this.number, "keydown", (event: KeyboardEvent) => {
      event.stopPropagation(); // the toolbar moves the focus with the arrows
      if (event.key === "Escape") this.forget_typed();
      if (event.key !== "Enter") return;
      event.preventDefault(); // else the dialog that opens takes this Enter for its answer
      void this.change();
    });
    this.disposables.on(this.apply, "click", () => void this.change());
    this.disposables.on(this.dots, "click", () => void this.host.run("%distributed topology"));
    this.disposables.on(this.auto, "change", () => {
      this.asked_auto = this.auto.checked;
      this.host.keep({ autodistributed: this.asked_auto });
      this.host.set_auto(this.asked_auto);
    });
    this.draw();
  }

  close(): void {
    this.disposables.run();
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
    const { ranks } = this.frame;
    const now = ranks.length;
    const wish = this.host.wish();
    if (!this.is_typed) this.number.value = String(now || wish.ranks || USUAL);
    const wanted = this.wanted();
    const action = wanted === now || wanted === null ? "" : now === 0 ? "Start" : wanted === 0 ? "Stop" : "Restart";
    set_text(this.apply, action);
    this.apply.hidden = !action;
    this.apply.disabled = this.is_waiting;
    set_attributes(this.number, { "aria-invalid": wanted === null ? "true" : null });
    this.auto.checked = Boolean(wish.autodistributed);
    this.draw_dots();
  }

  private draw_dots(): void {
    const { ranks } = this.frame;
    this.dots.hidden = ranks.length === 0;
    const states = by_state(ranks);
    const dot = (state: RankState): HTMLElement => el("i", { "data-state": state });
    const is_long = ranks.length > MOST_DOTS;
    this.dots.replaceChildren(
      ...(is_long ? states.flatMap(([state, some]) => [dot(state), String(some.length)]) : ranks.map(dot)),
    );
    const said = states.map(([state, some]) => `${STATES[state].words}: ${ranges(some)}`).join("; ");
    const title = `${count(ranks.length, "rank")}. ${said}. Click to show the topology`;
    set_attributes(this.dots, { title, "aria-label": title });
  }

  /** Return the number that the person wants; null for anything else than a number. */
  private wanted(): number | null {
    const text = this.number.value.trim();
    return /^\d{1,4}$/.test(text) && Number(text) <= MOST ? Number(text) : null;
  }

  private forget_typed(): void {
    this.is_typed = false;
    this.draw();
  }

  /** Start, restart or stop ranks. */
  private async change(): Promise<void> {
    const wanted = this.wanted();
    const now = this.frame.ranks.length;
    if (wanted === null || wanted === now || this.is_waiting) return;
    const start = `%distributed start -n ${wanted}`;
    let code = this.frame.is_loaded ? start : `%load_ext phalanx\n${start}`;
    if (now > 0) {
      code = wanted === 0 ? "%distributed stop" : `%distributed stop\n${start}`;
      const title = wanted === 0 ? `Stop ${count(now, "rank")}?` : `Restart with ${count(wanted, "rank")}?`;
      const body = `All variables on the ${count(now, "rank")} will be lost.`;
      if (!(await this.host.confirm(title, body, wanted === 0 ? "Stop" : "Restart"))) {
        this.forget_typed();
        return;
      }
    }
    if (wanted > 0) this.host.keep({ ranks: wanted });
    this.is_waiting = true;
    set_text(this.note, this.host.is_busy() ? "after the running cell" : "");
    this.draw();
    try {
      await this.host.run(code);
    } finally {
      this.is_waiting = this.is_typed = false;
      set_text(this.note, "");
      this.draw();
    }
  }
}
