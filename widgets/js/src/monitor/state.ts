// The kernel's records of the ranks' work, and the lanes that a view makes from them. Times are milliseconds of the root's
// monotonic clock, but nanoseconds in the records that the kernel passes on as the ranks' supervisor sent them.

import type { LinkRate, Status } from "../shared/model";
import type { State } from "../topology/state";

/** An operation of a rank, as in phalanx.protocol.Span. */
export type SpanRow = [
  rank: number,
  span: [
    number: number, op: string, begun_ns: number, done_ns: number, inside_ns: number, wait_ns: number, nbytes: number,
    seq: number, group: number, peer: number, count: number, kinds: number, failure: string,
  ],
];

export interface RankNow {
  state: State;
  detail: string;
  pid: number;
  rate: {
    share: number; // of the time spent in communication
    waiting: number; // of the time spent waiting for the last rank
    arena: number; // bytes a second
    sent: number; // over tcp
  };
}

export interface Frame extends Status {
  number: number;
  now: number;
  epoch: number;
  ranks: RankNow[];
  spans: SpanRow[];
  cells: [rank: number, cell: string, begun: number, done: number, number: number][];
  links: LinkRate[];
  late: string[]; // the ranks that delayed the others lately
  waits: [ranks: number[], missing: number[], what: string, since_ns: number][];
  missed: number;
  dropped: number;
  gaps: Gap[];
  world: number; // number of the group of ranks; data of another group do not belong to these ranks
}

/** A time range without data, and the reason. */
export type Gap = [from: number, to: number, why: string];

export interface Span {
  rank: number;
  number: number;
  op: string;
  begun: number;
  done: number; // 0: still running
  inside: number;
  wait: number; // below 0: the last rank has not come
  nbytes: number;
  count: number;
  seq: number;
  group: number; // 0: all ranks; other numbers are not exact in JavaScript
  peer: number;
  kinds: number;
  failure: string;
}

export interface Cell {
  cell: string;
  begun: number;
  done: number;
  number: number; // the notebook's, as in [7]; -1: still running; 0: unknown
}

export interface Lane {
  spans: Span[]; // ordered by start
  cells: Cell[];
  states: [at: number, state: State][]; // start of each state
}

export const MS = 1e6; // nanoseconds
export const HISTORY_MS = 120_000;
export const MOST_SPANS = 3000; // per lane: 16 per sample for a busy rank; for others more than HISTORY_MS needs

/** The data of all frames, as far back as kept. */
export class History {
  readonly lanes: Lane[] = [];
  readonly ops = new Set<string>(); // all operations ever seen of these ranks
  readonly gaps: Gap[] = [];
  newest: Frame | null = null;
  private number = 0;

  /** Drop all data. */
  reset(): void {
    this.lanes.length = 0;
    this.gaps.length = 0;
    this.ops.clear();
    this.newest = null;
    this.number = 0;
  }

  /** Take a frame; ignore a frame that was taken before or came late. */
  add(frame: Frame): void {
    if (this.newest && frame.world !== this.newest.world) this.reset();
    if (frame.number < this.number && frame.now < (this.newest?.now ?? 0)) return;
    const is_again = frame.number === this.number;
    this.newest = frame;
    this.number = frame.number;
    if (is_again || frame.status !== "live") return;
    this.gaps.push(...frame.gaps);
    while (this.lanes.length < frame.ranks.length) this.lanes.push({ spans: [], cells: [], states: [] });
    this.end_unlisted(frame);
    for (const row of frame.spans) this.put(row);
    for (const [rank, cell, begun, done, number] of frame.cells) {
      const cells = this.lanes[rank]?.cells;
      const known = cells?.find((its) => its.cell === cell);
      if (known) Object.assign(known, { done, number });
      else cells?.push({ cell, begun, done, number });
    }
    frame.ranks.forEach(({ state }, rank) => {
      const states = this.lanes[rank]?.states;
      if (states && states[states.length - 1]?.[1] !== state) states.push([frame.now, state]);
    });
    this.cut(frame.now - HISTORY_MS);
  }

