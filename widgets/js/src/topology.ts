// The live Topology widget: hosts, ranks by state, and the links between them. It draws the frames of phalanx.widgets.Topology,
// and turns clicks into requests.

import { button, Disposables, el, fill, set_attributes, set_text } from "./shared/dom";
import { decode, type Model } from "./shared/model";
import { module_of, WidgetView } from "./shared/view";
import { Details } from "./topology/details";
import { LinkTable } from "./topology/link_table";
import {
  by_state, death_announcement, headline, host_of, is_same_place, MANY, matches, STATES, type Frame, type World,
} from "./topology/state";
import { Tiles } from "./topology/tiles";
import { Measure, Zoom } from "./topology/toolbar";

const MODES: [string, string][] = [
  ["tiles", "Tiles"],
  ["compact", "Compact"],
  ["links", "Links"],
];

class TopologyView extends WidgetView {
  private readonly head = el("span", { class: "px-headline" });
  private readonly search = el("input", {
    type: "search",
    placeholder: "find: rank, host, process, state",
    "aria-label": "find ranks",
  });
  private readonly modes = new Map<string, HTMLButtonElement>();
  private readonly stage = el("div", { class: "px-stage" });
  private readonly legend = el("div", { class: "px-legend" });
  private readonly announced = el("div", { class: "px-unseen", "aria-live": "assertive" });
  private readonly details: Details;
  private readonly measure: Measure;
  private readonly zoom: Zoom;
  private drawn = new Disposables();
  private tiles: Tiles | null = null;
  private links: LinkTable | null = null;
  private world: World | null = null;
  private frame: Frame | null = null;

  constructor(model: Model, root: HTMLElement) {
    super(model, root, "px-topology");
    this.details = new Details(this.requests, () => this.choose(this.chosen));
    this.measure = new Measure(this.requests);
    this.zoom = new Zoom(this.stage, this.disposables, () => this.rescale());
    const modes = el("div", { class: "px-modes", role: "group", "aria-label": "view" });
    for (const [mode, words] of MODES) {
      const made = button(words, "", () => this.put("mode", mode));
      this.modes.set(mode, made);
      modes.append(made);
    }
    modes.append(this.zoom.element);
    const bar = el("header", { class: "px-bar" }, this.name, this.head, this.pill, this.search, modes);
    root.append(bar, this.why, this.stage, this.legend, this.measure.element);
    root.append(this.details.element, this.announced);
    this.listen();
    this.on_world();
  }

  private listen(): void {
    this.on("change:world", () => this.on_world());
    this.on("change:frame", () => this.on_frame());
    this.on("change:mode", () => this.draw());
    this.on("change:selected", () => this.update());
    this.disposables.on(this.search, "input", () => this.update());
    this.disposables.on<KeyboardEvent>(this.search, "keydown", (event) => this.on_key(event));
    this.disposables.on<KeyboardEvent>(this.root, "keydown", (event) => {
      if (event.key === "Escape" && this.chosen >= 0) this.choose(this.chosen);
    });
    this.watch();
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
    else if (this.links) this.links.focus();
    else this.search.focus();
  }

  private on_world(): void {
    const before = this.world;
    this.world = decode<World>(this.model.get("world") as DataView);
    this.take_frame(); // the world may come before its frame's event
    // A rank's death or a measurement changes only the texts of links: keep the tiles, and with them the focus.
    if (this.tiles && before && this.world && is_same_place(before, this.world)) {
      this.tiles.show(this.world);
      this.update();
    } else {
      this.draw();
    }
  }

  private on_frame(): void {
    if (!this.take_frame()) return;
    this.note_frame();
    this.update();
  }

  /** Take the newest frame and announce the deaths in it; return false if there is none. */
  private take_frame(): boolean {
    const frame = decode<Frame>(this.model.get("frame") as DataView);
    if (!frame) return false;
    const said = death_announcement(this.frame, frame);
    if (said) set_text(this.announced, said);
    this.frame = frame;
    return true;
  }

  private on_key(event: KeyboardEvent): void {
    if (event.key !== "Enter" || !this.world || !this.frame) return;
    const { world, frame } = this;
    const found = frame.ranks.findIndex((rank, number) =>
      matches(this.search.value, number, rank, host_of(world, number)),
    );
    if (found >= 0 && found !== this.chosen) this.choose(found);
  }

  /** Rebuild the stage for another world or view; keep the user's place. */
  private draw(): void {
    const place = this.tiles?.place;
    this.drawn.run();
    this.drawn = new Disposables();
    this.tiles = null;
    if (!this.world) {
      this.links = null;
      this.stage.replaceChildren(el("p", { class: "px-soft" }, "nothing is known of these ranks yet"));
      return;
    }
    const choose = (rank: number): void => this.choose(rank);
    if (this.mode === "links") {
      this.links = this.links ?? new LinkTable(choose);
      this.links.show(this.world);
      if (this.links.element.parentElement !== this.stage) this.stage.replaceChildren(this.links.element);
    } else {
      this.links = null;
      this.tiles = new Tiles(this.world, this.mode === "compact", choose, this.drawn);
      this.stage.replaceChildren(this.tiles.element);
      if (place) this.tiles.place = place;
    }
    this.stage.style.setProperty("--px-zoom", String(this.zoom.scale));
    this.measure.element.hidden = this.mode !== "links";
    for (const [mode, its] of this.modes) {
      set_attributes(its, { "aria-pressed": String(mode === this.mode) });
    }
    this.update();
    this.tiles?.draw();
  }

  /** Redraw at the current zoom; the focused element keeps the focus, for the next key. */
  private rescale(): void {
    this.stage.style.setProperty("--px-zoom", String(this.zoom.scale));
    this.tiles?.draw();
  }

  protected update(): void {
    const { world, frame } = this;
    if (!world || !frame) return;
    const { since_s } = this;
    set_text(this.name, world.name);
    set_text(this.head, headline(world, frame));
    const is_live = this.show_status(frame);
    this.tiles?.update(frame, since_s, this.chosen, this.search.value);
    this.links?.update(frame, this.chosen, this.search.value);
    this.measure.show(frame, is_live);
    this.details.show(world, frame, this.chosen, since_s, is_live);
    this.show_legend(frame);
  }

  private show_legend(frame: Frame): void {
    fill(this.legend, by_state(frame), () => el("span", { class: "px-count" }), (item, [state, ranks]) => {
      set_attributes(item, { "data-state": state });
      set_text(item, `${STATES[state].sign} ${ranks.length} ${STATES[state].words}`);
    });
  }

  override close(): void {
    this.drawn.run();
    super.close();
  }
}

export default module_of(TopologyView);
