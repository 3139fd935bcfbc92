// Draws lanes on a canvas: cells, operations with their waiting part, states, and the time axis.

import type { Colours } from "../shared/theme";
import { end_of, ticks, type History, type Lane, type Span } from "./state";

const AXIS = 20;
const LEAST_APART = 48; // pixels between two times on the axis
const PALE = 0.4;

/** Return the name of an operation's colour; operations.css lacks those of a newer engine. */
export function colour_of(op: string): string {
  return `op-${op.replaceAll("_", "-")}`;
}

export interface Words {
  words: string;
  x: number;
  y: number;
  room: number;
  colour: string;
}

/** Shapes to fill, by colour. Tens of thousands of rectangles need only a few changes of the canvas's
 * state. They lie on whole pixels, which needs no smoothing.
 */
export class Brush {
  private readonly fills = new Map<string, Map<number, number[]>>();
  readonly words: Words[] = [];

  rect(colour: string, alpha: number, x: number, y: number, w: number, h: number): void {
    const by_alpha = this.fills.get(colour) ?? new Map<number, number[]>();
    if (!by_alpha.size) this.fills.set(colour, by_alpha);
    const rects = by_alpha.get(alpha) ?? [];
    if (!rects.length) by_alpha.set(alpha, rects);
    const left = Math.round(x);
    const top = Math.round(y);
    const width = Math.max(1, Math.round(x + w) - left);
    const height = Math.max(0, Math.round(y + h) - top);
    const last = rects.length - 4;
    const is_beside = last >= 0 && left === (rects[last] ?? 0) + (rects[last + 2] ?? 0);
    // Merge adjacent equal rectangles.
    if (is_beside && top === rects[last + 1] && height === rects[last + 3]) rects[last + 2] = (rects[last + 2] ?? 0) + width;
    else rects.push(left, top, width, height);
  }

  flush(context: CanvasRenderingContext2D): void {
    for (const [colour, by_alpha] of this.fills) {
      context.fillStyle = colour;
      for (const [alpha, rects] of by_alpha) {
        context.globalAlpha = alpha;
        for (let at = 0; at < rects.length; at += 4) {
          context.fillRect(rects[at] ?? 0, rects[at + 1] ?? 0, rects[at + 2] ?? 0, rects[at + 3] ?? 0);
        }
      }
    }
    context.globalAlpha = 1;
    this.fills.clear();
  }

  /** Write the words that fit. */
  write(context: CanvasRenderingContext2D): void {
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "left";
    for (const { words, x, y, room, colour } of this.words) {
      if (context.measureText(words).width + 8 > room) continue;
      context.fillStyle = colour;
      context.fillText(words, x + 4, y);
    }
  }
}

export interface Rows {
  lane: number;
  gap: number;
}

/** Return the height of lanes: 64 lanes fit on one screen. */
export function rows_of(n_ranks: number): Rows {
  if (n_ranks <= 8) return { lane: 30, gap: 5 };
  if (n_ranks <= 20) return { lane: 19, gap: 3 };
  return { lane: 11, gap: 2 };
}

export function height_of(n_ranks: number): number {
  const { lane, gap } = rows_of(n_ranks);
  return n_ranks * (lane + gap) + AXIS;
}

/** Return the rank with a lane at this height; -1 for none. */
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

interface Row extends View {
  y: number;
  height: number;
  place: (time: number) => number;
}

/** Redraw all lanes. */
export function paint(context: CanvasRenderingContext2D, history: History, view: View, colours: Colours): void {
  const n = history.lanes.length;
  const { lane: height, gap } = rows_of(n);
  context.clearRect(0, 0, view.width, height_of(n));
  const scale = view.width / (view.right - view.left);
  const place = (time: number): number => (time - view.left) * scale;
  const ground = new Brush();
  const brush = new Brush();
  const rows = history.lanes.map((_, rank): Row => ({ ...view, y: rank * (height + gap), height, place }));
  for (const row of rows) ground.rect(colours("sunk"), 1, 0, row.y, view.width, height);
  history.lanes.forEach((lane, rank) => put_cells(ground, lane, rows[rank] as Row, colours));
  for (const row of rows) put_gaps(ground, brush, history.gaps, row, colours);
  ground.flush(context);
  history.lanes.forEach((lane, rank) => put_states(context, brush, lane, rows[rank] as Row, colours));
  const strip = height > 15 ? 4 : 2;
  history.lanes.forEach((lane, rank) =>
    put_spans(brush, lane.spans, { ...(rows[rank] as Row), height: height - strip - 1 }, colours),
  );
  brush.flush(context);
  brush.write(context);
  const chosen = rows[view.chosen];
  if (chosen) {
    context.strokeStyle = colours("ink");
    context.lineWidth = 1.5;
    context.strokeRect(0.75, chosen.y + 0.75, view.width - 1.5, height - 1.5);
  }
  paint_axis(context, view, place, n * (height + gap), colours);
}

function paint_axis(
  context: CanvasRenderingContext2D,
  view: View,
  place: Row["place"],
  foot: number,
  colours: Colours,
): void {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colours("soft");
  let before = Infinity; // from right to left
  for (const [time, words] of ticks(view.left, view.right, view.now)) {
    const x = place(time);
    context.textAlign = x > view.width - 24 ? "right" : x < 24 ? "left" : "center";
    if (before - x >= (x < 24 ? 1.4 : 1) * LEAST_APART) {
      context.fillText(words, x, foot + 13);
      before = x;
    }
    context.globalAlpha = 0.35;
    context.fillRect(Math.round(x), 0, 1, foot);
    context.globalAlpha = 1;
  }
}

