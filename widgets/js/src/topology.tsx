// The live Topology widget: hosts, ranks by state, and the links between them. It draws the frames of phalanx.widgets.Topology,
// and turns clicks into requests.

import type { ComponentChildren, VNode } from "preact";

import { button } from "./shared/dom";
import { decode } from "./shared/model";
import { module_of, WidgetView } from "./shared/view";
import { Details } from "./topology/details";
import { LinkTable, links_of, type Link } from "./topology/link_table";
import type { Box } from "./topology/links";
import { LinkMeasurement } from "./topology/measure";
import {
  by_state, death_announcement, headline, host_of, MANY, matches, STATES, type Frame, type World,
} from "./topology/state";
import { Tiles } from "./topology/tiles";

const MODES = { tiles: "Tiles", compact: "Compact", links: "Links" };
const ZOOMS = [0.6, 0.75, 1, 1.25, 1.5, 2, 3];
const USUAL = ZOOMS.indexOf(1);

class TopologyView extends WidgetView<Frame> {
  private readonly details = new Details(this.requests, () => this.update(), () => this.choose(this.chosen));
  private readonly measurement = new LinkMeasurement(this.requests, () => this.update());
  private world: World | null = null;
  private links: Link[] = [];
  private boxes = new Map<number, Box>();
  private zoomed = USUAL; // index in ZOOMS
  private query = "";
  private marked = -1; // the rank under the pointer or with the focus
  private announced = "";

  override open(style: string): void {
    super.open(style);
    this.on("change:world", () => this.on_world());
    this.on("change:mode", () => this.draw());
    this.on("change:selected", () => this.update());
    this.disposables.on<KeyboardEvent>(this.root, "keydown", ({ key }) => {
      if (key === "Escape" && this.chosen >= 0) this.choose(this.chosen);
    });
    this.disposables.on_resize(this.root, () => this.measure());
    this.on_world();
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

  /** Choose a rank, or leave the chosen one: the focus goes back to it. */
  private choose(rank: number): void {
    const is_over = rank === this.chosen;
    this.put("selected", is_over ? -1 : rank);
    if (!is_over) return;
    const find = (query: string): HTMLElement | null => this.root.querySelector(query);
    (find(`.px-tile[data-rank="${rank}"]`) ?? find('.px-stage [tabindex="0"]') ?? find("input"))?.focus();
  }

  private on_world(): void {
    this.world = decode<World>(this.model.get("world") as DataView);
    this.links = this.world ? links_of(this.world) : [];
    this.take_newest(); // the world may come before its frame's event
    this.draw();
  }

  protected override take(frame: Frame): void {
    this.announced = death_announcement(this.frame, frame) || this.announced;
    this.frame = frame;
  }

  /** Show a world, mode or zoom, which moves the tiles. */
  private draw(): void {
    this.update();
    this.measure();
  }

  /** Draw the links between the tiles as they stand on the page. */
  private measure(): void {
    const tiles = this.root.querySelector(".px-tiles");
    if (!tiles) return;
    const home = tiles.getBoundingClientRect();
    const found = [...tiles.querySelectorAll<HTMLElement>(".px-tile")].map((tile): [number, Box] => {
      const { left, top, width, height } = tile.getBoundingClientRect();
      return [Number(tile.dataset["rank"]), { x: left - home.left, y: top - home.top, w: width, h: height }];
    });
    this.boxes = new Map(found);
    this.update();
  }

  private zoom(by: number): void {
    this.zoomed = Math.min(ZOOMS.length - 1, Math.max(0, this.zoomed + by));
    this.draw();
  }

  private on_wheel(event: WheelEvent): void {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1 : -1);
  }

  private on_stage_key(event: KeyboardEvent): void {
    const steps: Record<string, number> = { "+": 1, "=": 1, "-": -1, "0": USUAL - this.zoomed };
    const step = steps[event.key];
    if (step !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) this.zoom(step);
  }

  /** Choose the first rank that was found. */
  private on_search_key(event: KeyboardEvent): void {
    const { world, frame } = this;
    if (event.key !== "Enter" || !world || !frame) return;
    const found = frame.ranks.findIndex((rank, number) => matches(this.query, number, rank, host_of(world, number)));
    if (found >= 0 && found !== this.chosen) this.choose(found);
  }

  protected view(): ComponentChildren {
    const { world, frame } = this;
    const is_known = world !== null && frame !== null;
    return (
      <>
        {this.top(is_known ? world.name : "", is_known ? headline(world, frame) : "", this.tools())}
        <div
          class="px-stage"
          style={{ "--px-zoom": ZOOMS[this.zoomed] }}
          onWheel={(event) => this.on_wheel(event)}
          onKeyDown={(event) => this.on_stage_key(event)}
        >
          {is_known ? this.stage(world, frame) : <p class="px-soft">nothing is known of these ranks yet</p>}
        </div>
        <div class="px-legend">
          {(frame ? by_state(frame) : []).map(([state, ranks]) => (
            <span class="px-count" data-state={state}>
              {`${STATES[state].sign} ${ranks.length} ${STATES[state].words}`}
            </span>
          ))}
        </div>
        {is_known && this.mode === "links" && this.measurement.view(frame, this.is_live)}
        {is_known && this.details.view(world, frame, this.chosen, this.since_s, this.is_live)}
        <div class="px-unseen" aria-live="assertive">
          {this.announced}
        </div>
      </>
    );
  }

  private tools(): VNode {
    return (
      <>
        <input
          type="search"
          placeholder="find: rank, host, process, state"
          aria-label="find ranks"
          onInput={(event) => {
            this.query = event.currentTarget.value;
            this.update();
          }}
          onKeyDown={(event) => this.on_search_key(event)}
        />
        <div class="px-modes" role="group" aria-label="view">
          {Object.entries(MODES).map(([mode, words]) =>
            button(words, "", () => this.put("mode", mode), { "aria-pressed": mode === this.mode }),
          )}
          <span class="px-modes" role="group" aria-label="zoom">
            {button("−", "smaller", () => this.zoom(-1), { is_off: this.zoomed === 0 })}
            {button("+", "larger", () => this.zoom(1), { is_off: this.zoomed === ZOOMS.length - 1 })}
          </span>
        </div>
      </>
    );
  }

  private stage(world: World, frame: Frame): VNode {
    const { links, boxes, chosen, query, marked, since_s } = this;
    const its = { world, frame, chosen, query, choose: (rank: number) => this.choose(rank) };
    if (this.mode === "links") return <LinkTable {...its} links={links} />;
    const mark = (rank: number): void => {
      this.marked = rank;
      this.update();
    };
    const is_small = this.mode === "compact";
    return <Tiles {...its} {...{ is_small, boxes, marked, mark }} since_frame_s={since_s} />;
  }
}

export default module_of(TopologyView, "px-topology");
