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

/** Return the height of lanes: 64 lanes fit on one screen. */
export function rows_of(n_ranks: number): { lane: number; gap: number } {
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
  left: number; // times
  right: number;
  now: number;
  width: number;
  chosen: number;
}

/** Draws all lanes once. */
export class Painter {
  private readonly height: number; // of a lane
  private readonly gap: number;
  private readonly strip: number; // the height of a cell
  private readonly column: number; // spans of less pixels are drawn together, as a partly filled column
  private readonly words: { words: string; x: number; y: number; room: number; colour: string }[] = [];

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly history: History,
    private readonly view: View,
    private readonly colours: Colours,
  ) {
    const { lane, gap } = rows_of(history.lanes.length);
    [this.height, this.gap] = [lane, gap];
    [this.strip, this.column] = lane > 15 ? [4, 2] : [2, 4];
  }

  paint(): void {
    const { context, view, height } = this;
    const { lanes } = this.history;
    context.clearRect(0, 0, view.width, height_of(lanes.length));
    lanes.forEach((lane, rank) => {
      const y = this.y_of(rank);
      this.fill("sunk", 1, 0, y, view.width, height);
      this.paint_cells(lane, y);
      this.paint_gaps(y);
      this.paint_states(lane, y);
      this.paint_spans(lane.spans, y);
    });
    this.write();
    if (lanes[view.chosen]) {
      context.strokeStyle = this.colours("ink");
      context.lineWidth = 1.5;
      context.strokeRect(0.75, this.y_of(view.chosen) + 0.75, view.width - 1.5, height - 1.5);
    }
    this.paint_axis(this.y_of(lanes.length));
  }

  private y_of(rank: number): number {
    return rank * (this.height + this.gap);
  }

  private x_of(time: number): number {
    const { left, right, width } = this.view;
    return ((time - left) * width) / (right - left);
  }

  /** Return where a time range begins, and its width; null if it is out of sight. */
  private extent(from: number, until: number): [x: number, width: number] | null {
    const { left, right, width } = this.view;
    if (until < left || from > right) return null;
    const x = Math.max(0, this.x_of(from));
    return [x, Math.max(1, Math.min(width, this.x_of(until)) - x)];
  }

  /** Fill a rectangle on whole pixels, which needs no smoothing. */
  private fill(colour: string, alpha: number, x: number, y: number, w: number, h: number): void {
    const { context } = this;
    const [left, top] = [Math.round(x), Math.round(y)];
    context.fillStyle = this.colours(colour);
    context.globalAlpha = alpha;
    context.fillRect(left, top, Math.max(1, Math.round(x + w) - left), Math.max(0, Math.round(y + h) - top));
    context.globalAlpha = 1;
  }

  /** Have words written above all that is drawn. */
  private say(words: string, x: number, room: number, y: number, colour: string, height = this.height): void {
    if (height < 14 || room < 40) return;
    this.words.push({ words, x, y: y + height / 2 + 4, room, colour });
  }

  private write(): void {
    const { context } = this;
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "left";
    for (const { words, x, y, room, colour } of this.words) {
      if (context.measureText(words).width + 8 > room) continue;
      context.fillStyle = this.colours(colour);
      context.fillText(words, x + 4, y);
    }
  }

  private paint_axis(foot: number): void {
    const { context, view } = this;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = this.colours("soft");
    let before = Infinity; // from right to left
    for (const [time, words] of ticks(view.left, view.right, view.now)) {
      const x = this.x_of(time);
      context.textAlign = x > view.width - 24 ? "right" : x < 24 ? "left" : "center";
      if (before - x >= (x < 24 ? 1.4 : 1) * LEAST_APART) {
        context.fillText(words, x, foot + 13);
        before = x;
      }
      this.fill("soft", 0.35, x, 0, 1, foot);
    }
  }

  /** Draw cells as a strip without a tint above: pale colour means waiting, and a computing rank does not wait. */
  private paint_cells(lane: Lane, y: number): void {
    for (const cell of lane.cells) {
      const found = this.extent(cell.begun, cell.done || this.view.now);
      if (found) this.fill("busy", 1, found[0], y + this.height - this.strip, found[1], this.strip);
    }
  }

  /** Draw gaps in the samples, with the reason. Operations drawn inside come from the ranks' later records. */
  private paint_gaps(y: number): void {
    for (const [from, until, why] of this.history.gaps) {
      const found = this.extent(from, until);
      if (!found) continue;
      this.fill("edge", 0.7, found[0], y, found[1], this.height);
      if (y === 0) this.say(why, ...found, y, "ink", Math.max(14, this.height));
    }
  }

  private paint_states(lane: Lane, y: number): void {
    lane.states.forEach(([from, state], at) => {
      if (state !== "dead" && state !== "input") return;
      const found = this.extent(from, lane.states[at + 1]?.[0] ?? this.view.now);
      if (!found) return;
      if (state === "dead") this.hatch(...found, y);
      else this.fill("input", 0.3, found[0], y, found[1], this.height);
      this.say(state === "dead" ? "✕ dead" : "? waits for input", ...found, y, state);
    });
  }

  /** Fill with diagonal lines, 8 pixels apart. */
  private hatch(x: number, width: number, y: number): void {
    const { context, height } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = this.colours("dead");
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

  private paint_spans(spans: Span[], y: number): void {
    const { column: wide, view } = this;
    const height = this.height - this.strip - 1;
    const column = { at: -1, colour: "", inside: 0, wait: 0 };
    const paint_column = (): void => {
      if (column.at < 0) return;
      const length = (wide * (view.right - view.left)) / view.width;
      this.paint_share(column.colour, column.at * wide, wide, length, column.inside, column.wait, y, height);
      column.at = -1;
    };
    for (const span of spans) {
      const end = end_of(span, view.now);
      if (end < view.left) continue;
      if (span.begun > view.right) break;
      const a = Math.max(0, this.x_of(span.begun));
      const b = Math.max(a, Math.min(view.width, this.x_of(end)));
      const colour = colour_of(span.op);
      if (b - a < wide && !span.failure) {
        const at = Math.floor(a / wide);
        if (at !== column.at) {
          paint_column();
          Object.assign(column, { at, colour, inside: 0, wait: 0 });
        }
        column.inside += span.done ? span.inside : end - span.begun;
        column.wait += span.wait < 0 ? end - span.begun : span.wait;
        continue;
      }
      paint_column();
      if (span.count > 1) this.paint_share(colour, a, b - a, end - span.begun, span.inside, span.wait, y, height);
      else this.paint_one(colour, span, end, a, b, y, height);
      if (span.failure) this.fill("dead", 1, Math.max(a, b - 3), y, 3, height);
      const is_pale = span.count > 1 || span.wait < 0 || span.wait > (end - span.begun) / 2;
      this.say(span.count > 1 ? `${span.count} × ${span.op}` : span.op, a, b - a, y, is_pale ? "ink" : "page", height);
    }
    paint_column();
  }

  /** Draw one operation: pale until the last rank came, then full. */
  private paint_one(colour: string, span: Span, end: number, a: number, b: number, y: number, height: number): void {
    const arrived = span.wait < 0 ? end : Math.min(end, span.begun + span.wait);
    const middle = Math.min(b, Math.max(a, this.x_of(arrived)));
    this.fill(colour, PALE, a, y + 1, middle - a, height - 1);
    this.fill(colour, 1, a, y + 1, 1, height - 1);
    if (span.wait >= 0) this.fill(colour, 1, middle, y + 1, Math.max(b - middle, 1), height - 1);
  }

  /** Draw many close operations: the height is their share of the time; the waiting part is pale. */
  private paint_share(
    colour: string, x: number, width: number, length: number, inside: number, wait: number, y: number, height: number,
  ): void {
    const share = (part: number): number => Math.min(1, Math.max(0, part / Math.max(length, 1e-6))) * (height - 1);
    const whole = Math.max(2, share(inside));
    const moving = Math.min(whole, share(inside - wait));
    if (whole > moving) this.fill(colour, PALE, x, y + height - whole, width, whole - moving);
    if (moving > 0) this.fill(colour, 1, x, y + height - moving, width, moving);
  }
}
