// Draws the links between ranks: the curves between tiles.

import { svg } from "../shared/dom";
import { busiest, moved, peers, say_moved, type Frame, type MeasuredLink, type World } from "./state";

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

export const MOST_CURVES = 66; // a mesh of 12 ranks; more curves are unreadable, so use the table

/** A Bezier curve between two tiles: its path, its middle, and its direction there. */
export interface Curve {
  d: string;
  middle: [x: number, y: number];
  way: [x: number, y: number];
}

const fixed = (value: number): string => value.toFixed(1);

/** Return a curve from a tile to another: it hangs below tiles of one row, else it lies between the rows. */
export function curve(a: Box, b: Box): Curve {
  const is_row = Math.abs(a.y - b.y) < 1;
  const [x1, x2] = [a.x + a.w / 2, b.x + b.w / 2];
  const y1 = a.y + (is_row || a.y < b.y ? a.h : 0);
  const y2 = b.y + (is_row || a.y > b.y ? b.h : 0);
  const control = is_row ? y1 + Math.min(30, 9 + Math.abs(x2 - x1) / 22) : (y1 + y2) / 2;
  const [dx, dy] = [2 * (x2 - x1), y2 - y1];
  const length = Math.hypot(dx, dy) || 1;
  const points = [x1, control, x2, control, x2, y2].map(fixed).join(" ");
  return {
    d: `M${fixed(x1)} ${fixed(y1)} C${points}`,
    middle: [(x1 + x2) / 2, (y1 + 6 * control + y2) / 8],
    way: [dx / length, dy / length],
  };
}

const ARROW = 7; // pixels, half of its length

/** Return arrow heads for the middle of a curve: along it, back, or both back to back. */
export function arrows({ middle: [x, y], way: [dx, dy] }: Curve, is_there: boolean, is_back: boolean): string {
  const head = (way: 1 | -1, at: number): string => {
    const [tx, ty] = [x + dx * (at + way * ARROW), y + dy * (at + way * ARROW)];
    const [bx, by] = [x + dx * (at - way * ARROW), y + dy * (at - way * ARROW)];
    const [sx, sy] = [(-dy * ARROW) / 1.4, (dx * ARROW) / 1.4];
    return `M${fixed(tx)} ${fixed(ty)} L${fixed(bx + sx)} ${fixed(by + sy)} L${fixed(bx - sx)} ${fixed(by - sy)} Z`;
  };
  const apart = is_there && is_back ? ARROW + 1 : 0;
  return [is_there ? head(1, apart) : "", is_back ? head(-1, -apart) : ""].filter(Boolean).join(" ");
}

const AWAY = 0.1; // of the rate the other way: less is replies, not traffic
const LITTLE = 0.001; // of the busiest link's rate: less counts as no traffic

/** Draw the tcp links that have room, and the links of the selected rank. */
export function draw_curves(
  overlay: SVGSVGElement,
  world: World,
  boxes: Map<number, Box>,
  marked: number,
  frame: Frame | null,
): void {
  overlay.replaceChildren();
  const most = busiest(frame);
  const found = measured_by_pair(world);
  const add = (a: number, b: number, kind: string): void => {
    const [from, to] = [boxes.get(a), boxes.get(b)];
    if (!from || !to) return;
    const state = found.get(`${Math.min(a, b)},${Math.max(a, b)}`)?.state ?? "ok";
    const look = state === "ok" ? kind : `${kind} px-${state}`;
    const words = frame ? say_moved(frame, a, b) : "";
    const [there, back] = frame ? moved(frame, a, b) : [0, 0];
    const is_moving = Math.max(there, back) > LITTLE * most;
    const its = curve(from, to);
    const path = svg("path", { d: its.d, class: is_moving ? `${look} px-moving` : look });
    if (words) path.append(svg("title", {}, words));
    if (is_moving) {
      path.style.strokeWidth = `${width_of(Math.max(there, back), most)}px`;
      if (back > there) path.classList.add("px-against");
      const d = arrows(its, there > AWAY * back, back > AWAY * there);
      overlay.append(svg("path", { d, class: "px-arrow" }));
    }
    overlay.prepend(path);
  };
  // With very many links, only links with traffic show a direction.
  const has_traffic = ([a, b]: [number, number]): boolean => !!frame && moved(frame, a, b).some((rate) => rate > 0);
  const shown = world.tcp.length <= MOST_CURVES ? world.tcp : world.tcp.filter(has_traffic);
  if (shown.length <= MOST_CURVES) {
    for (const [a, b] of shown) {
      if (a !== marked && b !== marked) add(a, b, "px-tcp");
    }
  }
  if (marked < 0) return;
  for (const peer of peers(world, marked).tcp) add(marked, peer, "px-tcp px-marked");
}

/** Return the width of a link: 1.5 to 6 pixels over three powers of ten below the busiest. */
export function width_of(bytes: number, most: number): number {
  const share = 1 + Math.log10(Math.max(bytes, 1) / most) / 3;
  return Number((1.5 + 4.5 * Math.min(1, Math.max(0, share))).toFixed(1));
}

// A cache: a world does not change.
const measured = new WeakMap<World, Map<string, MeasuredLink>>();

/** Return the measurement of each pair, by "a,b" with a < b. */
export function measured_by_pair(world: World): Map<string, MeasuredLink> {
  let found = measured.get(world);
  if (!found) {
    found = new Map((world.measured ?? []).map((link) => [`${link.a},${link.b}`, link]));
    measured.set(world, found);
  }
  return found;
}
