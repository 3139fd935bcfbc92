// The matrix of who reaches whom how: a field for each pair, read with the pointer or the arrow keys.

import { el, set_attributes, set_text, svg } from "../shared/dom";
import { matrix, measured_by_pair, runs, width_of, type Kind } from "./links";
import { say_moved, type Frame, type World } from "./state";

const WORDS: Record<Kind, string> = {
  self: "itself",
  arena: "shared memory",
  tcp: "tcp",
  slow: "slow",
  broken: "broken",
  "": "no path",
};
const HEAD = 26;
const NOTHING = "point at a field, or go to it with the arrow keys, to read it";
const ARROWS: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** The drawing of a world; `update` marks the fields that something moves in. */
export class Matrix {
  private world: World | null = null;
  private rows: Kind[][] = [];
  private cell = 0;
  private side = 0;
  // One drawing for all worlds and sizes: it has the focus, which a new one would not have.
  private readonly drawing = svg("svg", { tabindex: 0, role: "application" });
  private readonly flows = svg("g", { class: "px-flows" });
  private readonly cursor = svg("rect", { class: "px-cursor", visibility: "hidden" });
  private readonly legend = el("div", { class: "px-legend" });
  private readonly said = el("div", { class: "px-read", "aria-live": "polite" }, NOTHING);
  readonly element = el("div", { class: "px-matrix" }, el("div", { class: "px-scroll" }, this.drawing), this.legend, this.said);
  private at: [a: number, b: number] = [0, 0];
  private frame: Frame | null = null;

  constructor(private scale: number) {
    this.listen();
  }

  /** Draw a world; who reads the one before stays in their field. */
  show(world: World): void {
    this.world = world;
    this.rows = matrix(world);
    const n = world.home.length;
    const kinds = (["arena", "tcp", "slow", "broken"] as const).filter((kind) => this.rows.flat().includes(kind));
    const words = kinds.map((kind) => WORDS[kind]).join(" and ") || "none";
    set_attributes(this.drawing, {
      // It is worked with keys (role: application): who hears the page is to hand them on.
      "aria-label": `paths between ${n} ranks: ${words}; arrow keys go from pair to pair`,
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

  /** Draw it as large as this. */
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
    this.side = HEAD + n * cell + 8; // half of the last number stands out
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
    const step = Math.ceil(18 / cell);
    for (let rank = 0; rank < this.rows.length; rank += step) {
      const middle = HEAD + rank * cell + cell / 2;
      this.drawing.append(
        svg("text", { x: middle, y: HEAD - 7, "text-anchor": "middle" }, String(rank)),
        svg("text", { x: HEAD - 6, y: middle + 4, "text-anchor": "end" }, String(rank)),
      );
    }
    set_attributes(this.cursor, { width: cell - 1, height: cell - 1 });
    this.drawing.append(this.flows, this.cursor);
    if (this.frame) this.mark(this.frame);
    if (document.activeElement === this.drawing) this.go(0, 0);
  }

  private listen(): void {
    this.drawing.addEventListener("pointermove", (event) => {
      const place = this.drawing.getBoundingClientRect();
      const scale = place.width / this.side || 1;
      const b = Math.floor(((event.clientX - place.left) / scale - HEAD) / this.cell);
      const a = Math.floor(((event.clientY - place.top) / scale - HEAD) / this.cell);
      set_text(this.said, this.say(a, b));
    });
    this.drawing.addEventListener("pointerleave", () => set_text(this.said, NOTHING));
    this.drawing.addEventListener("focus", () => this.go(0, 0));
    this.drawing.addEventListener("blur", () => {
      set_attributes(this.cursor, { visibility: "hidden" });
      set_text(this.said, NOTHING);
    });
    this.drawing.addEventListener("keydown", (event) => {
      const n = this.rows.length;
      const step = event.key === "Home" ? [0, -n] : event.key === "End" ? [0, n] : ARROWS[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.go(step[0] ?? 0, step[1] ?? 0);
    });
  }

  /** Move the cursor, and say what is there. */
  private go(down: number, right: number): void {
    const within = (at: number): number => Math.min(this.rows.length - 1, Math.max(0, at));
    const [a, b] = [within(this.at[0] + down), within(this.at[1] + right)];
    this.at = [a, b];
    set_attributes(this.cursor, { x: HEAD + b * this.cell, y: HEAD + a * this.cell, visibility: "visible" });
    set_text(this.said, this.say(a, b));
    this.cursor.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }

  private say(a: number, b: number): string {
    const kind = this.rows[a]?.[b];
    if (kind === undefined) return NOTHING;
    const link = this.world && measured_by_pair(this.world).get(`${Math.min(a, b)},${Math.max(a, b)}`);
    const is_wire = kind === "tcp" || kind === "slow" || kind === "broken";
    const path = kind === "slow" || kind === "broken" ? "" : WORDS[kind];
    const words = `rank ${a} – rank ${b}: ${[path, link?.words ?? ""].filter(Boolean).join(", ")}`;
    const traffic = is_wire && this.frame ? say_moved(this.frame, a, b) : "";
    return traffic ? `${words}; ${traffic}` : words;
  }

  /** Mark what moves. */
  update(frame: Frame): void {
    const is_same = String(frame.links) === String(this.frame?.links);
    this.frame = frame;
    if (!is_same) this.mark(frame);
  }

  private mark(frame: Frame): void {
    const most = Math.max(1, ...frame.links.map(([, , bytes]) => bytes));
    const marks = frame.links.map(([source, target, bytes]) =>
      svg("circle", {
        cx: HEAD + (target + 0.5) * this.cell - 0.5,
        cy: HEAD + (source + 0.5) * this.cell - 0.5,
        r: (width_of(bytes, most) * this.cell) / 24,
      }),
    );
    this.flows.replaceChildren(...marks);
  }
}
