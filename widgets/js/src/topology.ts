// The live Topology widget: hosts, ranks by what they do, the paths between them.
// It draws what phalanx.widgets.Topology sends, and turns clicks into requests.

import { Cleanup, el, guard, set_attributes, set_text } from "./shared/dom";
import { decode } from "./shared/frames";
import type { Model, View } from "./shared/model";
import { tell_presence } from "./shared/presence";
import { Requests } from "./shared/requests";
import { hide_still } from "./shared/still";
import { Details } from "./topology/details";
import { Matrix } from "./topology/matrix";
import { by_state, headline, host_of, is_same_place, MANY, matches, news, STATES, type Frame, type World } from "./topology/state";
import { Measure } from "./topology/measure";
import { Tiles } from "./topology/tiles";
import { Uses } from "./topology/uses";
import { Zoom } from "./topology/zoom";

const SILENT_S = 8; // the kernel sends a frame every 2 s at least to who looks
const MODES: [string, string][] = [
  ["tiles", "Tiles"],
  ["compact", "Compact"],
  ["links", "Links"],
];

class TopologyView {
  private readonly cleanup = new Cleanup();
  private readonly name = el("strong", { class: "px-name" });
  private readonly head = el("span", { class: "px-headline" });
  private readonly pill = el("span", { class: "px-pill", role: "status" });
  private readonly why = el("div", { class: "px-why", hidden: true, role: "alert" });
  private readonly search = el("input", {
    type: "search",
    placeholder: "find: rank, host, process, state",
    "aria-label": "find ranks",
  });
  private readonly modes = new Map<string, HTMLButtonElement>();
  private readonly stage = el("div", { class: "px-stage" });
  private readonly legend = el("div", { class: "px-legend" });
  private readonly told = el("div", { class: "px-unseen", "aria-live": "assertive" });
  private readonly uses = new Uses();
  private readonly details: Details;
  private readonly measure: Measure;
  private readonly zoom: Zoom;
  private drawn = new Cleanup();
  private tiles: Tiles | null = null;
  private matrix: Matrix | null = null;
  private world: World | null = null;
  private frame: Frame | null = null;
  private came_ms = performance.now();
  private is_seen = false;

  constructor(
    private readonly model: Model,
    private readonly root: HTMLElement,
  ) {
    root.classList.add("phalanx", "px-topology");
    hide_still(model, root, this.cleanup);
    // JupyterLab's keys for cells are not for what is typed here.
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    guard(root, this.cleanup);
    const requests = new Requests(model, this.cleanup);
    this.details = new Details(requests, () => this.choose(this.chosen));
    this.measure = new Measure(requests);
    this.zoom = new Zoom(this.stage, this.cleanup, () => this.rescale());
    const modes = el("div", { class: "px-modes", role: "group", "aria-label": "view" });
    for (const [mode, words] of MODES) {
      const button = el("button", { type: "button", class: "px-button" }, words);
      this.cleanup.on(button, "click", () => this.put("mode", mode));
      this.modes.set(mode, button);
      modes.append(button);
    }
    modes.append(this.zoom.element);
    const bar = el("header", { class: "px-bar" }, this.name, this.head, this.pill, this.search, modes);
    root.append(bar, this.why, this.stage, this.legend, this.uses.element, this.measure.element);
    root.append(this.details.element, this.told);
    this.listen();
    this.on_world();
  }

  private listen(): void {
    this.on("change:world", () => this.on_world());
    this.on("change:frame", () => this.on_frame());
    this.on("change:mode", () => this.draw());
    this.on("change:selected", () => this.update());
    this.cleanup.on(this.search, "input", () => this.update());
    this.cleanup.on<KeyboardEvent>(this.search, "keydown", (event) => this.on_key(event));
    this.cleanup.on<KeyboardEvent>(this.root, "keydown", (event) => {
      if (event.key === "Escape" && this.chosen >= 0) this.choose(this.chosen);
    });
    this.cleanup.every(1, () => this.is_seen && this.update());
    tell_presence(this.model, this.root, this.cleanup, (is_seen) => {
      this.is_seen = is_seen;
      this.came_ms = performance.now();
      this.update();
    });
  }

  private on(name: string, handle: () => void): void {
    this.model.on(name, handle);
    this.cleanup.add(() => this.model.off(name, handle));
  }

  private get chosen(): number {
    return Number(this.model.get("selected") ?? -1);
  }

  private get mode(): string {
    const mode = String(this.model.get("mode") || "");
    return mode || ((this.world?.home.length ?? 0) >= MANY ? "compact" : "tiles");
  }

  private put(name: string, value: unknown): void {
    this.model.set(name, value);
    this.model.save_changes();
  }