  /** End operations missing in the frame: every frame repeats the running operations. */
  private end_unlisted(frame: Frame): void {
    const listed = new Set(frame.cells.map(([rank, cell]) => `${rank} ${cell}`));
    this.lanes.forEach((lane, rank) => {
      lane.spans = lane.spans.filter((span) => span.done);
      for (const its of lane.cells) {
        if (!its.done && !listed.has(`${rank} ${its.cell}`)) its.done = frame.now;
      }
    });
  }

  private put(row: SpanRow): void {
    const [rank, [number, op, begun_ns, done_ns, inside_ns, wait_ns, nbytes, seq, group, peer, count, kinds, failure]] = row;
    const [begun, done, inside, wait] = [begun_ns / MS, done_ns / MS, inside_ns / MS, wait_ns / MS];
    const span: Span = { rank, number, op, begun, done, inside, wait, nbytes, count, seq, group, peer, kinds, failure };
    const spans = this.lanes[rank]?.spans;
    if (!spans) return;
    this.ops.add(op);
    let at = spans.length;
    while (at > 0 && (spans[at - 1] as Span).begun > begun) at -= 1;
    const before = spans[at - 1];
    if (before && before.begun === begun && before.number === number) spans[at - 1] = span;
    else spans.splice(at, 0, span);
  }

  private cut(oldest: number): void {
    while ((this.gaps[0]?.[1] ?? oldest) < oldest) this.gaps.shift();
    for (const lane of this.lanes) {
      const first = lane.spans.findIndex((span) => !span.done || span.done >= oldest);
      const gone = Math.max(first < 0 ? lane.spans.length : first, lane.spans.length - MOST_SPANS);
      if (gone > 0) lane.spans.splice(0, gone);
      lane.cells = lane.cells.filter((cell) => !cell.done || cell.done >= oldest);
      // Keep the last state before `oldest`, as it goes on.
      while (lane.states.length > 1 && (lane.states[1]?.[0] ?? 0) < oldest) lane.states.shift();
    }
  }
}

/** The visible time range: right edge (null: now) and length. */
export interface Window {
  right: number | null;
  length: number;
}

export const SHORTEST_MS = 1;
export const LONGEST_MS = HISTORY_MS;

/** Zoom in or out; the time at `share` of the width stays in place. */
export function zoomed(window: Window, factor: number, now: number, share = 1): Window {
  const length = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, window.length * factor));
  const right = window.right ?? now;
  const fixed = right - (1 - share) * window.length;
  const moved = fixed + (1 - share) * length;
  return { length, right: window.right === null && share === 1 ? null : settled(moved, now) };
}

/** Pan to an earlier or later range. */
export function panned(window: Window, by_ms: number, now: number): Window {
  return { length: window.length, right: settled((window.right ?? now) + by_ms, now) };
}

function settled(right: number, now: number): number {
  return Math.min(now, Math.max(now - HISTORY_MS, right));
}

export function end_of(span: Span, now: number): number {
  return span.done || now;
}

/** Return the shortest span at a time, or one within `slack`. */
export function span_at(lane: Lane, time: number, now: number, slack: number): Span | null {
  let found: Span | null = null;
  for (const span of lane.spans) {
    if (span.begun > time + slack) break;
    const end = end_of(span, now);
    if (end + slack < time) continue;
    if (!found || end - span.begun < end_of(found, now) - found.begun) found = span;
  }
  return found;
}

export function cell_at(lane: Lane, time: number, now: number): Cell | null {
  return lane.cells.find((cell) => cell.begun <= time && time <= (cell.done || now)) ?? null;
}

/** Return about four to eight axis times at round distances, in milliseconds before `now`. */
export function ticks(left: number, right: number, now: number): [at: number, words: string][] {
  const rough = (right - left) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10);
  const found: [number, string][] = [];
  for (let ago = Math.ceil((now - right) / step) * step; now - ago >= left - 1e-6; ago += step) {
    found.push([now - ago, ago < step / 2 ? "now" : `−${short_ms(ago)}`]);
  }
  return found;
}

function short_ms(ms: number): string {
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(4))} s` : `${Number(ms.toPrecision(4))} ms`;
}
