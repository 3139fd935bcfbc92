// The panel of the selected rank: facts and actions.

import { button, disable, el, fill, set_attributes, set_text } from "../shared/dom";
import type { Answer, Requests } from "../shared/requests";
import { facts, STATES, type Frame, type World } from "./state";

const LOOK_S = 15;
const RESTART_S = 120; // longer than the workspace's timeout for a restart

/** A panel that is updated by each frame. */
export class Details {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly list = el("dl");
  private readonly said = el("pre", { role: "status", "aria-live": "polite", tabindex: 0 });
  private readonly stacks = button("Where is it?", "the rank's stack, as seen from outside", () => this.look());
  private readonly operations = button("Last operations", "what this rank's flight recorder holds", () =>
    this.do("operations", { rank: this.rank }, LOOK_S, "reading …"),
  );
  private readonly interrupt = button("Interrupt the cell", "stop the cell that runs, on all its ranks", () =>
    this.do("interrupt", {}, LOOK_S, "asking the ranks to stop …"),
  );
  private readonly restart = button("Restart", "put a new process in this rank's place", () => this.renew());
  private readonly close = button("Close", "close this panel", () => this.on_close());
  private rank = -1;
  private is_dead = false;
  private is_sure = false; // restart of a live rank was pressed once
  private is_asking = false;
  private is_live = true;
  private now = 0;

  constructor(
    private readonly requests: Requests,
    private readonly on_close: () => void,
  ) {
    const buttons = el("div", { class: "px-buttons" }, this.stacks, this.operations, this.interrupt, this.restart, this.close);
    this.element = el("section", { class: "px-details", hidden: true }, this.title, this.list, buttons, this.said);
  }

  show(world: World, frame: Frame, rank: number, since_frame_s: number, is_live: boolean): void {
    const now = frame.ranks[rank];
    set_attributes(this.element, { hidden: !now, "data-state": now?.state, "aria-label": `rank ${rank}` });
    if (rank !== this.rank) {
      this.rank = rank;
      this.is_sure = false;
      set_text(this.said, "");
    }
    if (!now) return;
    this.is_dead = now.state === "dead";
    this.is_live = is_live;
    this.now = frame.now + since_frame_s;
    set_text(this.title, `rank ${rank} · ${STATES[now.state].words}`);
    fill(this.list, facts(world, frame, rank, since_frame_s).flat(), () => el(this.list.children.length % 2 ? "dd" : "dt"), set_text);
    this.refresh();
  }

  private refresh(): void {
    const is_off = this.is_asking || !this.is_live;
    disable(this.stacks, is_off || this.is_dead);
    disable(this.operations, is_off);
    disable(this.interrupt, is_off);
    disable(this.restart, is_off);
    this.restart.classList.toggle("px-alarm", this.is_sure || this.is_dead);
    set_text(this.restart, this.is_sure ? "Restart: its variables go" : "Restart");
    this.said.hidden = this.said.textContent === "";
  }

  private look(): void {
    this.do("stacks", { rank: this.rank }, LOOK_S, "looking …");
  }

  private renew(): void {
    if (!this.is_dead && !this.is_sure) {
      this.is_sure = true;
      set_text(this.said, `rank ${this.rank} lives: press again to end it and start a new one in its place`);
      this.refresh();
      return;
    }
    const force = !this.is_dead;
    this.do("restart", { rank: this.rank, force }, RESTART_S, `starting a new rank ${this.rank} …`);
  }

  private do(action: string, args: Record<string, unknown>, timeout_s: number, meanwhile: string): void {
    const rank = this.rank;
    this.is_asking = true;
    this.is_sure = false;
    set_text(this.said, meanwhile);
    this.refresh();
    // On the kernel's clock: the kernel drops the request if it reads it later, after a long cell.
    const until = this.now + timeout_s;
    const say = (text: string): void => {
      if (rank === this.rank) set_text(this.said, text);
    };
    void this.requests.ask(action, { ...args, until }, timeout_s, say).then((answer: Answer) => {
      this.is_asking = false;
      say(answer.text);
      this.said.classList.toggle("px-failed", !answer.ok);
      this.refresh();
    });
  }
}
