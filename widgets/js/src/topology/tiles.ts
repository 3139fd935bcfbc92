// Draws hosts as boxes and ranks as buttons in them, large or small; updates them in place.

import { Disposables, el, set_attributes, set_text, svg, TabStop } from "../shared/dom";
import { age, count, ranges, rate, size } from "../shared/words";
import { draw_curves, type Box } from "./links";
import { age_s, doing, matches, moves_alike, spoken, STATES, type Frame, type World } from "./state";

interface Tile {
  button: HTMLButtonElement;
  sign: HTMLElement;
  words: HTMLElement;
  foot: HTMLElement;
  host: string;
}

/** The hosts of one world with their ranks. */
export class Tiles {
  readonly element: HTMLElement;
  private readonly tiles: Tile[] = [];
  private readonly overlay = svg("svg", { class: "px-curves", "aria-hidden": "true" });
  private readonly traffic: { element: HTMLElement; words: string; sum: (frame: Frame) => number }[] = [];
  private boxes = new Map<number, Box>();
  private frame: Frame | null = null;
  private marked = -1;
  private readonly stop: TabStop;

  constructor(
    private world: World,
    is_small: boolean,
    private readonly on_choose: (rank: number) => void,
    disposables: Disposables,
  ) {
    const hosts = el("div", { class: "px-hosts" });
    for (const host of world.hosts) {
      const ranks = world.home.flatMap((its, rank) => (its === host.index ? [rank] : []));
      const here = new Set(ranks);
      const arenas = world.arenas.filter((arena) => arena.some((rank) => here.has(rank)));
      const grid = el("div", { class: "px-grid" });
      ranks.forEach((rank) => grid.append(this.make(rank, host.name)));
      const inner = el("div", { class: arenas.length ? "px-inside px-has-arena" : "px-inside" }, grid);
      for (const arena of arenas) {
        const words = `arena: memory that ranks ${ranges(arena)} share`;
        const sum = (frame: Frame): number => arena.reduce((all, rank) => all + (frame.arena[rank] ?? 0), 0);
        inner.append(this.tell("px-arena-name", words, sum));
      }
      // Links hang below the tiles, so make room there.
      if (world.tcp.some(([a, b]) => here.has(a) || here.has(b))) inner.classList.add("px-wired");
      const wires = world.tcp.filter(([a, b]) => here.has(a) && here.has(b)).length;
      if (wires) {
        const words = `tcp: ${count(wires, "link")} between these ranks`;
        const sum = (frame: Frame): number =>
          frame.links.reduce((all, [a, b, n]) => all + (here.has(a) && here.has(b) ? n : 0), 0);
        inner.append(this.tell("px-tcp-name", words, sum));
      }
      hosts.append(
        el(
          "section",
          { class: "px-host", "aria-label": `host ${host.name}` },
          el(
            "header",
            {},
            el("strong", {}, host.name),
            el("span", {}, host.where),
            el("span", {}, host.load),
          ),
          inner,
        ),
      );
    }
    this.element = el("div", { class: is_small ? "px-tiles px-small" : "px-tiles" }, this.overlay, hosts);
    this.stop = new TabStop(this.element, () => this.rows());
    if (typeof ResizeObserver !== "undefined") {
      const observer = new ResizeObserver(() => this.draw());
      observer.observe(this.element);
      disposables.add(() => observer.disconnect());
    }
  }

  /** Make a line about links, with their traffic. */
  private tell(kind: string, words: string, sum: (frame: Frame) => number): HTMLElement {
    const element = el("div", { class: kind }, words);
    this.traffic.push({ element, words, sum });
    return element;
  }

  private make(rank: number, host: string): HTMLButtonElement {
    const sign = el("span", { class: "px-sign", "aria-hidden": "true" });
    const words = el("span", { class: "px-words" });
    const foot = el("span", { class: "px-foot" });
    const head = el("span", { class: "px-number" }, String(rank));
    const button = el("button", { type: "button", class: "px-tile", tabindex: rank ? -1 : 0 });
    button.append(head, sign, words, foot);
    button.addEventListener("click", () => this.on_choose(rank));
    for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => this.mark(rank));
    for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => this.mark(-1));
    this.tiles[rank] = { button, sign, words, foot, host };
    return button;
  }

  update(frame: Frame, since_frame_s: number, chosen: number, query: string): void {
    const [is_new, is_moved] = [frame !== this.frame, !moves_alike(frame, this.frame)];
    this.frame = frame;
    for (const { element, words, sum } of is_new ? this.traffic : []) {
      const bytes = sum(frame);
      set_text(element, bytes ? `${words} · ${rate(bytes)}` : words);
    }
    if (is_moved) this.draw_links();
    this.tiles.forEach((tile, number) => {
      const rank = frame.ranks[number];
      if (!rank) return;
      const is_found = matches(query, number, rank, tile.host);
      const for_s = rank.state === "idle" ? "" : age(age_s(rank, frame, since_frame_s));
      set_attributes(tile.button, {
        "data-state": rank.state,
        "aria-pressed": String(number === chosen),
        "aria-label": spoken(number, rank),
        title: spoken(number, rank),
        class: is_found ? "px-tile" : "px-tile px-elsewhere",
      });
      set_text(tile.sign, STATES[rank.state].sign);
      set_text(tile.words, doing(rank));
      set_text(
        tile.foot,
        [for_s, rank.state === "dead" || !rank.rss ? "" : size(rank.rss)].filter(Boolean).join(" · "),
      );
    });
  }

  /** Show the same world with other measurements; keep the focus. */
  show(world: World): void {
    this.world = world;
    this.draw_links();
  }

  focus(rank: number): void {
    this.tiles[rank]?.button.focus();
  }

  /** Return the rank that Tab selects, and whether it has the focus. */
  get place(): { rank: number; has_focus: boolean } {
    const { button } = this.stop;
    return { rank: this.tiles.findIndex((tile) => tile.button === button), has_focus: button === document.activeElement };
  }

  /** Restore a place saved from the world before. */
  set place({ rank, has_focus }: { rank: number; has_focus: boolean }) {
    const to = Math.min(rank, this.tiles.length - 1);
    if (to < 0) return;
    this.stop.set(this.tiles[to]?.button);
    if (has_focus) this.focus(to);
  }

  private mark(rank: number): void {
    this.marked = rank;
    this.draw_links(); // the tiles do not move
  }

  /** Measure the tiles and redraw the links, after a change of size. */
  draw(): void {
    const home = this.element.getBoundingClientRect();
    const boxes = new Map<number, Box>();
    this.tiles.forEach(({ button }, rank) => {
      const place = button.getBoundingClientRect();
      boxes.set(rank, { x: place.left - home.left, y: place.top - home.top, w: place.width, h: place.height });
    });
    this.boxes = boxes;
    this.draw_links();
  }

  private draw_links(): void {
    draw_curves(this.overlay, this.world, this.boxes, this.marked, this.frame);
  }

  /** Return the tiles as they stand in rows. */
  private rows(): HTMLButtonElement[][] {
    const rows: HTMLButtonElement[][] = [];
    let before = NaN;
    this.tiles.forEach(({ button }) => {
      const { top } = button.getBoundingClientRect();
      if (top !== before) rows.push([]);
      rows[rows.length - 1]?.push(button);
      before = top;
    });
    return rows;
  }
}
