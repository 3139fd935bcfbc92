// The live Monitor widget: a lane for each rank, late ranks, and traffic between ranks. It draws the frames of
// phalanx.widgets.Monitor, and turns clicks into requests.

import { button, el, fill, set_attributes, set_text } from "./shared/dom";
import { decode, type Model } from "./shared/model";
import { jump_to_cell, tell_cell } from "./shared/notebook";
import { save_text } from "./shared/save";
import { module_of, WidgetView } from "./shared/view";
import { count, rate } from "./shared/words";
import type { World } from "./topology/state";
import { Labels } from "./monitor/labels";
import { Lanes } from "./monitor/lanes";
import { colour_of } from "./monitor/paint";
import { History, type Cell, type Frame } from "./monitor/state";
import { duration, percent, say_held_up, say_late, say_missed, say_rank, traffic } from "./monitor/words";

const MOST_LINKS = 8;
const SAVE_S = 60;
const HISTORY_S = 20;

class MonitorView extends WidgetView {
  private readonly head = el("span", { class: "px-headline" });
  private readonly late = el("div", { class: "px-late" });
  private readonly announced = el("div", { class: "px-unseen", role: "status" });
  private readonly missed = el("div", { class: "px-missed", hidden: true });
  private readonly facts = el("div", { class: "px-facts", hidden: true });
  private readonly legend = el("div", { class: "px-legend" });
  private readonly links = el("ol", { class: "px-links", "aria-label": "traffic between ranks" });
  private readonly foot = el("div", { class: "px-foot", role: "status" });
  private readonly pause = button("Pause", "stop the picture; the ranks go on", () => this.toggle());
  private readonly span = el("span", { class: "px-span" });
  private readonly history = new History();
  private readonly labels: Labels;
  private readonly lanes: Lanes;
  private world: World | null = null;
  private ops = "";

  constructor(model: Model, root: HTMLElement) {
    super(model, root, "px-monitor");
    this.labels = new Labels((rank) => this.choose(rank));
    this.lanes = new Lanes(
      this.history,
      root,
      {
        choose: (rank) => this.choose(rank),
        jump: (cell) => this.jump(cell),
        moved: () => this.show_window(),
        pause: () => this.toggle(),
      },
      this.disposables,
    );
    const buttons = el("div", { class: "px-modes", role: "group", "aria-label": "time" });
    buttons.append(
      this.pause,
      button("−", "zoom out: more time", () => this.lanes.zoom(2)),
      this.span,
      button("+", "zoom in: less time", () => this.lanes.zoom(0.5)),
      button("Now", "follow the ranks again", () => this.lanes.follow(true)),
      button("Save a trace", "the last operations of each rank, for ui.perfetto.dev", () => this.save()),
    );
    root.append(
      el("header", { class: "px-bar" }, this.name, this.head, this.pill, buttons),
      this.why,
      this.late,
      this.announced,
      el("div", { class: "px-stage" }, this.labels.element, this.lanes.element),
      this.legend,
      this.facts,
      this.links,
      this.missed,
      this.foot,
    );
    this.listen();
    this.on_world();
    this.on_frame();
    this.show_window();
  }

  private listen(): void {
    this.on("change:world", () => this.on_world());
    this.on("change:frame", () => this.on_frame());
    let has_asked = false;
    this.watch(() => {
      if (!has_asked) this.load();
      has_asked = true;
    });
  }

  /** Fetch the frames from before this view, so that a reloaded page has its lanes again. */
  private load(): void {
    void this.requests.ask("history", {}, HISTORY_S).then(({ ok, text }) => {
      if (!ok) return;
      const newest = this.history.newest;
      const earlier = JSON.parse(text) as Frame[];
      this.history.reset();
      for (const frame of earlier) this.history.add(frame);
      if (newest) this.history.add(newest);
      this.update();
    });
  }

  private on_world(): void {
    this.world = decode<World>(this.model.get("world") as DataView);
    this.update();
  }

  private on_frame(): void {
    const frame = decode<Frame>(this.model.get("frame") as DataView);
    if (!frame) return;
    if (this.history.newest && frame.world !== this.history.newest.world) this.lanes.forget();
    this.history.add(frame);
    this.note_frame();
    this.update();
  }

