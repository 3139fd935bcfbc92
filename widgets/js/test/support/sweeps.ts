// Made-up sweeps, and a fake plot and canvas that record the drawing.
import type uPlot from "uplot";
import type { Frame, Kind, Point } from "../../src/bandwidth/state";

export function make_point(nbytes: number, more: Partial<Point> = {}): Point {
  const time_us = 3 + nbytes / 8e3;
  const busbw_gbs = (1.5 * nbytes) / time_us / 1e3;
  return { nbytes, time_us, p99_us: 2 * time_us, busbw_gbs, n_wrong: 0, algorithm: "staged", transport: "arena", ...more };
}

export function make_frame(n_points: number, more: Partial<Frame> = {}): Frame {
  return {
    status: "live", why: "", state: "measuring", n_done: n_points, n_points: 8, error: "",
    progress: `${n_points} of 8 sizes, about 4 s left`, title: "all_sum · arena · float32 · 4 ranks",
    asked: { op: "all_sum", begin: "8", end: "16M", factor: 4, dtype: "float32", iters: 20 },
    ops: ["all_sum", "all_max"], dtypes: ["float32", "float64"],
    run: { name: "this", points: Array.from({ length: n_points }, (_, i) => make_point(8 * 4 ** i)) },
    earlier: [], limits: [{ name: "memory copy", gbs: 25 }],
    fit: n_points > 1 ? [[8, 0.004, 3.001], [64, 0.032, 3.008]] : [], changes: [], words: ["limit: memory copy"],
    ...more,
  };
}

/** A fake canvas that records the drawing. */
export class FakeContext {
  font = "";
  readonly lines: number[][] = [];
  private from: number[] = [];

  moveTo(...from: number[]): void {
    this.from = from;
  }
  lineTo(...to: number[]): void {
    this.lines.push([...this.from, ...to]);
  }
  setLineDash(): void {}
  fillText(): void {}
  fillRect(): void {}
  beginPath(): void {}
  stroke(): void {}
  rect(): void {}
  clip(): void {}
  save(): void {}
  restore(): void {}
}

/** A fake uPlot that records its data: two pixels for each decade and each octave. */
export class FakePlot {
  static readonly all: FakePlot[] = [];
  readonly bbox = { left: 0, top: 0, width: 500, height: 200 };
  ctx = new FakeContext();
  left: number | null = null; // of the cursor
  n_drawn = 1;
  is_destroyed = false;

  constructor(readonly options: uPlot.Options, public data: (number | null)[][]) {
    FakePlot.all.push(this);
  }
  /** Return the newest plot of a panel. */
  static of(kind: Kind): FakePlot {
    return FakePlot.all.filter((its) => its.options.legend?.show === (kind === "bandwidth")).pop() as FakePlot;
  }
  valToPos(value: number, axis: string): number {
    return axis === "x" ? 2 * Math.log2(value) : 2 * Math.log10(value);
  }
  setData(data: (number | null)[][]): void {
    this.data = data;
    this.n_drawn += 1;
  }
  setCursor({ left }: { left: number }): void {
    this.left = left;
  }
  destroy(): void {
    this.is_destroyed = true;
  }
  /** Have it call a hook. */
  hook(name: "draw" | "setCursor", more: object = {}): void {
    this.options.hooks?.[name]?.[0]?.(Object.assign(this, more) as never);
  }
}
