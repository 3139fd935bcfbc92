// Draws hosts as boxes and ranks as buttons in them, large or small; updates them in place.

import { Disposables, el, set_attributes, set_text, svg } from "../shared/dom";
import { age, count, ranges, rate, size } from "../shared/words";
import { draw_curves, type Box } from "./links";
import { age_s, doing, load, matches, moves_alike, spoken, STATES, where, type Frame, type World } from "./state";

interface Tile {
  button: HTMLButtonElement;
  sign: HTMLElement;
  words: HTMLElement;
  foot: HTMLElement;
  host: string;
}

const ARROWS: Record<string, (columns: number) => number> = {
  ArrowLeft: () => -1,
  ArrowRight: () => 1,
  ArrowUp: (columns) => -columns,
  ArrowDown: (columns) => columns,
};

/** The hosts of one world with their ranks. */
export class Tiles {
  readonly element: HTMLElement;
  private readonly tiles: Tile[] = [];
  private readonly overlay = svg("svg", { class: "px-curves", "aria-hidden": "true" });
  private readonly traffic: { element: HTMLElement; words: string; sum: (frame: Frame) => number }[] = [];
  private boxes = new Map<number, Box>();
  private frame: Frame | null = null;
  private marked = -1;
  private at = 0; // the rank that Tab selects

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
            el("span", {}, where(host)),
            el("span", {}, load(host.cores, ranks.length)),
          ),
          inner,
        ),
      );
    }
    this.element = el("div", { class: is_small ? "px-tiles px-small" : "px-tiles" }, this.overlay, hosts);
    disposables.on<KeyboardEvent>(this.element, "keydown", (event) => this.on_key(event));
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
    const mark = (): void => this.mark(rank);
    const unmark = (): void => this.mark(-1);
    button.addEventListener("pointerenter", mark);
    button.addEventListener("focus", () => {
      this.go(rank);
      this.mark(rank);
    });
    button.addEventListener("pointerleave", unmark);
    button.addEventListener("blur", unmark);
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
    return { rank: this.at, has_focus: this.tiles[this.at]?.button === document.activeElement };
  }

  /** Restore a place saved from the world before. */
  set place({ rank, has_focus }: { rank: number; has_focus: boolean }) {
    const to = Math.min(rank, this.tiles.length - 1);
    if (to < 0) return;
    this.go(to);
    if (has_focus) this.focus(to);
  }

  private go(to: number): void {
    this.at = to;
    this.tiles.forEach(({ button }, rank) => set_attributes(button, { tabindex: rank === to ? 0 : -1 }));
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

  private on_key(event: KeyboardEvent): void {
    const at = this.tiles.findIndex(({ button }) => button === document.activeElement);
    const step = ARROWS[event.key];
    if (at < 0 || (!step && event.key !== "Home" && event.key !== "End")) return;
    const tops = this.tiles.map(({ button }) => Math.round(button.getBoundingClientRect().top));
    const columns = Math.max(1, tops.filter((top) => top === tops[at]).length);
    const to =
      event.key === "Home" ? 0 : event.key === "End" ? this.tiles.length - 1 : at + (step?.(columns) ?? 0);
    const target = this.tiles[to];
    if (!target) return;
    event.preventDefault();
    target.button.focus();
  }
}
