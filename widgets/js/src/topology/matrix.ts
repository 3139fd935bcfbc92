// The matrix of link kinds: a field for each pair, read with the pointer or the arrow keys.

import { el, set_attributes, set_text, svg } from "../shared/dom";
import { matrix, measured_by_pair, runs, width_of, type Kind } from "./links";
import { busiest, host_of, matches, moves_alike, say_moved, type Frame, type World } from "./state";

const WORDS: Record<Kind, string> = {
  self: "itself",
  arena: "shared memory",
  tcp: "tcp",
  slow: "slow",
  broken: "broken",
  "": "no path",
};
const HEAD = 26;
const NOTHING = "point at a field, or go to it with the arrow keys, to read it; a click or Enter chooses its row's rank";
const ARROWS: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** Choose the ranks to number, `step` apart: wanted ranks first. */
export function numbered(n: number, step: number, wanted: readonly number[]): number[] {
  const shown: number[] = [];
  const regular = Array.from({ length: Math.ceil(n / step) }, (_, at) => at * step);
  for (const rank of [...wanted, ...regular]) {
    if (shown.every((other) => Math.abs(other - rank) >= step)) shown.push(rank);
  }
  return shown.sort((one, other) => one - other);
}

/** Merge neighbouring ranks: first rank and length of each run. */
export function stretches(ranks: readonly number[]): [number, number][] {
  const found: [number, number][] = [];
  for (const rank of ranks) {
    const last = found[found.length - 1];
    if (last && last[0] + last[1] === rank) last[1] += 1;
    else found.push([rank, 1]);
  }
  return found;
}

/** The drawing of a world; `update` marks the fields with traffic. */
export class Matrix {
  private world: World | null = null;
  private rows: Kind[][] = [];
  private cell = 0;
  private side = 0;
  // One element for all worlds and sizes: a new element would lose the focus.
  private readonly drawing = svg("svg", { tabindex: 0, role: "application" });
  private readonly flows = svg("g", { class: "px-flows" });
  private readonly numbers = svg("g");
  private readonly veil = svg("path", { class: "px-veil" });
  private readonly chosen = svg("path", { class: "px-chosen" });
  private readonly cursor = svg("rect", { class: "px-cursor", visibility: "hidden" });
  private readonly legend = el("div", { class: "px-legend" });
  private readonly said = el("div", { class: "px-read", "aria-live": "polite" }, NOTHING);
  readonly element = el("div", { class: "px-matrix" }, el("div", { class: "px-scroll" }, this.drawing), this.legend, this.said);
  private at: [a: number, b: number] = [0, 0];
  private frame: Frame | null = null;
  private wanted: { found: number[]; chosen: number } | null = null; // before the first frame
  private read: { a: number; b: number; by_keys: boolean; moves: boolean } | null = null;

  constructor(
    private scale: number,
    private readonly on_choose: (rank: number) => void,
  ) {
    this.listen();
  }

  /** Draw a world; keep the cursor in its field. */
  show(world: World): void {
    this.world = world;
    this.rows = matrix(world);
    const n = world.home.length;
    const kinds = (["arena", "tcp", "slow", "broken"] as const).filter((kind) => this.rows.flat().includes(kind));
    const words = kinds.map((kind) => WORDS[kind]).join(" and ") || "none";
    set_attributes(this.drawing, {
      // role application: screen readers pass keys on to this element.
      "aria-label": `paths between ${n} ranks: ${words}; arrow keys go from pair to pair, Enter chooses the row's rank`,
    });
    this.legend.replaceChildren();
    for (const kind of kinds) {
      this.legend.append(el("span", { class: `px-swatch px-path-${kind}` }), el("span", {}, WORDS[kind]));
    }
    this.legend.append(
      el("span", { class: "px-swatch px-flow-swatch" }),
      el("span", {}, "something moves, from row to column"),
    );
    this.draw();
  }

  /** Draw at this scale. */
  zoom(scale: number): void {
    this.scale = scale;
    this.draw();
  }

  focus(): void {
    this.drawing.focus();
  }

  private draw(): void {
    const n = this.rows.length;
    const cell = Math.round(this.scale * Math.max(8, Math.min(28, Math.floor(560 / Math.max(1, n)))));
    this.cell = cell;
    this.side = HEAD + n * cell + 8; // half of the last number is outside the fields
    set_attributes(this.drawing, { width: this.side, height: this.side, viewBox: `0 0 ${this.side} ${this.side}` });
    this.drawing.replaceChildren();
    this.rows.forEach((row, a) => {
      for (const [b, length, kind] of runs(row)) {
        this.drawing.append(
          svg("rect", {
            x: HEAD + b * cell,
            y: HEAD + a * cell,
            width: length * cell - 1,
            height: cell - 1,
            class: `px-path-${kind || "none"}`,
          }),
        );
      }
    });
    set_attributes(this.cursor, { width: cell - 1, height: cell - 1 });
    this.drawing.append(this.flows, this.veil, this.numbers, this.chosen, this.cursor);
    if (this.frame) this.mark(this.frame);
    this.point_out();
    if (document.activeElement === this.drawing) this.go(0, 0);
  }

