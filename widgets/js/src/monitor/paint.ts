// Lanes on a canvas: cells, operations with their waiting part apart, states; and the axis of time.
// It knows a canvas and lanes, nothing of pointers or buttons.

import { end_of, ticks, type History, type Lane, type Span } from "./state";

const OPS: Record<string, number> = {
  all_sum: 1,
  all_gather: 2,
  sum_scatter: 3,
  broadcast: 4,
  all_to_all: 5,
  send: 6,
  recv: 6,
};
const NAMES = ["page", "sunk", "edge", "ink", "soft", "busy", "input", "dead"] as const;
const AXIS = 20;
const PALE = 0.4;

/** The property of the theme that an operation is drawn in; of those that have none, the soft one. */
export function colour_of(op: string): string {
  return op in OPS ? `--px-series-${OPS[op]}` : "--px-soft";
}

export type Theme = Record<string, string>;

/** The page's colours as of now: a theme may change at any time. */
export function theme_of(root: Element): Theme {
  const look = getComputedStyle(root);
  const theme: Theme = {};
  for (const name of NAMES) theme[name] = look.getPropertyValue(`--px-${name}`).trim() || "gray";
  for (let n = 1; n <= 6; n++) theme[`--px-series-${n}`] = look.getPropertyValue(`--px-series-${n}`).trim() || "gray";
  theme["--px-soft"] = theme["soft"] as string;
  return theme;
}

export interface Rows {
  lane: number;
  gap: number;
}

/** How high lanes are: 64 of them still stand on one screen. */
export function rows_of(n_ranks: number): Rows {
  if (n_ranks <= 8) return { lane: 30, gap: 5 };
  if (n_ranks <= 20) return { lane: 19, gap: 3 };
  return { lane: 11, gap: 2 };
}

export function height_of(n_ranks: number): number {
  const { lane, gap } = rows_of(n_ranks);
  return n_ranks * (lane + gap) + AXIS;
}

/** The rank whose lane is at this height; -1 for none. */
export function rank_at(y: number, n_ranks: number): number {
  const { lane, gap } = rows_of(n_ranks);
  const rank = Math.floor(y / (lane + gap));
  return rank >= 0 && rank < n_ranks ? rank : -1;
}

export interface View {
  left: number;
  right: number;
  now: number;
  width: number;
  chosen: number;
}

/** Draw all lanes anew. */
export function paint(context: CanvasRenderingContext2D, history: History, view: View, theme: Theme): void {
  const n = history.lanes.length;
  const { lane: height, gap } = rows_of(n);
  context.clearRect(0, 0, view.width, height_of(n));
  const hatch = hatched(context, theme);
  const marks = ticks(view.left, view.right, view.now);
  const place = (time: number): number => ((time - view.left) / (view.right - view.left)) * view.width;
  history.lanes.forEach((lane, rank) => {
    const y = rank * (height + gap);
    context.fillStyle = theme["sunk"] as string;
    context.fillRect(0, y, view.width, height);
    paint_lane(context, lane, { ...view, y, height }, place, theme, hatch);
    if (rank === view.chosen) {
      context.strokeStyle = theme["ink"] as string;
      context.lineWidth = 1.5;
      context.strokeRect(0.75, y + 0.75, view.width - 1.5, height - 1.5);
    }
  });
  const y = n * (height + gap) + 13;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = theme["soft"] as string;
  for (const [time, words] of marks) {
    const x = place(time);
    context.textAlign = x > view.width - 24 ? "right" : x < 24 ? "left" : "center";
    context.fillText(words, x, y);
    context.globalAlpha = 0.35;
    context.fillRect(Math.round(x), 0, 1, n * (height + gap));
    context.globalAlpha = 1;
  }
}

interface Row extends View {
  y: number;
  height: number;
}

type Place = (time: number) => number;

function paint_lane(
  context: CanvasRenderingContext2D,
  lane: Lane,
  row: Row,
  place: Place,
  theme: Theme,
  hatch: CanvasPattern | string,
): void {
  const strip = row.height > 15 ? 4 : 2;
  for (const cell of lane.cells) {
    const end = cell.done || row.now;
    if (end < row.left || cell.begun > row.right) continue;
    const x = Math.max(0, place(cell.begun));
    const width = Math.max(1, Math.min(row.width, place(end)) - x);
    context.fillStyle = theme["busy"] as string;
    context.globalAlpha = 0.13;
    context.fillRect(x, row.y, width, row.height);
    context.globalAlpha = 1;
    context.fillRect(x, row.y + row.height - strip, width, strip);
  }
  paint_states(context, lane, row, place, theme, hatch);
  paint_spans(context, lane.spans, { ...row, height: row.height - strip - 1 }, place, theme);
}

