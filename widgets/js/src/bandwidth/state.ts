// The records of phalanx.widgets.Bandwidth, and the data that a chart derives from them.

import type { Status } from "../shared/model";
import { size } from "../shared/words";

export type SweepState = "none" | "waiting" | "measuring" | "done" | "stopped" | "failed";

export interface Point {
  nbytes: number;
  time_us: number;
  p99_us: number;
  busbw_gbs: number;
  n_wrong: number;
  algorithm: string;
  transport: string;
}

export interface Run {
  name: string;
  points: Point[];
}

export interface Limit {
  name: string;
  gbs: number;
}

export interface Change {
  below: number;
  above: number;
  before: string;
  after: string;
}

export interface SweepRequest {
  op: string;
  begin: string;
  end: string;
  factor: number;
  dtype: string;
  iters: number;
}

export interface Frame extends Status {
  state: SweepState;
  n_done: number;
  n_points: number;
  progress: string;
  error: string;
  title: string;
  asked: SweepRequest;
  ops: string[];
  dtypes: string[];
  run: Run | null;
  earlier: Run[];
  limits: Limit[];
  fit: [nbytes: number, busbw_gbs: number, time_us: number][]; // the model as a curve
  changes: Change[];
  words: string[];
}

export type Kind = "bandwidth" | "time";
export type Column = (number | null)[];

/** The data of one panel: columns over common sizes; the first column has the sizes. */
export interface Panel {
  sizes: number[];
  now: Column;
  fit: Column;
  earlier: Column[];
}

export function is_running(frame: Frame): boolean {
  return frame.state === "waiting" || frame.state === "measuring";
}

function value(kind: Kind, point: Point): number | null {
  const found = kind === "bandwidth" ? point.busbw_gbs : point.time_us;
  return found > 0 ? found : null; // a log axis cannot show 0
}

/** Align the sweep, its model and earlier sweeps on common sizes. */
export function panel(kind: Kind, frame: Frame): Panel {
  const runs = [frame.run, ...frame.earlier].map((run) =>
    (run?.points ?? []).filter((point) => point.nbytes > 0),
  );
  const fit = new Map(frame.fit.map(([nbytes, gbs, us]) => [nbytes, kind === "bandwidth" ? gbs : us]));
  const all = [...runs.flat().map((point) => point.nbytes), ...fit.keys()];
  const sizes = [...new Set(all)].sort((a, b) => a - b);
  const columns = runs.map((points) => {
    const by_size = new Map(points.map((point) => [point.nbytes, value(kind, point)]));
    return sizes.map((n) => by_size.get(n) ?? null);
  });
  return {
    sizes,
    now: columns[0] ?? [],
    fit: sizes.map((n) => fit.get(n) ?? null),
    earlier: columns.slice(1),
  };
}

/** Return whole decades around the values. */
export function decades(values: Iterable<number | null>): [number, number] {
  const shown = [...values].filter((v): v is number => v !== null && v > 0);
  if (!shown.length) return [0.1, 10];
  const low = Math.floor(Math.log10(Math.min(...shown)) + 1e-9);
  const high = Math.ceil(Math.log10(Math.max(...shown)) - 1e-9);
  return [10 ** low, 10 ** Math.max(high, low + 1)];
}

/** Return the marks of a log axis: powers of `base`, at most `most`. */
export function ticks(low: number, high: number, base: number, most: number): number[] {
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found: number[] = [];
  for (let power = first; power <= last; power += step) found.push(base ** power);
  return found;
}

/** 0.001, 25, 1e6 */
export function short(number: number): string {
  const magnitude = Math.abs(number);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e5)) return number.toExponential(0).replace("+", "");
  return String(Number(number.toPrecision(3)));
}

/** Describe a point, for the line under the chart and for screen readers. */
export function say_point(point: Point): string {
  const wrong = point.n_wrong ? `; ${point.n_wrong} WRONG elements` : "";
  const path = [point.algorithm, point.transport].filter(Boolean).join(", ");
  return (
    `${size(point.nbytes)}: ${short(point.busbw_gbs)} GB/s, ` +
    `${short(point.time_us)} µs (p99 ${short(point.p99_us)} µs)${path ? `, ${path}` : ""}${wrong}`
  );
}

export const NO_SWEEP =
  "nothing is measured yet: choose an operation and press Run, or type %distributed bandwidth";