  /** Highlight the found ranks, and the selected rank above all. */
  private point_out(): void {
    const { cell } = this;
    const n = this.rows.length;
    if (!this.wanted) return;
    const { found, chosen } = this.wanted;
    const others = stretches(this.rows.map((_, rank) => rank).filter((rank) => !found.includes(rank)));
    const rect = (x: number, y: number, w: number, h: number): string =>
      `M${HEAD + x * cell} ${HEAD + y * cell}h${w * cell - 1}v${h * cell - 1}h${1 - w * cell}z`;
    // A link belongs to both its ranks: veil it only if neither was found.
    const veil = others.flatMap(([y, h]) => others.map(([x, w]) => rect(x, y, w, h)));
    set_attributes(this.veil, { d: veil.join("") });
    set_attributes(this.chosen, { d: chosen < 0 ? "" : rect(0, chosen, n, 1) + rect(chosen, 0, 1, n) });
    const is_narrow = found.length < n;
    const wanted = [...(chosen < 0 ? [] : [chosen]), ...(is_narrow ? found : [])];
    this.numbers.replaceChildren();
    for (const rank of numbered(n, Math.ceil(18 / cell), wanted)) {
      const middle = HEAD + rank * cell + cell / 2;
      const look = rank === chosen ? "px-chosen" : found.includes(rank) ? "" : "px-elsewhere";
      this.numbers.append(
        svg("text", { x: middle, y: HEAD - 7, "text-anchor": "middle", class: look }, String(rank)),
        svg("text", { x: HEAD - 6, y: middle + 4, "text-anchor": "end", class: look }, String(rank)),
      );
    }
  }

  /** Return the field under a pointer; -1 for a header or outside. */
  private under(event: MouseEvent): [a: number, b: number] {
    const place = this.drawing.getBoundingClientRect();
    const scale = place.width / this.side || 1;
    const at = (pixels: number): number => {
      const found = Math.floor((pixels / scale - HEAD) / this.cell);
      return found < this.rows.length ? Math.max(-1, found) : -1;
    };
    return [at(event.clientY - place.top), at(event.clientX - place.left)];
  }

  private listen(): void {
    this.drawing.addEventListener("pointermove", (event) => {
      this.speak(...this.under(event), false);
    });
    this.drawing.addEventListener("click", (event) => {
      const [a, b] = this.under(event);
      const rank = a >= 0 ? a : b; // in the header row, the column's rank
      if (rank < 0) return;
      this.at = [rank, Math.max(0, b)];
      this.go(0, 0);
      this.on_choose(rank);
    });
    this.drawing.addEventListener("pointerleave", () => this.hush());
    this.drawing.addEventListener("focus", () => this.go(0, 0));
    this.drawing.addEventListener("blur", () => {
      set_attributes(this.cursor, { visibility: "hidden" });
      this.hush();
    });
    this.drawing.addEventListener("keydown", (event) => {
      const n = this.rows.length;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.on_choose(this.at[0]);
        return;
      }
      const step = event.key === "Home" ? [0, -n] : event.key === "End" ? [0, n] : ARROWS[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.go(step[0] ?? 0, step[1] ?? 0);
    });
  }

  /** Move the cursor, and describe its field. */
  private go(down: number, right: number): void {
    const within = (at: number): number => Math.min(this.rows.length - 1, Math.max(0, at));
    const [a, b] = [within(this.at[0] + down), within(this.at[1] + right)];
    this.at = [a, b];
    set_attributes(this.cursor, { x: HEAD + b * this.cell, y: HEAD + a * this.cell, visibility: "visible" });
    this.speak(a, b, true);
    this.cursor.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }

  private speak(a: number, b: number, by_keys: boolean): void {
    this.read = { a, b, by_keys, moves: this.traffic(a, b) !== "" };
    // With a pointer, do not read each change aloud.
    set_attributes(this.said, { "aria-live": by_keys ? "polite" : "off" });
    set_text(this.said, this.say(a, b));
  }

  private hush(): void {
    this.read = null;
    set_text(this.said, NOTHING);
  }

  /** Update the description of the field: its traffic changes all the time. */
  private repeat(): void {
    if (!this.read) return;
    const { a, b, by_keys, moves } = this.read;
    if (!by_keys || moves !== (this.traffic(a, b) !== "")) this.speak(a, b, by_keys);
  }

  private traffic(a: number, b: number): string {
    const kind = this.rows[a]?.[b];
    const is_wire = kind === "tcp" || kind === "slow" || kind === "broken";
    return is_wire && this.frame ? say_moved(this.frame, a, b) : "";
  }

  private say(a: number, b: number): string {
    const kind = this.rows[a]?.[b];
    if (kind === undefined) return NOTHING;
    const link = this.world && measured_by_pair(this.world).get(`${Math.min(a, b)},${Math.max(a, b)}`);
    const path = kind === "slow" || kind === "broken" ? "" : WORDS[kind];
    const words = `rank ${a} – rank ${b}: ${[path, link?.words ?? ""].filter(Boolean).join(", ")}`;
    const traffic = this.traffic(a, b);
    return traffic ? `${words}; ${traffic}` : words;
  }

  /** Mark traffic, the selected rank and the found ranks. */
  update(frame: Frame, chosen: number, query: string): void {
    const is_same = moves_alike(frame, this.frame);
    this.frame = frame;
    if (!is_same) this.mark(frame);
    const world = this.world;
    const found = frame.ranks.flatMap((rank, number) =>
      world && matches(query, number, rank, host_of(world, number)) ? [number] : [],
    );
    this.repeat();
    if (chosen === this.wanted?.chosen && String(found) === String(this.wanted.found)) return;
    this.wanted = { found, chosen };
    this.point_out();
  }

  private mark(frame: Frame): void {
    const most = busiest(frame);
    while (this.flows.children.length > frame.links.length) this.flows.lastElementChild?.remove();
    frame.links.forEach(([source, target, bytes], at) => {
      // 64 ranks have 4032 circles; few change from frame to frame.
      const mark = this.flows.children[at] ?? this.flows.appendChild(svg("circle"));
      set_attributes(mark, {
        cx: HEAD + (target + 0.5) * this.cell - 0.5,
        cy: HEAD + (source + 0.5) * this.cell - 0.5,
        r: (width_of(bytes, most) * this.cell) / 24,
      });
    });
  }
}