function paint_states(
  context: CanvasRenderingContext2D,
  lane: Lane,
  row: Row,
  place: Place,
  theme: Theme,
  hatch: CanvasPattern | string,
): void {
  lane.states.forEach(([from, state], at) => {
    if (state !== "dead" && state !== "input") return;
    const until = lane.states[at + 1]?.[0] ?? row.now;
    if (until < row.left || from > row.right) return;
    const x = Math.max(0, place(from));
    const width = Math.max(1, Math.min(row.width, place(until)) - x);
    context.fillStyle = state === "dead" ? hatch : (theme["input"] as string);
    context.globalAlpha = state === "dead" ? 1 : 0.3;
    context.fillRect(x, row.y, width, row.height);
    context.globalAlpha = 1;
    const words = state === "dead" ? "✕ dead" : "? waits for input";
    write(context, words, x, width, row, theme[state] as string);
  });
}

function write(
  context: CanvasRenderingContext2D,
  words: string,
  x: number,
  width: number,
  row: Row,
  colour: string,
): void {
  if (row.height < 14) return;
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "left";
  if (context.measureText(words).width + 8 > width) return;
  context.fillStyle = colour;
  context.fillText(words, x + 4, row.y + row.height / 2 + 4);
}

function paint_spans(
  context: CanvasRenderingContext2D,
  spans: Span[],
  row: Row,
  place: Place,
  theme: Theme,
): void {
  let drawn = -1; // what lies on one pixel is drawn once
  for (const span of spans) {
    const end = end_of(span, row.now);
    if (end < row.left) continue;
    if (span.begun > row.right) break;
    const a = Math.max(0, place(span.begun));
    const b = Math.max(a + 1, Math.min(row.width, place(end)));
    if (b - a <= 1 && Math.floor(a) === drawn && !span.failure) continue;
    drawn = b - a <= 1 ? Math.floor(a) : -1;
    context.fillStyle = theme[colour_of(span.op)] as string;
    if (span.count > 1) paint_many(context, span, end, a, b, row);
    else paint_one(context, span, end, a, b, row, place);
    if (span.failure) {
      context.fillStyle = theme["dead"] as string;
      context.fillRect(Math.max(a, b - 3), row.y, 3, row.height);
    }
    const is_pale = span.count > 1 || span.wait < 0 || span.wait > (end - span.begun) / 2;
    const words = span.count > 1 ? `${span.count} × ${span.op}` : span.op;
    if (b - a > 40) write(context, words, a, b - a, row, theme[is_pale ? "ink" : "page"] as string);
  }
}

/** One operation: pale until the last rank had come, then full. */
function paint_one(
  context: CanvasRenderingContext2D,
  span: Span,
  end: number,
  a: number,
  b: number,
  row: Row,
  place: Place,
): void {
  const arrived = span.wait < 0 ? end : Math.min(end, span.begun + span.wait);
  const middle = Math.min(b, Math.max(a, place(arrived)));
  context.globalAlpha = PALE;
  context.fillRect(a, row.y + 1, middle - a, row.height - 1);
  context.globalAlpha = 1;
  context.fillRect(a, row.y + 1, 1, row.height - 1);
  if (span.wait >= 0) context.fillRect(middle, row.y + 1, Math.max(b - middle, 1), row.height - 1);
}

/** Many that lie close: as high as the part of the time that they took, the waiting part pale. */
function paint_many(
  context: CanvasRenderingContext2D,
  span: Span,
  end: number,
  a: number,
  b: number,
  row: Row,
): void {
  const length = Math.max(end - span.begun, 1e-6);
  const share = (part: number): number => Math.min(1, Math.max(0, part / length)) * (row.height - 1);
  const whole = Math.max(2, share(span.inside));
  const moving = Math.min(whole, share(span.inside - span.wait));
  const foot = row.y + row.height;
  context.globalAlpha = PALE;
  context.fillRect(a, foot - whole, b - a, whole - moving);
  context.globalAlpha = 1;
  context.fillRect(a, foot - moving, b - a, moving);
}

function hatched(context: CanvasRenderingContext2D, theme: Theme): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const ink = tile.getContext("2d");
  if (!ink) return theme["edge"] as string;
  ink.strokeStyle = theme["dead"] as string;
  ink.globalAlpha = 0.55;
  ink.lineWidth = 1.4;
  for (const shift of [-8, 0, 8]) {
    ink.beginPath();
    ink.moveTo(shift, 8);
    ink.lineTo(shift + 8, 0);
    ink.stroke();
  }
  return context.createPattern(tile, "repeat") ?? (theme["edge"] as string);
}
