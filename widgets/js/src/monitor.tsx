// The live Monitor widget: a lane for each rank, late ranks, and traffic between ranks. It draws the frames of
// phalanx.widgets.Monitor, and turns clicks into requests.

import type { ComponentChildren, VNode } from "preact";

import { button } from "./shared/dom";
import { decode } from "./shared/model";
import { jump_to_cell, say_cell } from "./shared/notebook";
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

class MonitorView extends WidgetView<Frame> {
  private readonly history = new History();
  private readonly lanes = new Lanes(this.history, () => this.update(), (cell) => this.jump(cell));
  private world: World | null = null;
  private has_asked = false;
  private said = "";

  override open(style: string): void {
    this.on("change:world", () => this.on_world());
    this.on_world();
    super.open(style);
    this.disposables.on_resize(this.lanes.canvas, () => this.lanes.draw());
  }

  /** Fetch the frames from before this view, so that a reloaded page has its lanes again. */
  protected override on_seen(): void {
    if (this.has_asked) return;
    this.has_asked = true;
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

  protected override take(frame: Frame): void {
    if (this.history.newest && frame.world !== this.history.newest.world) this.lanes.forget();
    this.history.add(frame);
    this.frame = this.history.newest;
  }

  private jump(cell: Cell | null): void {
    if (!cell) this.say("no cell ran there");
    else if (!cell.number || !jump_to_cell(this.root, cell.number)) this.say(say_cell(cell.number));
  }

  private say(text: string): void {
    this.said = text;
    this.update();
  }

  private save(): void {
    this.say("reading the flight recorders …");
    void this.requests.ask("save", {}, SAVE_S).then(({ ok, text }) => {
      const at = text.indexOf("\n"); // the first line describes the file; the rest is the file
      if (ok) save_text("trace.json", text.slice(at + 1), "application/json");
      this.say(ok ? text.slice(0, at) : text);
    });
  }

  protected override update(): void {
    super.update();
    this.lanes.draw();
  }

  protected view(): ComponentChildren {
    const { frame, lanes, world } = this;
    const n = frame?.ranks.length || world?.home.length || 0;
    const chosen = frame?.ranks[lanes.chosen];
    const missed = frame ? say_missed(frame) : "";
    const now = frame ? say_held_up(frame) : "";
    return (
      <>
        {this.top(frame ? (world?.name ?? "") : "", frame ? `${count(n, "rank")} · epoch ${frame.epoch}` : "", this.tools())}
        {this.late(frame, now)}
        {/* Times change with each frame: screen readers get only text without times. */}
        <div class="px-unseen" role="status">
          {now}
        </div>
        <div class="px-stage">
          {frame && <Labels frame={frame} chosen={lanes.chosen} choose={(rank) => lanes.choose(rank)} />}
          {lanes.view()}
        </div>
        <div class="px-legend px-soft">{this.legend()}</div>
        <div class="px-facts" hidden={!chosen}>
          {chosen && `${say_rank(lanes.chosen, chosen)}; process ${chosen.pid}`}
        </div>
        <ol class="px-links px-soft" aria-label="traffic between ranks">
          {frame && this.links(frame)}
        </ol>
        <div class="px-missed px-soft" hidden={!missed}>
          {missed}
        </div>
        <div class="px-foot px-soft" role="status">
          {this.said}
        </div>
      </>
    );
  }

  private tools(): VNode {
    const { lanes } = this;
    const is_paused = lanes.window.right !== null;
    return (
      <div class="px-modes" role="group" aria-label="time">
        {button(is_paused ? "Paused" : "Pause", "stop the picture; the ranks go on", () => lanes.pause(), {
          "aria-pressed": is_paused,
        })}
        {button("−", "zoom out: more time", () => lanes.zoom(2))}
        <span class="px-span px-soft">{duration(lanes.window.length)}</span>
        {button("+", "zoom in: less time", () => lanes.zoom(0.5))}
        {button("Now", "follow the ranks again", () => lanes.follow(true))}
        {button("Save a trace", "the last operations of each rank, for ui.perfetto.dev", () => this.save())}
      </div>
    );
  }

  private late(frame: Frame | null, now: string): VNode {
    if (!frame) return <div class="px-late" />;
    const since_ms = this.is_live ? 1000 * this.since_s : 0;
    const late = frame.number ? say_late(frame, since_ms).join("; ") : "waiting for the first look at the ranks …";
    return <div class={now && late ? "px-late px-alarm" : "px-late"}>{late || "nobody holds the others up"}</div>;
  }

  private legend(): VNode[] {
    const entry = (look: string, colour: string, words: string): VNode => (
      <span class="px-count">
        <span class={`px-swatch ${look}`} style={{ background: colour }} aria-hidden="true" />
        {words}
      </span>
    );
    const items = [...this.history.ops].sort().map((op) => entry("", `var(--px-${colour_of(op)}, var(--px-soft))`, op));
    if (!items.length) return [];
    return [...items, entry("px-pale", "", "pale: waiting for the last rank"), entry("px-strip", "", "a cell runs")];
  }

  private links(frame: Frame): VNode[] {
    const busy = traffic(frame, this.world?.arenas ?? []);
    const most = busy[0]?.[1] ?? 0;
    const shown = busy.slice(0, MOST_LINKS);
    const rows = shown.map(([words, bytes]): [string, number] => [`${words}: ${rate(bytes)}`, bytes / most]);
    if (busy.length > shown.length) rows.push([`and ${busy.length - shown.length} more`, 0]);
    if (!rows.length) rows.push(["nothing moves between the ranks now", 0]);
    return rows.map(([words, share]) => (
      <li>
        <span>{words}</span>
        <i style={{ width: percent(share).replace(" ", "") }} />
      </li>
    ));
  }
}

export default module_of(MonitorView, "px-monitor");
