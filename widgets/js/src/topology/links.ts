// Paths between ranks: curves between tiles, and the matrix of who reaches whom how.

import { set_text, svg, el } from "../shared/dom";
import { moved, peers, say_moved, type Frame, type MeasuredLink, type World } from "./state";

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

export const MOST_CURVES = 66; // a mesh of 12; above that lines say nothing, the matrix does

/** A curve from tile to tile: it hangs below tiles of a row, and goes straight between rows. */
export function curve(a: Box, b: Box): string {
  const [from, to] = a.x <= b.x ? [a, b] : [b, a];
  const at = (n: number): string => n.toFixed(1);
  const x1 = from.x + from.w / 2;
  const x2 = to.x + to.w / 2;
  if (Math.abs(a.y - b.y) < 1) {
    const y = from.y + from.h;
    const depth = Math.min(30, 9 + (x2 - x1) / 22);
    return `M${at(x1)} ${at(y)} C${at(x1)} ${at(y + depth)} ${at(x2)} ${at(y + depth)} ${at(x2)} ${at(y)}`;
  }
  const [high, low] = a.y < b.y ? [a, b] : [b, a];
  const xh = high.x + high.w / 2;
  const xl = low.x + low.w / 2;
  const yh = high.y + high.h;
  const middle = (yh + low.y) / 2;
  return `M${at(xh)} ${at(yh)} C${at(xh)} ${at(middle)} ${at(xl)} ${at(middle)} ${at(xl)} ${at(low.y)}`;
}

/** Draw the tcp links that have room, and those of the rank a person looks at. */
export function draw_curves(
  overlay: SVGSVGElement,
  world: World,
  boxes: Map<number, Box>,
  marked: number,
  frame: Frame | null,
): void {
  overlay.replaceChildren();
  const most = Math.max(1, ...(frame?.links ?? []).map(([, , bytes]) => bytes));
  const found = measured_by_pair(world);
  const add = (a: number, b: number, kind: string): void => {
    const [from, to] = [boxes.get(a), boxes.get(b)];
    if (!from || !to) return;
    const state = found.get(`${Math.min(a, b)},${Math.max(a, b)}`)?.state ?? "ok";
    const look = state === "ok" ? kind : `${kind} px-${state}`;
    const words = frame ? say_moved(frame, a, b) : "";
    const path = svg("path", { d: curve(from, to), class: words ? `${look} px-moving` : look });
    if (frame && words) {
      path.style.strokeWidth = `${width_of(Math.max(...moved(frame, a, b)), most)}px`;
      path.append(svg("title", {}, words));
    }
    overlay.append(path);
  };
  if (world.tcp.length <= MOST_CURVES) {
    for (const [a, b] of world.tcp) {
      if (a !== marked && b !== marked) add(a, b, "px-tcp");
    }
  }
  if (marked < 0) return;
  for (const peer of peers(world, marked).tcp) add(marked, peer, "px-tcp px-marked");
}

/** How wide a link is drawn: 1.5 to 6 pixels over three powers of ten below the busiest. */
export function width_of(bytes: number, most: number): number {
  const share = 1 + Math.log10(Math.max(bytes, 1) / most) / 3;
  return Number((1.5 + 4.5 * Math.min(1, Math.max(0, share))).toFixed(1));
}

/** What was measured of each pair, by "a,b" with a < b. */
export function measured_by_pair(world: World): Map<string, MeasuredLink> {
  return new Map((world.measured ?? []).map((link) => [`${link.a},${link.b}`, link]));
}

export type Kind = "self" | "arena" | "tcp" | "slow" | "broken" | "";