  private choose(rank: number): void {
    const is_over = rank === this.chosen;
    this.put("selected", is_over ? -1 : rank);
    if (!is_over) return;
    if (this.tiles) this.tiles.focus(rank);
    else if (this.matrix) this.matrix.focus();
    else this.search.focus();
  }

  private on_world(): void {
    const before = this.world;
    this.world = decode<World>(this.model.get("world") as DataView);
    this.frame = decode<Frame>(this.model.get("frame") as DataView);
    // A rank's death, and what was measured, change what is said of links and nothing else: the tiles
    // stay, and with them the focus.
    if (this.tiles && before && this.world && is_same_place(before, this.world)) {
      this.tiles.show(this.world);
      this.update();
    } else {
      this.draw();
    }
  }

  private on_frame(): void {
    const frame = decode<Frame>(this.model.get("frame") as DataView);
    if (!frame) return;
    const said = news(this.frame, frame);
    if (said) set_text(this.told, said);
    this.frame = frame;
    this.came_ms = performance.now();
    this.update();
  }

  private on_key(event: KeyboardEvent): void {
    if (event.key !== "Enter" || !this.world || !this.frame) return;
    const { world, frame } = this;
    const found = frame.ranks.findIndex((rank, number) =>
      matches(this.search.value, number, rank, host_of(world, number)),
    );
    if (found >= 0 && found !== this.chosen) this.choose(found);
  }

  /** Build the stage anew: another world, or another view of it. Who is in it stays where they are. */
  private draw(): void {
    const place = this.tiles?.place;
    this.drawn.run();
    this.drawn = new Cleanup();
    this.tiles = null;
    if (!this.world) {
      this.matrix = null;
      this.stage.replaceChildren(el("p", { class: "px-soft" }, "nothing is known of these ranks yet"));
      return;
    }
    const choose = (rank: number): void => this.choose(rank);
    if (this.mode === "links") {
      this.matrix = this.matrix ?? new Matrix(this.zoom.scale, choose);
      this.matrix.show(this.world);
      if (this.matrix.element.parentElement !== this.stage) this.stage.replaceChildren(this.matrix.element);
    } else {
      this.matrix = null;
      this.tiles = new Tiles(this.world, this.mode === "compact", choose, this.drawn);
      this.stage.replaceChildren(this.tiles.element);
      if (place) this.tiles.place = place;
    }
    this.stage.style.setProperty("--px-zoom", String(this.zoom.scale));
    this.measure.element.hidden = this.mode !== "links";
    for (const [mode, button] of this.modes) {
      set_attributes(button, { "aria-pressed": String(mode === this.mode) });
    }
    this.update();
    this.tiles?.draw();
  }

  /** Draw all as large as is wanted now. What has the focus keeps it: the next key is for it, too. */
  private rescale(): void {
    this.stage.style.setProperty("--px-zoom", String(this.zoom.scale));
    this.matrix?.zoom(this.zoom.scale);
    this.tiles?.draw();
  }

  private update(): void {
    const { world, frame } = this;
    if (!world || !frame) return;
    const since_s = (performance.now() - this.came_ms) / 1000;
    const is_quiet = this.is_seen && since_s > SILENT_S;
    const is_live = frame.status === "live" && !is_quiet;
    set_text(this.name, world.name);
    set_text(this.head, headline(world, frame));
    set_text(this.pill, is_live ? "live" : frame.status === "gone" ? "gone" : "no answer");
    this.root.classList.toggle("px-grey", !is_live);
    const why = is_live
      ? ""
      : frame.why || `no word from the kernel for ${Math.floor(since_s)} s: it is busy, restarted or gone`;
    this.why.hidden = why === "";
    set_text(this.why, why);
    this.tiles?.update(frame, since_s, this.chosen, this.search.value);
    this.matrix?.update(frame, this.chosen, this.search.value);
    this.uses.show(world, frame, is_live);
    this.measure.show(frame, is_live);
    this.details.show(world, frame, this.chosen, since_s, is_live);
    this.show_legend(frame);
  }

  private show_legend(frame: Frame): void {
    const said = by_state(frame);
    while (this.legend.children.length > said.length) this.legend.lastElementChild?.remove();
    said.forEach(([state, ranks], at) => {
      const item = this.legend.children[at] ?? this.legend.appendChild(el("span", { class: "px-count" }));
      set_attributes(item, { "data-state": state });
      set_text(item, `${STATES[state].sign} ${ranks.length} ${STATES[state].words}`);
    });
  }

  close(): void {
    this.drawn.run();
    this.cleanup.run();
    this.root.replaceChildren();
  }
}

function render({ model, el: root }: View): () => void {
  const view = new TopologyView(model, root);
  return () => view.close();
}

export default { render };