  private toggle(): void {
    this.lanes.follow(this.lanes.window.right !== null);
  }

  private choose(rank: number): void {
    this.lanes.chosen = rank === this.lanes.chosen ? -1 : rank;
    this.update();
  }

  private jump(cell: Cell | null): void {
    if (!cell) set_text(this.foot, "no cell ran there");
    else if (!cell.number || !jump_to_cell(this.root, cell.number)) tell_cell(this.foot, cell.number);
  }

  private save(): void {
    set_text(this.foot, "reading the flight recorders …");
    void this.requests.ask("save", {}, SAVE_S).then(({ ok, text }) => {
      const at = text.indexOf("\n"); // the first line describes the file; the rest is the file
      if (ok) save_text("trace.json", text.slice(at + 1), "application/json");
      set_text(this.foot, ok ? text.slice(0, at) : text);
    });
  }

  private show_window(): void {
    const { right, length } = this.lanes.window;
    set_attributes(this.pause, { "aria-pressed": String(right !== null) });
    set_text(this.pause, right === null ? "Pause" : "Paused");
    set_text(this.span, duration(length));
  }

  protected update(): void {
    const frame = this.history.newest;
    if (!frame) return;
    const n = frame.ranks.length || this.world?.home.length || 0;
    set_text(this.name, this.world?.name ?? "");
    set_text(this.head, `${count(n, "rank")} · epoch ${frame.epoch}`);
    const is_live = this.show_status(frame);
    this.show_late(frame, is_live ? 1000 * this.since_s : 0);
    this.labels.update(frame, this.lanes.chosen);
    const chosen = frame.ranks[this.lanes.chosen];
    this.facts.hidden = !chosen;
    if (chosen) set_text(this.facts, say_rank(this.lanes.chosen, chosen) + `; process ${chosen.pid}`);
    this.show_legend();
    this.show_links(frame);
    const missed = say_missed(frame);
    this.missed.hidden = missed === "";
    set_text(this.missed, missed);
    this.lanes.draw();
  }

  private show_late(frame: Frame, since_ms: number): void {
    const now = say_held_up(frame);
    const said = frame.number ? say_late(frame, since_ms).join("; ") : "waiting for the first look at the ranks …";
    set_attributes(this.late, { class: now && said ? "px-late px-alarm" : "px-late" });
    set_text(this.late, said || "nobody holds the others up");
    // Times change with each frame: screen readers get only text without times.
    set_text(this.announced, now);
  }

  private show_legend(): void {
    const ops = [...this.history.ops].sort();
    if (ops.join() === this.ops) return;
    this.ops = ops.join();
    const items = ops.map((op) => {
      const swatch = el("span", { class: "px-swatch", "aria-hidden": "true" });
      swatch.style.background = `var(--px-${colour_of(op)}, var(--px-soft))`;
      return el("span", { class: "px-count" }, swatch, op);
    });
    if (ops.length) {
      const pale = el("span", { class: "px-swatch px-pale", "aria-hidden": "true" });
      items.push(el("span", { class: "px-count" }, pale, "pale: waiting for the last rank"));
      items.push(el("span", { class: "px-count" }, el("span", { class: "px-swatch px-strip" }), "a cell runs"));
    }
    this.legend.replaceChildren(...items);
  }

  private show_links(frame: Frame): void {
    const busy = traffic(frame, this.world?.arenas ?? []);
    const most = busy[0]?.[1] ?? 0;
    const shown = busy.slice(0, MOST_LINKS);
    const rows = shown.map(([words, bytes]): [string, number] => [`${words}: ${rate(bytes)}`, bytes / most]);
    if (busy.length > shown.length) rows.push([`and ${busy.length - shown.length} more`, 0]);
    if (!rows.length) rows.push(["nothing moves between the ranks now", 0]);
    fill(this.links, rows, () => el("li", {}, el("span"), el("i")), (row, [words, share]) => {
      set_text(row.children[0] as Element, words);
      (row.children[1] as HTMLElement).style.width = percent(share).replace(" ", "");
    });
  }
}

export default module_of(MonitorView);