/** Return where a time range begins in a row, and its width; null if it is out of sight. */
function extent(row: Row, from: number, until: number): [x: number, width: number] | null {
  if (until < row.left || from > row.right) return null;
  const x = Math.max(0, row.place(from));
  return [x, Math.max(1, Math.min(row.width, row.place(until)) - x)];
}

/** Draw cells as a strip without a tint above: pale colour means waiting, and a computing rank does not wait. */
function put_cells(brush: Brush, lane: Lane, row: Row, colours: Colours): void {
  const strip = row.height > 15 ? 4 : 2;
  for (const cell of lane.cells) {
    const found = extent(row, cell.begun, cell.done || row.now);
    if (found) brush.rect(colours("busy"), 1, found[0], row.y + row.height - strip, found[1], strip);
  }
}

/** Draw gaps in the samples, with the reason. Operations drawn inside come from the ranks' later records. */
function put_gaps(ground: Brush, brush: Brush, gaps: History["gaps"], row: Row, colours: Colours): void {
  for (const [from, until, why] of gaps) {
    const found = extent(row, from, until);
    if (!found) continue;
    const [x, width] = found;
    ground.rect(colours("edge"), 0.7, x, row.y, width, row.height);
    if (row.y === 0) write(brush, why, x, width, { ...row, height: Math.max(14, row.height) }, colours("ink"));
  }
}

function put_states(context: CanvasRenderingContext2D, brush: Brush, lane: Lane, row: Row, colours: Colours): void {
  lane.states.forEach(([from, state], at) => {
    if (state !== "dead" && state !== "input") return;
    const found = extent(row, from, lane.states[at + 1]?.[0] ?? row.now);
    if (!found) return;
    const [x, width] = found;
    if (state === "dead") hatch(context, x, row.y, width, row.height, colours("dead"));
    else brush.rect(colours("input"), 0.3, x, row.y, width, row.height);
    write(brush, state === "dead" ? "✕ dead" : "? waits for input", x, width, row, colours(state));
  });
}

function write(brush: Brush, words: string, x: number, room: number, row: Row, colour: string): void {
  if (row.height < 14 || room < 40) return;
  brush.words.push({ words, x, y: row.y + row.height / 2 + 4, room, colour });
}

/** Return the width in pixels below which spans are drawn together, as a partly filled column. */
function column_of(row: Row): number {
  return row.height > 15 ? 2 : 4;
}

function put_spans(brush: Brush, spans: Span[], row: Row, colours: Colours): void {
  const wide = column_of(row);
  const per_pixel = (row.right - row.left) / row.width;
  const column = { at: -1, colour: "", inside: 0, wait: 0 };
  const put_column = (): void => {
    if (column.at < 0) return;
    put_share(brush, column.colour, column.at * wide, wide, wide * per_pixel, column.inside, column.wait, row);
    column.at = -1;
  };
  for (const span of spans) {
    const end = end_of(span, row.now);
    if (end < row.left) continue;
    if (span.begun > row.right) break;
    const a = Math.max(0, row.place(span.begun));
    const b = Math.max(a, Math.min(row.width, row.place(end)));
    const colour = colours(colour_of(span.op));
    if (b - a < wide && !span.failure) {
      const at = Math.floor(a / wide);
      if (at !== column.at) {
        put_column();
        Object.assign(column, { at, colour, inside: 0, wait: 0 });
      }
      column.inside += span.done ? span.inside : end - span.begun;
      column.wait += span.wait < 0 ? end - span.begun : span.wait;
      continue;
    }
    put_column();
    if (span.count > 1) put_share(brush, colour, a, b - a, end - span.begun, span.inside, span.wait, row);
    else put_one(brush, colour, span, end, a, b, row);
    if (span.failure) brush.rect(colours("dead"), 1, Math.max(a, b - 3), row.y, 3, row.height);
    const is_pale = span.count > 1 || span.wait < 0 || span.wait > (end - span.begun) / 2;
    const words = span.count > 1 ? `${span.count} × ${span.op}` : span.op;
    write(brush, words, a, b - a, row, colours(is_pale ? "ink" : "page"));
  }
  put_column();
}

/** Draw one operation: pale until the last rank came, then full. */
function put_one(brush: Brush, colour: string, span: Span, end: number, a: number, b: number, row: Row): void {
  const arrived = span.wait < 0 ? end : Math.min(end, span.begun + span.wait);
  const middle = Math.min(b, Math.max(a, row.place(arrived)));
  brush.rect(colour, PALE, a, row.y + 1, middle - a, row.height - 1);
  brush.rect(colour, 1, a, row.y + 1, 1, row.height - 1);
  if (span.wait >= 0) brush.rect(colour, 1, middle, row.y + 1, Math.max(b - middle, 1), row.height - 1);
}

/** Draw many close operations: the height is their share of the time; the waiting part is pale. */
function put_share(
  brush: Brush,
  colour: string,
  x: number,
  width: number,
  length: number,
  inside: number,
  wait: number,
  row: Row,
): void {
  const share = (part: number): number =>
    Math.min(1, Math.max(0, part / Math.max(length, 1e-6))) * (row.height - 1);
  const whole = Math.max(2, share(inside));
  const moving = Math.min(whole, share(inside - wait));
  const foot = row.y + row.height;
  if (whole > moving) brush.rect(colour, PALE, x, foot - whole, width, whole - moving);
  if (moving > 0) brush.rect(colour, 1, x, foot - moving, width, moving);
}

/** Fill with diagonal lines, 8 pixels apart. */
function hatch(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, colour: string): void {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.globalAlpha = 0.55;
  context.lineWidth = 1.4;
  context.beginPath();
  for (let at = 8 * Math.floor((x - height) / 8); at < x + width; at += 8) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
