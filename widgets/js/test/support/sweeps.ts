// Made-up sweeps, and a fake canvas that records the drawing.
import type { Frame, Point } from "../../src/bandwidth/state";

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
    fit: { alpha_us: 3, ns_per_byte: 0.125, factor: 1.5 }, changes: [], words: ["limit: memory copy"],
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
