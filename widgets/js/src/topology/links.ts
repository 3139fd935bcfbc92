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

/** Return a curve between tiles: it hangs below tiles of one row, and is straight between rows. */
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

const ARROW = 7; // pixels, half of its length

/** Return arrow heads for the middle of a curve: `a` to `b`, `b` to `a`, or both back to back. */
export function arrows(a: Box, b: Box, is_there: boolean, is_back: boolean): string {
  const [from, to, forth, back] = a.x <= b.x ? [a, b, is_there, is_back] : [b, a, is_back, is_there];
  const x1 = from.x + from.w / 2;
  const x2 = to.x + to.w / 2;
  let [x, y, dx, dy] = [(x1 + x2) / 2, 0, 1, 0];
  if (Math.abs(a.y - b.y) < 1) {
    y = from.y + from.h + 0.75 * Math.min(30, 9 + (x2 - x1) / 22);
  } else {
    const is_down = from.y < to.y;
    const [high, low] = is_down ? [from, to] : [to, from];
    y = (high.y + high.h + low.y) / 2;
    [dx, dy] = [2 * (x2 - x1), (is_down ? 1 : -1) * (low.y - high.y - high.h)];
    const length = Math.hypot(dx, dy) || 1;
    [dx, dy] = [dx / length, dy / length];
  }
  const n = (value: number): string => value.toFixed(1);
  const head = (way: 1 | -1, at: number): string => {
    const [tx, ty] = [x + dx * (at + way * ARROW), y + dy * (at + way * ARROW)];
    const [bx, by] = [x + dx * (at - way * ARROW), y + dy * (at - way * ARROW)];
    const [sx, sy] = [(-dy * ARROW) / 1.4, (dx * ARROW) / 1.4];
    return `M${n(tx)} ${n(ty)} L${n(bx + sx)} ${n(by + sy)} L${n(bx - sx)} ${n(by - sy)} Z`;
  };
  const apart = forth && back ? ARROW + 1 : 0;
  return [forth ? head(1, apart) : "", back ? head(-1, -apart) : ""].filter(Boolean).join(" ");
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
    const path = svg("path", { d: curve(from, to), class: is_moving ? `${look} px-moving` : look });
    if (words) path.append(svg("title", {}, words));
    if (is_moving) {
      path.style.strokeWidth = `${width_of(Math.max(there, back), most)}px`;
      // The dashes run from left to right, or down.
      if ((from.x <= to.x) === back > there) path.classList.add("px-against");
      const d = arrows(from, to, there > AWAY * back, back > AWAY * there);
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
