// The labels beside the lanes: a button for each rank, with its state in words.

import { el, set_attributes, set_text, TabStop } from "../shared/dom";
import { rate } from "../shared/words";
import { STATES } from "../topology/state";
import { rows_of } from "./paint";
import type { Frame } from "./state";
import { percent, say_rank } from "./words";

interface Label {
  button: HTMLButtonElement;
  sign: HTMLElement;
  share: HTMLElement;
  what: HTMLElement;
  figure: HTMLElement;
}

export class Labels {
  readonly element = el("div", { class: "px-labels", role: "group", "aria-label": "ranks" });
  private labels: Label[] = [];
  private is_small = false;

  constructor(private readonly on_choose: (rank: number) => void) {
    new TabStop(this.element, () => this.labels.map(({ button }) => [button]));
  }

  update(frame: Frame, chosen: number): void {
    if (this.labels.length !== frame.ranks.length) this.make(frame.ranks.length);
    this.labels.forEach((label, rank) => {
      const now = frame.ranks[rank];
      if (!now) return;
      const said = say_rank(rank, now);
      set_attributes(label.button, {
        "data-state": now.state,
        "aria-pressed": String(rank === chosen),
        "aria-label": said,
        title: said,
      });
      set_text(label.sign, STATES[now.state].sign);
      const is_dead = now.state === "dead";
      const moved = is_dead ? 0 : now.rate.arena + now.rate.sent;
      set_text(label.share, is_dead ? "dead" : percent(now.rate.share));
      set_text(label.what, is_dead || this.is_small ? "" : " comm.");
      set_text(label.figure, moved ? ` · ${rate(moved)}` : "");
    });
  }

  private make(n: number): void {
    const { lane, gap } = rows_of(n);
    this.is_small = lane < 15;
    this.element.classList.toggle("px-small", this.is_small);
    this.element.style.gap = `${gap}px`;
    this.labels = Array.from({ length: n }, (_, rank) => {
      const sign = el("span", { class: "px-sign", "aria-hidden": "true" });
      const share = el("span", { class: "px-share" });
      const what = el("span");
      const figure = el("span", { class: "px-rate" });
      const words = el("span", { class: "px-words" });
      words.append(share, what, figure);
      const button = el("button", { type: "button", tabindex: rank ? -1 : 0 });
      button.style.height = `${lane}px`;
      button.append(el("span", { class: "px-number" }, String(rank)), sign, words);
      button.addEventListener("click", () => this.on_choose(rank));
      return { button, sign, share, what, figure };
    });
    this.element.replaceChildren(...this.labels.map(({ button }) => button));
  }
}
