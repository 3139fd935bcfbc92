// Draws the links between ranks: the curves between tiles.

import type { VNode } from "preact";

import { busiest, moved, peers, say_moved, type Frame, type World } from "./state";

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

interface Props {
  world: World;
  frame: Frame;
  boxes: Map<number, Box>;
  marked: number;
}

/** The tcp links that have room, and the links of the marked rank. */
export function Curves({ world, frame, boxes, marked }: Props): VNode {
  const most = busiest(frame);
  const measured = new Map((world.measured ?? []).map((link) => [`${link.a},${link.b}`, link.state]));
  // With very many links, only links with traffic show a direction.
  const has_traffic = ([a, b]: [number, number]): boolean => moved(frame, a, b).some((rate) => rate > 0);
  const all = world.tcp.length <= MOST_CURVES ? world.tcp : world.tcp.filter(has_traffic);
  const others = all.length <= MOST_CURVES ? all.filter((pair) => !pair.includes(marked)) : [];
  const own = peers(world, marked).tcp.map((peer): [number, number] => [marked, peer]);
  const paths: VNode[] = [];
  const heads: VNode[] = [];
  for (const [a, b] of [...others, ...own]) {
    const [from, to] = [boxes.get(a), boxes.get(b)];
    if (!from || !to) continue;
    const key = `${Math.min(a, b)},${Math.max(a, b)}`;
    const state = measured.get(key) ?? "ok";
    const [there, back] = moved(frame, a, b);
    const is_moving = Math.max(there, back) > LITTLE * most;
    const its = curve(from, to);
    const look = {
      "px-tcp": true,
      "px-marked": a === marked,
      [`px-${state}`]: state !== "ok",
      "px-moving": is_moving,
      "px-against": is_moving && back > there,
    };
    const names = Object.entries(look).flatMap(([name, is_so]) => (is_so ? [name] : []));
    const words = say_moved(frame, a, b);
    const width = is_moving ? { strokeWidth: `${width_of(Math.max(there, back), most)}px` } : {};
    paths.push(
      <path key={key} d={its.d} class={names.join(" ")} style={width}>
        {words && <title>{words}</title>}
      </path>,
    );
    if (!is_moving) continue;
    const head = arrows(its, there > AWAY * back, back > AWAY * there);
    heads.push(<path key={`${key} head`} d={head} class="px-arrow" />);
  }
  return (
    <svg class="px-curves" aria-hidden="true">
      {paths}
      {heads}
    </svg>
  );
}

/** Return the width of a link: 1.5 to 6 pixels over three powers of ten below the busiest. */
export function width_of(bytes: number, most: number): number {
  const share = 1 + Math.log10(Math.max(bytes, 1) / most) / 3;
  return Number((1.5 + 4.5 * Math.min(1, Math.max(0, share))).toFixed(1));
}