/** How each rank reaches each other, by row. */
export function matrix(world: World): Kind[][] {
  const n = world.home.length;
  const rows: Kind[][] = Array.from({ length: n }, (_, a) =>
    Array.from({ length: n }, (__, b): Kind => (a === b ? "self" : "")),
  );
  const put = (a: number, b: number, kind: Kind): void => {
    const row = rows[a];
    if (row && a !== b && b < n) row[b] = kind;
  };
  for (const [a, b] of world.tcp) {
    put(a, b, "tcp");
    put(b, a, "tcp");
  }
  for (const ranks of world.arenas) {
    for (const a of ranks) for (const b of ranks) put(a, b, "arena");
  }
  for (const { a, b, state } of world.measured ?? []) {
    if (state === "ok") continue;
    put(a, b, state);
    put(b, a, state);
  }
  return rows;
}

/** Equal neighbours of a row together: from, length, kind. */
export function runs(row: readonly Kind[]): [number, number, Kind][] {
  const found: [number, number, Kind][] = [];
  row.forEach((kind, at) => {
    const last = found[found.length - 1];
    if (last && last[2] === kind) last[1] += 1;
    else found.push([at, 1, kind]);
  });
  return found;
}

const WORDS: Record<Kind, string> = {
  self: "itself",
  arena: "shared memory",
  tcp: "tcp",
  slow: "slow",
  broken: "broken",
  "": "no path",
};
const HEAD = 26;

/** The matrix as a drawing, with a line below it that says what the pointer is over. */
export function draw_matrix(world: World, frame: () => Frame | null, zoom = 1): HTMLElement {
  const n = world.home.length;
  const cell = Math.round(zoom * Math.max(8, Math.min(28, Math.floor(560 / Math.max(1, n)))));
  const side = HEAD + n * cell + 8; // half of the last number stands out
  const rows = matrix(world);
  const kinds = (["arena", "tcp", "slow", "broken"] as const).filter((kind) => rows.flat().includes(kind));
  const words = kinds.map((kind) => WORDS[kind]).join(" and ") || "none";
  const drawing = svg("svg", {
    width: side,
    height: side,
    viewBox: `0 0 ${side} ${side}`,
    role: "img",
    "aria-label": `paths between ${n} ranks: ${words}`,
  });
  rows.forEach((row, a) => {
    for (const [b, length, kind] of runs(row)) {
      drawing.append(
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
  for (let rank = 0; rank < n; rank += step) {
    const middle = HEAD + rank * cell + cell / 2;
    drawing.append(
      svg("text", { x: middle, y: HEAD - 7, "text-anchor": "middle" }, String(rank)),
      svg("text", { x: HEAD - 6, y: middle + 4, "text-anchor": "end" }, String(rank)),
    );
  }
  const nothing = "point at a field to read it";
  const found = measured_by_pair(world);
  const say = (a: number, b: number, kind: Kind): string => {
    const link = found.get(`${Math.min(a, b)},${Math.max(a, b)}`);
    const path = kind === "slow" || kind === "broken" ? "" : WORDS[kind];
    return `rank ${a} – rank ${b}: ${[path, link?.words ?? ""].filter(Boolean).join(", ")}`;
  };
  const said = el("div", { class: "px-read" }, nothing);
  drawing.addEventListener("pointermove", (event) => {
    const place = drawing.getBoundingClientRect();
    const scale = place.width / side || 1;
    const b = Math.floor(((event.clientX - place.left) / scale - HEAD) / cell);
    const a = Math.floor(((event.clientY - place.top) / scale - HEAD) / cell);
    const kind = rows[a]?.[b];
    const now = frame();
    const is_wire = kind === "tcp" || kind === "slow" || kind === "broken";
    const traffic = is_wire && now ? say_moved(now, a, b) : "";
    const words = kind === undefined ? nothing : say(a, b, kind);
    set_text(said, traffic ? `${words}; ${traffic}` : words);
  });
  drawing.addEventListener("pointerleave", () => set_text(said, nothing));
  const legend = el("div", { class: "px-legend" });
  for (const kind of kinds) {
    legend.append(el("span", { class: `px-swatch px-path-${kind}` }), el("span", {}, WORDS[kind]));
  }
  return el("div", { class: "px-matrix" }, el("div", { class: "px-scroll" }, drawing), legend, said);
}
